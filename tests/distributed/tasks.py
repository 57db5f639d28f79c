"""What ranks run for tests: `f(mesh, payload)`, by name. What they return must survive pickle."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn

import tilegrad
from tilegrad.distributed import Part, part
from tilegrad.region import Box
from tilegrad.testing.exact import Step, integer_tensor


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
    options: Mapping[str, Any] = field(default_factory=dict)  # of `tile`


@dataclass(frozen=True)
class Found:
    """What a step leaves behind on one rank. Parameters in `boxes` are cut: their gradients are this rank's box."""

    step: Step
    boxes: Mapping[str, tuple[Box, tuple[int, ...]]]  # by name: the box and the whole shape
    traffic: Traffic


@dataclass(frozen=True)
class Traffic:
    """What a rank sent in a step, and what its plan says."""

    sent: int
    received: int
    messages: int
    predicted_sent: int
    predicted_received: int


def step(mesh: Any, case: Case) -> Found:
    """A step of training on a mesh; all that it leaves behind, whole but for parameters that are cut."""
    shapes = {name: tuple(p.shape) for name, p in case.net.named_parameters()}
    torch.manual_seed(case.seed + dist.get_rank())  # ranks must agree on what they draw all the same
    tiled = tilegrad.tile(case.net, mesh=mesh, **case.options)
    tiled.traffic.clear()
    given = [_given(mesh, case, at, x) for at, x in enumerate(case.inputs)]
    for _ in range(case.steps):
        outputs = run_once(tiled, given, case)
    traffic = _traffic(tiled)
    leaves = {f"input {at}": x for at, x in enumerate(given) if isinstance(x, Part | Tensor)}
    gradients = {
        name: _gathered(x) if isinstance(x, Part) else x.grad
        for name, x in leaves.items()
        if (x.local if isinstance(x, Part) else x).requires_grad
    }
    gradients |= {name: p.grad for name, p in case.net.named_parameters() if p.requires_grad}
    wholes = [item.whole() if isinstance(item, Part) else item.detach() for item in outputs]
    for item in outputs:
        assert not isinstance(item, Part) or tuple(item.local.shape) == item.box.shape
    found = Step(
        {f"output {at}": item for at, item in enumerate(wholes)},
        {f"gradient of {name}": grad for name, grad in gradients.items()},
        {f"buffer {name}": buffer.detach().clone() for name, buffer in case.net.named_buffers()},
    )
    cut = {f"gradient of {name}": (box, shapes[name]) for name, box in tiled.cut_parameters.items()}
    return Found(found, {name: b for name, b in cut.items() if name in found.gradients}, traffic)


def run_once(module: nn.Module, given: Sequence[Any], case: Case) -> list[Any]:
    """Forward and backward, from an integer-valued gradient at every output."""
    cast = torch.autocast("cpu", case.autocast) if case.autocast else contextlib.nullcontext()
    with cast, torch.set_grad_enabled(not case.no_grad):
        made = module(*given)
    outputs = [x for x in pytree.tree_leaves(made, is_leaf=_is_part) if isinstance(x, Part | Tensor)]
    graded = [x for x in outputs if (x.local if isinstance(x, Part) else x).requires_grad]
    seeds = []
    for at, item in enumerate(graded):
        seed = integer_tensor(item.shape, -2, 2, at)
        seeds.append(seed[item.box.slices].to(item.local) if isinstance(item, Part) else seed.to(item))
    if graded:
        torch.autograd.backward([x.local if isinstance(x, Part) else x for x in graded], seeds)
    return outputs


def plain_step(case: Case) -> Step:
    """The same in one process, with plain torch."""
    given = [_leaf(x, _graded(case, at)) if isinstance(x, Tensor) else x for at, x in enumerate(case.inputs)]
    for _ in range(case.steps):
        outputs = run_once(case.net, given, case)
    gradients = {f"input {at}": x.grad for at, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad}
    gradients |= {name: p.grad for name, p in case.net.named_parameters() if p.requires_grad}
    return Step(
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
    if x.local.grad is None:
        return None
    return dataclasses.replace(x, local=x.local.grad).whole()


# -- traffic -------------------------------------------------------------------------------------------------------------


def _traffic(tiled: Any) -> Traffic:
    """Boxes that this rank sends forward and, of values with a gradient, those it gives back."""
    counted, plan = tiled.traffic, tiled.plan.mesh_plan
    return Traffic(counted.sent_bytes, counted.received_bytes, counted.messages, *_predicted(plan, tiled))


def _predicted(plan: Any, tiled: Any) -> tuple[int, int]:
    me, sent, received = tiled.plan.coords, 0, 0
    for walk in plan.walks:
        for value in plan.exchanges[walk.key]:
            size = getattr(torch, plan.graph.type(value).dtype).itemsize
            for move in plan.moves(value):
                sent += (move.owner == me) * move.box.volume * size
                received += (move.reader == me) * move.box.volume * size
    return sent, received
