"""A module whose image lies on many ranks: planned once for every input shape, the same on all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from .. import errors
from ..bounds import lower_graph
from ..bounds.mesh import Mesh
from ..errors import CaptureError, InputError, TilegradError
from ..execution import Executor, Pass
from ..images import ImageSource
from ..importers import HIDDEN, Captured, Snapshot, export_call
from ..ir import Kind, format_graph
from ..modules.calls import Calls, ModuleCall, opened
from ..modules.runner import new_seed, run_pass
from ..modules.wrapped import Wrapped
from ..planners import MeshProblem
from ..planners.mesh import RankPlan, plan_rank
from ..planners.ranks.plan import MeshPlan
from ..region import Box
from ..sim.machine import CPU, PRESETS
from ..sim.measure import device_bytes
from ..units import parse_budget
from .cut_weights import cut_parameters, without_data
from .group import Group, Traffic
from .join import group_of
from .part import Part, part

EXCHANGES = ("auto", "segment", "layer")


@dataclass
class _State:
    group: Group
    device_mesh: DeviceMesh
    budget: int | str | None
    exchange: str
    calls: Calls[RankRunner] = field(default_factory=Calls)
    last: RankRunner | None = None
    skeleton: nn.Module | None = None  # the module as it was, without data, once parameters are cut
    cut: dict[str, Box] = field(default_factory=dict)  # parameters that live on space: this rank's box


def distribute(
    module: nn.Module,
    mesh: DeviceMesh,
    *,
    budget: str | int | None = None,
    exchange: str = "auto",
    timeout: float | None = None,
) -> DistributedModule:
    """`tilegrad.tile` with a mesh: see there."""
    if exchange not in EXCHANGES:
        raise InputError(f"halos cannot be exchanged per '{exchange}'", hint=f"one of {', '.join(EXCHANGES)}")
    return DistributedModule(module, _State(group_of(mesh, timeout), mesh, budget, exchange))


class DistributedModule(Wrapped):
    """The wrapped module. Takes and gives `Part`s; what has no axis that is cut is a tensor, the same everywhere."""

    def __init__(self, module: nn.Module, state: _State):
        super().__init__(module, state)

    @property
    def plan(self) -> RankPlan:
        """The plan of the last call."""
        if self._state.last is None:
            raise InputError("nothing is planned yet", hint="call the module once, or use .plan_for(*inputs)")
        found: RankPlan = self._state.last.plan
        return found

    def plan_for(self, *inputs: Any, **kwargs: Any) -> RankPlan:
        """Plan for inputs without running anything; parameters that live on space are cut to this rank's box."""
        self._state.last, _ = self._runner(inputs, kwargs)
        return self.plan

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent and received so far; `.clear()` begins anew."""
        found: Traffic = self._state.group.traffic
        return found

    @property
    def cut_parameters(self) -> dict[str, Box]:
        """The parameters that this rank owns a box of, by name."""
        return dict(self._state.cut)

    @property
    def whole_parameters(self) -> dict[str, Tensor]:
        """The parameters that are cut, as large as they are on all ranks together, without data."""
        skeleton: nn.Module | None = self._state.skeleton
        return dict(skeleton.named_parameters()) if skeleton is not None else {}

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        runner, call = self._runner(args, kwargs)
        self._state.last = runner
        return runner(self.module, call.flat)

    def _runner(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[RankRunner, ModuleCall]:
        state: _State = self._state
        args = [self._own(item) for item in args]
        kwargs = {name: self._own(item) for name, item in kwargs.items()}
        call = ModuleCall.of(self.module, args, kwargs, {Part: lambda item: _describe(item) + _wants(_tensor(item))})
        _check_same(state.group, self.module, call.flat)
        found = state.calls.find(call)
        if not state.group.alike("the plan", str(found is None)):
            found = None  # where one rank has to plan anew, all do
        if found is None:
            found = _together(state.group, lambda: self._make(state, call))
            cut_parameters(self.module, found.mesh_plan, state)
            state.calls.add(call, found, replace(found.captured, start=Snapshot.take(self.module)))
        return found, call

    def _own(self, item: Any) -> Any:
        """Of an image that lies elsewhere every rank reads its own box."""
        item = opened(item)
        return part(item, self._state.device_mesh) if isinstance(item, ImageSource) else item

    def _make(self, state: _State, call: ModuleCall) -> tuple[RankRunner, dict[str, Any]]:
        flat = call.flat
        mesh = _one_mesh(flat, state.group.mesh)
        module = self.module
        if state.skeleton is None and any(p.is_meta for p in module.parameters()):
            state.skeleton = without_data(module)  # torch captures a module that lies on one device
        if state.skeleton is not None:
            module = state.skeleton.train(self.module.training)
            for ours, theirs in zip(module.modules(), self.module.modules(), strict=True):
                ours.training = theirs.training
        captured = export_call(module, call.tree, [_whole(item) for item in flat], call.names)
        _check_captured(captured, module is not self.module)
        graded = torch.is_grad_enabled()
        runner = RankRunner(captured, mesh, state, self.module, flat, graded)
        said = {
            "torch": torch.__version__,
            "graph": hashlib.sha256(format_graph(captured.graph).encode()).hexdigest(),
            "inputs": [_describe(item) for item in flat],
            "budget": str(state.budget),
            "exchange": state.exchange,
            "training": self.module.training,
            "gradients": graded,
            "what needs a gradient": list(runner.plan.graded),
        }
        return runner, said


class RankRunner:
    """A planned input shape: binds a rank's tensors to the graph's values and runs sessions."""

    def __init__(
        self, captured: Captured, mesh: Mesh, state: _State, module: nn.Module, flat: Sequence[Any], graded: bool
    ):
        self.captured, self.group, self.device_mesh = captured, state.group, state.device_mesh
        self.apart = state.skeleton is not None  # was another module captured than the one that runs?
        graph = lower_graph(captured.graph)
        bound = self._bind(module, flat)
        wanted = [name for name, tensor in bound.items() if graded and tensor.requires_grad]
        device = state.group.device
        budget = None if state.budget is None else parse_budget(state.budget, device_bytes(device))
        machine = PRESETS["h200"] if device.type == "cuda" else CPU  # the same on every rank
        ranks = MeshProblem(graph, mesh, state.group.rank, tuple(wanted), state.exchange, machine)
        self.plan = plan_rank(ranks, budget)
        self.mesh_plan: MeshPlan = self.plan.mesh_plan
        self.engine = Executor(self.plan.schedule, state.group.device.type)
        self._check_inputs(flat)

    def _check_inputs(self, flat: Sequence[Any]) -> None:
        for name, item in zip(self.captured.user_inputs, flat, strict=True):
            if not isinstance(item, Part) and isinstance(item, Tensor) and self.mesh_plan.placement.cut[str(name)]:
                what = f"input '{name}' lies on the mesh, but is a whole tensor"
                raise InputError(what, hint="tilegrad.distributed.part(x, mesh)")
            if isinstance(item, Part) and item.box != self.mesh_plan.owned(str(name), self.plan.coords):
                what = (
                    f"input '{name}' is cut into {item.box}, where {self.mesh_plan.owned(str(name), self.plan.coords)}"
                )
                raise InputError(f"{what} is due", hint="part(x, mesh, dims={...}) names the dimensions of the image")

    def __call__(self, module: nn.Module, flat: Sequence[Any]) -> Any:
        tensors = self._bind(module, flat)
        session = Pass(self.engine, tensors, self.group.device, seed=self._seed(), peers=self.group)
        return self._assemble(run_pass(session), flat, tensors)

    def _seed(self) -> int:
        """One seed for all ranks: what is drawn depends on the place, and so on no cut."""
        return int(self.group.tell("the seed", str(new_seed()))[0]) if self.engine.draws else 0

    def _bind(self, module: nn.Module, flat: Sequence[Any]) -> dict[str, Tensor]:
        local = [item.local if isinstance(item, Part) else item for item in flat]
        return self.captured.bind(local, module if self.apart else None)

    def _assemble(self, outputs: Sequence[Tensor], flat: Sequence[Any], bound: Mapping[str, Tensor]) -> Any:
        names = self.mesh_plan.graph.outputs
        parts = [self._part(n, tensor) for n, tensor in zip(names, outputs, strict=True)]
        return self.captured.assemble(parts, flat, bound)

    def _part(self, name: str, tensor: Tensor) -> Any:
        plan = self.mesh_plan
        if not plan.placement.cut[name]:
            return tensor
        dims = {axis: plan.axes.dims[name][axis] for axis in plan.mesh.axes if axis in plan.placement.cut[name]}
        return Part(
            tensor, plan.owned(name, self.plan.coords), plan.graph.shape(name), dims, plan.mesh, self.device_mesh
        )


def _together(group: Group, make: Any) -> RankRunner:
    """Make a plan on all ranks, or fail on all of them with the same words."""
    runner, failure, said = None, dict[str, Any](), dict[str, Any]()
    try:
        runner, said = make()
    except TilegradError as error:
        parts = {"what": error.what, "where": error.where, "hint": error.hint}
        failure = {"kind": type(error).__name__, **parts}
    answers = [json.loads(text) for text in group.tell("the plan", json.dumps({"failure": failure, "said": said}))]
    failures = {rank: a["failure"] for rank, a in zip(group.mesh.ranks, answers, strict=True) if a["failure"]}
    if failures:
        rank, first = next(iter(failures.items()))
        everywhere = len(failures) == len(answers) and all(found == first for found in failures.values())
        kind: type[TilegradError] = getattr(errors, first["kind"], InputError)
        what = first["what"] if everywhere else f"rank {rank} cannot run this: {first['what']}"
        raise kind(what, where=first["where"], hint=first["hint"])
    _compare(group, [answer["said"] for answer in answers])
    assert runner is not None
    return runner


def _compare(group: Group, answers: Sequence[dict[str, Any]]) -> None:
    """Raise where ranks say different things."""
    for key in answers[0]:
        told = [json.dumps(answer.get(key)) for answer in answers]
        if len(set(told)) > 1:
            each = "; ".join(f"rank {r}: {t[:120]}" for r, t in zip(group.mesh.ranks, told, strict=True))
            raise InputError(f"the ranks disagree on {key}", where=each, hint="the same on every rank")


def _check_captured(captured: Captured, apart: bool) -> None:
    """What a mesh cannot do, although one process can."""
    written = [name for name, _ in captured.graph.updates if captured.graph.value[name].kind is Kind.INPUT]
    if written:
        what = f"the model writes to its input '{written[0]}' in place, which ranks cannot"
        raise CaptureError(what, where=captured.graph.name, hint="x.clone() in forward")
    if apart and (captured.writes or any(str(v.target).startswith(HIDDEN) for v in captured.graph.values)):
        what = "parameters that live on space, beside tensors in attributes that are no buffers"
        raise CaptureError(what, where=captured.graph.name, hint="register_buffer for tensors, and return what is kept")


def _check_same(group: Group, module: nn.Module, flat: Sequence[Any]) -> None:
    """Do all ranks call alike? One that has another image, the last of its data, would leave the others waiting."""
    graded = torch.is_grad_enabled()
    inputs = tuple(_describe(item) + _wants(_tensor(item)) for item in flat)
    training = tuple(m.training for m in module.modules())
    parameters = [p.requires_grad for p in module.parameters()]
    autocast = torch.is_autocast_enabled(group.device.type)
    if group.alike("the inputs", repr((inputs, training, parameters, graded, autocast))):
        return
    words = {"gradients": graded, "inputs": inputs, "the number of modules": len(training), "training": training}
    words |= {"the number of parameters": len(parameters), "what parameters need a gradient": parameters}
    words |= {"autocast": autocast}
    answers = [json.loads(text) for text in group.tell("the inputs", json.dumps(words))]
    _compare(group, answers)
    raise InputError("the ranks do not call alike")


def _describe(item: Any) -> str:
    """What all ranks must agree on."""
    if isinstance(item, Part):
        return f"part of {item.shape} {item.local.dtype} along {dict(item.dims)} cut {item.mesh.shares}"
    if isinstance(item, Tensor):
        return f"tensor {tuple(item.shape)} {item.dtype}"
    return repr(item)


def _wants(tensor: Tensor | None) -> str:
    return ", with gradient" if tensor is not None and tensor.requires_grad else ""


def _tensor(item: Any) -> Tensor | None:
    return item.local if isinstance(item, Part) else item if isinstance(item, Tensor) else None


def _whole(item: Any) -> Any:
    """An input of the whole network, without data."""
    if isinstance(item, Part):
        return torch.empty(item.shape, dtype=item.local.dtype, device="meta")
    return item


def _one_mesh(flat: Sequence[Any], usual: Mesh) -> Mesh:
    """The mesh with the cuts that the parts have."""
    meshes = [item.mesh for item in flat if isinstance(item, Part)]
    shares: dict[str, Any] = {}
    for mesh in meshes:
        for axis, cuts in (mesh.shares or {}).items():
            if shares.setdefault(axis, cuts) != cuts:
                raise InputError(f"inputs are cut differently along {axis}", hint="the same cuts= for all parts")
    return Mesh(usual.axes, usual.sizes, usual.ranks, shares or None)
