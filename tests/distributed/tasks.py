"""What ranks run for tests: `f(mesh, payload)`, by name. What they return must survive pickle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import tilegrad
from tilegrad.bounds import placement
from tilegrad.distributed import Part, close, neighbours, part
from tilegrad.distributed.cut_weights import local_of
from tilegrad.distributed.join import group_of
from tilegrad.errors import TilegradError
from tilegrad.planners import mesh as mesh_planner
from tilegrad.planners.ranks.tail import NO_POINT, TailPoint, tails
from tilegrad.region import Box
from tilegrad.testing.exact import StepResult, integer_tensor


@dataclass(frozen=True)
class Case:
    """A step of training, and how it is run."""

    net: nn.Module
    inputs: tuple[Any, ...]
    graded: tuple[bool, ...] | None = None  # by input: does it need a gradient? by default where it can
    cuts: Mapping[str, Sequence[int]] | None = None
    dims: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  # by input, for `part`
    whole: tuple[int, ...] = ()  # inputs that are given whole
    steps: int = 1  # backward passes, whose gradients add up
    autocast: torch.dtype | None = None
    no_grad: bool = False
    seed: int = 0
    tiles: int | None = None  # of a rank's own box, instead of keeping everything
    tail: int | None = None  # which of the points behind which all is whole is taken, from the last; else none
    shared: bool = False  # do ranks share the channels of all convolutions there, however small?
    hosted: bool = False  # messages lie elsewhere than tensors, as those of a GPU over gloo
    options: Mapping[str, Any] = field(default_factory=dict)  # of `tile`


@dataclass(frozen=True)
class Found:
    """What a step leaves behind on one rank. Parameters in `boxes` are cut: their gradients are this rank's box."""

    step: StepResult
    boxes: Mapping[str, tuple[Box, tuple[int, ...]]]  # by name: the box and the whole shape
    traffic: Traffic


@dataclass(frozen=True)
class Traffic:
    """Bytes sent and received, and messages sent: as counted, and as the plan says for one step."""

    counted: tuple[int, int, int]
    planned: tuple[int, int, int]


def step(mesh: Any, case: Case) -> Found:
    """A step of training on a mesh; all that it leaves behind, whole but for parameters that are cut."""
    shapes = {name: tuple(p.shape) for name, p in case.net.named_parameters()}
    torch.manual_seed(case.seed + dist.get_rank())  # ranks must agree on what they draw all the same
    options = {"budget": "1TiB"} if case.tiles else {}
    tiled = tilegrad.tile(case.net, mesh=mesh, **options, **case.options)
    tiled.traffic.clear()
    given = [_given(mesh, case, at, x) for at, x in enumerate(case.inputs)]
    hosted = _elsewhere(mesh) if case.hosted else contextlib.nullcontext()
    with _in_tiles(case.tiles), behind(case.tail, case.shared), hosted:
        for _ in range(case.steps):
            outputs = run_once(tiled, given, case)
    placed = tiled.plan.mesh_plan.placement
    assert bool(placed.whole) == (case.tail is not None) and bool(placed.shared) <= case.shared
    traffic = _traffic(tiled)
    leaves = {f"input {at}": x for at, x in enumerate(given) if isinstance(x, Part | Tensor)}
    gradients = {name: _gathered(x) if isinstance(x, Part) else x.grad for name, x in leaves.items() if x.requires_grad}
    gradients |= {name: local_of(p.grad) for name, p in case.net.named_parameters() if p.requires_grad}
    wholes = [item.whole() if isinstance(item, Part) else item.detach() for item in outputs]
    for item in outputs:
        assert not isinstance(item, Part) or tuple(item.local.shape) == item.box.shape
    found = StepResult(
        {f"output {at}": item for at, item in enumerate(wholes)},
        {f"gradient of {name}": grad for name, grad in gradients.items()},
        {f"buffer {name}": buffer.detach().clone() for name, buffer in case.net.named_buffers()},
    )
    cut = {f"gradient of {name}": (box, shapes[name]) for name, box in tiled.cut_parameters.items()}
    return Found(found, {name: b for name, b in cut.items() if name in found.gradients}, traffic)


def step_on_hosts(mesh: Any, payload: tuple[Case, Sequence[str]]) -> Found:
    """A step of ranks on hosts of these names, by rank: only those of one host share memory."""
    case, hosts = payload
    name = neighbours.host_name() + hosts[dist.get_rank()]
    close(mesh)  # to meet anew
    with mock.patch.object(neighbours, "host_name", return_value=name):
        found, near = step(mesh, case), group_of(mesh).neighbours
    close(mesh)
    here = {rank for rank in range(len(hosts)) if hosts[rank] == hosts[dist.get_rank()]}
    assert (near.ranks if near is not None else {dist.get_rank()}) == here
    return found


def step_after_leave(mesh: Any, net: nn.Module) -> tuple[str, bool]:
    """What a module says that is called after its rank has left; and does one that is made later work?"""
    x, tiled = torch.ones(1, 1, 8, 8), tilegrad.distribute(net, mesh)
    before = tiled(part(x, mesh)).sum()
    close(mesh)
    said = ""
    try:
        tiled(part(x, mesh))
    except TilegradError as error:
        said = str(error)
    again = tilegrad.distribute(net, mesh)(part(x, mesh)).sum()
    return said, torch.equal(before, again)


def run_once(module: nn.Module, given: Sequence[Any], case: Case) -> list[Any]:
    """Forward and backward, from an integer-valued gradient at every output."""
    cast = torch.autocast("cpu", case.autocast) if case.autocast else contextlib.nullcontext()
    with cast, torch.set_grad_enabled(not case.no_grad):
        made = module(*given)
    outputs = [x for x in pytree.tree_leaves(made, is_leaf=_is_part) if isinstance(x, Part | Tensor)]
    graded = [x for x in outputs if x.requires_grad]
    seeds = []
    for at, item in enumerate(graded):
        seed = integer_tensor(item.shape, -2, 2, at)
        seeds.append(seed[item.box.slices].to(item.local) if isinstance(item, Part) else seed.to(item))
    if graded:
        torch.autograd.backward([x.to_local() if isinstance(x, Part) else x for x in graded], seeds)
    return outputs


def plain_step(case: Case) -> StepResult:
    """The same in one process, with plain torch."""
    given = [_leaf(x, _graded(case, at)) if isinstance(x, Tensor) else x for at, x in enumerate(case.inputs)]
    for _ in range(case.steps):
        outputs = run_once(case.net, given, case)
    gradients = {f"input {at}": x.grad for at, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad}
    gradients |= {name: p.grad for name, p in case.net.named_parameters() if p.requires_grad}
    return StepResult(
        {f"output {at}": item.detach() for at, item in enumerate(outputs)},
        {f"gradient of {name}": grad for name, grad in gradients.items()},
        {f"buffer {name}": buffer.detach().clone() for name, buffer in case.net.named_buffers()},
    )


def _graded(case: Case, at: int) -> bool:
    x = case.inputs[at]
    return case.graded[at] if case.graded else isinstance(x, Tensor) and x.is_floating_point()


def _leaf(x: Tensor, graded: bool) -> Tensor:
    return x.detach().clone(memory_format=torch.preserve_format).requires_grad_(graded)


def _given(mesh: Any, case: Case, at: int, x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    leaf = _leaf(x, _graded(case, at))
    return leaf if at in case.whole else part(leaf, mesh, dims=case.dims.get(at), cuts=case.cuts)


def _is_part(x: Any) -> bool:
    return isinstance(x, Part)


def _gathered(x: Part) -> Tensor | None:
    """The whole gradient of an input, or None where no rank has one."""
    return None if x.grad is None else x.grad.whole()


# -- plans -------------------------------------------------------------------------------------------------------------


def _traffic(tiled: Any) -> Traffic:
    counted = tiled.traffic
    mine = next(a for a in tiled.plan.accounts if a.rank == dist.get_rank())
    return Traffic(
        (counted.sent_bytes, counted.received_bytes, counted.messages),
        (mine.sent_bytes, mine.received_bytes, mine.messages),
    )


@contextlib.contextmanager
def _in_tiles(count: int | None) -> Iterator[None]:
    """Plans of so many tiles on every rank, whatever fits."""

    def plans(ranks: Any, exchanged: Any, tail: Any) -> Iterator[Any]:
        inner, axis = mesh_planner._tile_axis(ranks.mesh)
        plan = mesh_planner.plan_mesh(ranks.graph, inner, exchanged=exchanged, tiles={axis: count})
        yield plan, False, "as the test wants"

    if count is None:
        yield
        return
    with mock.patch.object(mesh_planner, "_plans", plans):
        yield


@contextlib.contextmanager
def behind(point: int | None, shared: bool = False) -> Iterator[None]:
    """Plans that run all that is behind a point whole on every rank, whatever is faster. `shared`: but for the channels
    of convolutions, of any size."""

    def chosen(ranks: Any, exchanged: Any) -> TailPoint:
        found = tails(ranks.graph, ranks.mesh.axes)  # none of a function of a part
        return NO_POINT if point is None or not found else found[point]

    least = 0 if shared else placement.SHARED_BYTES
    with mock.patch.object(mesh_planner, "choose_tail", chosen), mock.patch.object(placement, "SHARED_BYTES", least):
        yield


def _elsewhere(mesh: Any) -> Any:
    """Where torch thinks that "cpu:0" is no more "cpu" than the host is a GPU."""
    return mock.patch.object(group_of(mesh), "_wire", torch.device("cpu", 0))


# -- other tasks -------------------------------------------------------------------------------------------------------


def train(mesh: Any, payload: tuple[nn.Module, list[tuple[int, ...]]]) -> list[float]:
    """Losses of training steps, with images of several sizes."""
    net, sizes = payload
    return train_steps(net, tilegrad.tile(net, mesh=mesh), sizes, lambda x: part(x, mesh))


def train_steps(net: nn.Module, run: nn.Module, sizes: Sequence[tuple[int, ...]], cut: Any) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for at, size in enumerate(sizes):
        optimizer.zero_grad()
        made = run(cut(integer_tensor(size, -2, 2, at)))
        _square(made).backward()
        optimizer.step()
        losses.append(_square(made.whole() if isinstance(made, Part) else made.detach()).item())
    return losses


def _square(made: Any) -> Tensor:
    """A loss outside of the module."""
    found: Tensor = made.square().mean()
    return found


class Recorded:
    """Something like a zarr array: it has a shape, and says what was asked of it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.asked = shape, list[Any]()

    def __getitem__(self, key: Any) -> Any:
        self.asked.append(key)
        return np.zeros(tuple(len(range(n)[k]) for n, k in zip(self.shape, key, strict=True)), dtype=np.float32)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("all of it was asked for")


def cut(mesh: Any, payload: tuple[Any, dict[str, Any]]) -> tuple[Box, tuple[int, ...], Tensor, Tensor]:
    x, how = payload
    found = part(x, mesh, **how)
    return found.box, found.shape, found.local, found.whole()


def cut_file(mesh: Any, path: str) -> tuple[Box, tuple[int, ...], Tensor, Tensor]:
    return cut(mesh, (np.load(path, mmap_mode="r"), {}))


def cut_recorded(mesh: Any, shape: tuple[int, ...]) -> tuple[Box, list[Any], tuple[int, ...]]:
    x = Recorded(shape)
    found = part(x, mesh)
    return found.box, x.asked, tuple(found.local.shape)


def grade_part(mesh: Any, x: Tensor) -> tuple[Tensor, Box]:
    found = part(x.requires_grad_(), mesh)
    found.local.square().sum().backward()
    assert found.local.grad is not None
    return found.local.grad, found.box


def boxes_and_dtensors(mesh: Any, x: Tensor) -> tuple[Box, Tensor, Tensor, Tensor]:
    cut = part(x, mesh)
    again = Part.from_local(cut.local, mesh).requires_grad_()
    assert again.box == cut.box and again.shape == cut.shape and again.mesh == cut.mesh
    dtensor = again.to_dtensor()
    dtensor.square().to_local().sum().backward()
    assert again.grad is not None
    return again.box, again.whole(), dtensor.detach().full_tensor(), again.grad.local


def refused(mesh: Any, payload: tuple[str, Any]) -> str:
    """What a rank is told when it asks for something that cannot be had: `kind: text`."""
    name, given = payload
    try:
        globals()[name](mesh, given)
    except TilegradError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def odd_one(mesh: Any, payload: tuple[list[Case]]) -> None:
    """A step with another case on every rank."""
    (cases,) = payload
    step(mesh, cases[dist.get_rank()])


def cut_apart(mesh: Any, x: Tensor) -> None:
    """Two inputs with different cuts."""
    given = [part(x, mesh, cuts={"h": (0, at, x.shape[2])}) for at in (3, 4)]
    tilegrad.tile(_Sum(), mesh=mesh)(*given)


class _Sum(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


def misnamed(mesh: Any, names: tuple[str, ...]) -> None:
    """A mesh whose axes have other names."""
    part(torch.zeros(1, 1, 8, 8), DeviceMesh("cpu", mesh.mesh, mesh_dim_names=names))


def no_mesh(mesh: Any, _: None) -> None:
    part(torch.zeros(1, 1, 8, 8), "two ranks")  # type: ignore[arg-type]


def odd_second(mesh: Any, payload: tuple[nn.Module, list[list[tuple[int, ...]]]]) -> None:
    """Calls with images of other sizes, in another order on every rank."""
    net, sizes = payload
    tiled = tilegrad.tile(net, mesh=mesh)
    for size in sizes[dist.get_rank()]:
        tiled(part(torch.zeros(size, dtype=torch.float64), mesh))


def several_calls(mesh: Any, payload: tuple[nn.Module, Tensor, str, int | None, bool]) -> dict[str, Tensor | None]:
    net, x, how, tail, shared = payload
    tiled, given = tilegrad.tile(net, mesh=mesh), part(x.requires_grad_(), mesh)
    with behind(tail, shared):
        call_several(tiled, given, how)
    found = {name: p.grad for name, p in net.named_parameters()}
    return found | {"input": _gathered(given)}


def call_several(run: nn.Module, given: Any, how: str) -> None:
    """Gradients from calls that overlap: the same numbers come out whichever way."""

    def size(made: Any) -> Tensor:
        found: Tensor = made.sum()
        return found

    match how:
        case "two calls, then both backward":
            one, other = run(given), run(given)
            size(other[0]).backward()
            (2 * size(one[1])).backward()
        case "one sum of two calls":
            (size(run(given)[0]) + 2 * size(run(given)[1])).backward()
        case "the first output only":
            size(run(given)[0]).backward()
        case "the last output only":
            size(run(given)[-1]).backward()
        case "a call without backward between":
            first = run(given)
            run(given)
            with torch.no_grad():
                run(given)
            size(first[1]).backward()
        case _:
            raise ValueError(how)
