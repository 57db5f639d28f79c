"""A module whose image lies on many ranks: planned once for every input shape, the same on all of them."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from .. import errors
from ..bounds import lower_graph
from ..bounds.mesh import Mesh
from ..errors import CaptureError, InputError, TilegradError
from ..execution import Executor
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
from ..torch_private import uncompiled
from ..units import parse_budget
from .agreement import WAYS, Agreement, compare, say, tensors_of
from .cut_weights import check_let_go, cut_parameters, local_of, without_data
from .group import Group
from .join import group_of
from .part import Part, part
from .rank_step import RankStep
from .replicas import Replicas, buffers_of, split_mesh
from .sharded import captured_whole, shards, whole_of
from .traffic import Traffic

EXCHANGES = ("auto", "segment", "layer")


@dataclass
class _State:
    group: Group
    device_mesh: DeviceMesh
    budget: int | str | None
    exchange: str
    agreement: Agreement
    replicas: Replicas | None
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
    agree: str = "broadcast",
    replicas: str | None = None,
    timeout: float | None = None,
) -> DistributedModule:
    """Wrap `module` so that its image lies on the ranks of a mesh, each with a box of it: same parameters, and the
    outputs and gradients of one process on every rank.

    mesh: a `DeviceMesh` with axes among "batch", "d", "h" and "w". Where it has others beside them, `replicas` says
    what becomes of them: "mean" or "sum" of gradients, or "leave" to `DistributedDataParallel`.
    budget: bytes ("4GiB") that a step may use on each rank.
    exchange: halos move once per "segment", per "layer", or what is predicted to be faster ("auto").
    agree: parameters and buffers are the first rank's at the start ("broadcast"), or an error where they differ
    ("check"); later on ranks that have other inputs, or other parameters, are an error. "off": nobody looks.
    timeout: seconds to wait for another rank.
    """
    module, _ = uncompiled(module)
    if exchange not in EXCHANGES:
        raise InputError(f"halos cannot be exchanged per '{exchange}'", hint=f"one of {', '.join(EXCHANGES)}")
    if agree not in WAYS:
        raise InputError(f"ranks cannot agree by '{agree}'", hint=f"one of {', '.join(WAYS)}")
    space, others = split_mesh(mesh, replicas)
    group, cut = group_of(space, timeout), dict[str, Box]()
    state = _State(group, space, budget, exchange, Agreement(group, agree, cut), others, cut=cut)
    found = DistributedModule(module, state)
    state.agreement.start(module)
    if others is not None and agree == "broadcast":
        others.spread([t for t in tensors_of(module).values() if not t.is_meta and not isinstance(t, DTensor)])
    return found


class DistributedModule(Wrapped):
    """The wrapped module. Takes and gives `Part`s; what has no axis that is cut is a tensor, the same everywhere."""

    def __init__(self, module: nn.Module, state: _State):
        super().__init__(module, state)

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedModule:
        """With parameters of its own, on the same ranks: a moving average."""
        old: _State = self._state
        cut = dict(old.cut)
        agreement = Agreement(old.group, old.agreement.way, cut)
        state = replace(old, agreement=agreement, calls=Calls(), last=None, cut=cut)
        return DistributedModule(copy.deepcopy(self.module, memo), state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InputError(
            "a module on a mesh cannot be pickled", hint="tilegrad.distributed.save_state, or state_dict()"
        )

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
        for each in shards(self):
            each.reshard()  # what its hooks have gathered: a call binds its own
        runner, call = self._runner(args, kwargs)
        self._state.last = runner
        return runner(self.module, call.flat)

    def _runner(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[RankRunner, ModuleCall]:
        state: _State = self._state
        call, found, failure = None, None, None
        try:
            owned = [self._own(item) for item in args], {name: self._own(item) for name, item in kwargs.items()}
            call = ModuleCall.of(self.module, *owned, {Part: lambda item: _describe(item) + _wants(item)})
            _check_meshes(call, state.device_mesh)
            with self._whole():
                found = state.calls.find(call)
        except (TilegradError, OSError) as error:  # of one rank perhaps: all are told
            failure = error
        words = _words(self.module, () if call is None else call.flat, state.group.device)
        flat = () if call is None else call.flat
        new = state.agreement.call(self.module, words, flat, "" if failure is None else say(failure), found is None)
        if failure is not None or call is None:
            assert failure is not None
            raise failure
        if new or found is None:  # where one rank has to plan anew, all do
            with self._whole():
                found = _together(state.group, lambda: self._make(state, call))
            before = cut_parameters(self.module, found.mesh_plan, state)
            with self._whole():
                found.captured = replace(found.captured, start=Snapshot.take(self.module))
            check_let_go(before)
            state.calls.add(call, found, found.captured)
        return found, call

    def _whole(self) -> contextlib.AbstractContextManager[None]:
        return captured_whole(self.module) if shards(self) else contextlib.nullcontext()

    def _own(self, item: Any) -> Any:
        """Of an image that lies elsewhere every rank reads its own box."""
        item = opened(item)
        return part(item, self._state.device_mesh) if isinstance(item, ImageSource) else item

    def _make(self, state: _State, call: ModuleCall) -> tuple[RankRunner, dict[str, Any]]:
        flat = call.flat
        _check_norms(self.module)
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
        known = {n: item.dims for n, item in zip(captured.user_inputs, flat, strict=True) if isinstance(item, Part)}
        captured = replace(captured, graph=captured.graph.with_axes(known))
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
        self.mesh = mesh  # the plan's may have one axis more, along which a rank streams
        self.replicas, self.cut, self.agreement = state.replicas, state.cut, state.agreement
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
            if not isinstance(item, Part) and isinstance(item, Tensor) and self.lies_on_mesh(str(name)):
                what = f"input '{name}' lies on the mesh, but is a whole tensor"
                raise InputError(what, hint="tilegrad.distributed.part(x, mesh)")
            if isinstance(item, Part) and item.box != self.mesh_plan.owned(str(name), self.plan.coords):
                what = (
                    f"input '{name}' is cut into {item.box}, where {self.mesh_plan.owned(str(name), self.plan.coords)}"
                )
                raise InputError(f"{what} is due", hint="part(x, mesh, dims={...}) names the dimensions of the image")

    def __call__(self, module: nn.Module, flat: Sequence[Any]) -> Any:
        if self.replicas is not None and module.training:
            self.replicas.spread(buffers_of(module))
        tensors = self._bind(module, flat)
        return self._assemble(run_pass(RankStep(self, tensors, module)), flat, tensors)

    def seed(self) -> int:
        """One seed for all ranks: what is drawn depends on the place, and so on no cut."""
        return int(self.group.tell("the seed", str(new_seed()))[0]) if self.engine.draws else 0

    def _bind(self, module: nn.Module, flat: Sequence[Any]) -> dict[str, Tensor]:
        local = [item.to_local() if isinstance(item, Part) else item for item in flat]
        bound = self.captured.bind(local, module if self.apart else None)
        ours = local_of if self.cut else whole_of
        return {name: ours(t) if isinstance(t, DTensor) else t for name, t in bound.items()}

    def _assemble(self, outputs: Sequence[Tensor], flat: Sequence[Any], bound: Mapping[str, Tensor]) -> Any:
        names = self.mesh_plan.graph.outputs
        parts = [self._part(n, tensor) for n, tensor in zip(names, outputs, strict=True)]
        return self.captured.assemble(parts, flat, bound)

    def lies_on_mesh(self, name: str) -> bool:
        return not self.mesh_plan.placement.cut[name].isdisjoint(self.mesh.axes)

    def _part(self, name: str, tensor: Tensor) -> Any:
        plan = self.mesh_plan
        if not self.lies_on_mesh(name):
            return tensor
        dims = {axis: plan.axes.dims[name][axis] for axis in self.mesh.axes if axis in plan.placement.cut[name]}
        box, shape = plan.owned(name, self.plan.coords), plan.graph.shape(name)
        return Part(tensor, box, shape, dims, self.mesh, self.device_mesh, made=True)


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
    compare(group, [answer["said"] for answer in answers])
    assert runner is not None
    return runner


def _check_norms(module: nn.Module) -> None:
    """A SyncBatchNorm would ask its process group by itself, of which the plan knows nothing."""
    for name, each in module.named_modules():
        if isinstance(each, nn.SyncBatchNorm) and each.training:
            hint = "BatchNorm2d: on a mesh its statistics are those of all images and ranks"
            raise CaptureError(f"'{name}' is a SyncBatchNorm", where=type(module).__name__, hint=hint)


def _check_captured(captured: Captured, apart: bool) -> None:
    """What a mesh cannot do, although one process can."""
    written = [name for name, _ in captured.graph.updates if captured.graph.value[name].kind is Kind.INPUT]
    if written:
        what = f"the model writes to its input '{written[0]}' in place, which ranks cannot"
        raise CaptureError(what, where=captured.graph.name, hint="x.clone() in forward")
    if apart and (captured.writes or any(str(v.target).startswith(HIDDEN) for v in captured.graph.values)):
        what = "parameters that live on space, beside tensors in attributes that are no buffers"
        raise CaptureError(what, where=captured.graph.name, hint="register_buffer for tensors, and return what is kept")


def _words(module: nn.Module, flat: Sequence[Any], device: torch.device) -> dict[str, Any]:
    """How a rank calls. One that has another image, the last of its data, would leave the others waiting."""
    every = _modules_of(module)
    training = [m.training for m in every]
    parameters = [p.requires_grad for m in every for p in m._parameters.values() if p is not None]
    return {
        "what is called": str(module._get_name()),  # type: ignore[no-untyped-call]
        "gradients": torch.is_grad_enabled(),
        "inputs": [_describe(item) + _wants(item) for item in flat],
        "the number of modules": len(training),
        "training": training,
        "the number of parameters": len(parameters),
        "what parameters need a gradient": parameters,
        "autocast": torch.is_autocast_enabled(device.type),
    }


def _modules_of(module: nn.Module) -> list[nn.Module]:
    """All of them; `module.modules()` makes ten calls for each."""
    found = [module]
    for one in found:
        found += [child for child in one._modules.values() if child is not None]
    return found


def _describe(item: Any) -> str:
    """What all ranks must agree on."""
    if isinstance(item, Part):
        return f"part of {item.shape} {item.dtype} along {dict(item.dims)} cut {item.mesh.shares}"
    if isinstance(item, Tensor):
        return f"tensor {tuple(item.shape)} {item.dtype}"
    return repr(item)


def _wants(item: Any) -> str:
    return ", with gradient" if isinstance(item, Part | Tensor) and item.requires_grad else ""


def _whole(item: Any) -> Any:
    """An input of the whole network, without data."""
    if isinstance(item, Part):
        return torch.empty(item.shape, dtype=item.dtype, device="meta")
    return item


def _one_mesh(flat: Sequence[Any], usual: Mesh) -> Mesh:
    """The mesh with the cuts that the parts have."""
    shares: dict[str, Any] = {}
    for mesh in [item.mesh for item in flat if isinstance(item, Part)]:
        for axis, cuts in (mesh.shares or {}).items():
            if shares.setdefault(axis, cuts) != cuts:
                raise InputError(f"inputs are cut differently along {axis}", hint="the same cuts= for all parts")
    return Mesh(usual.axes, usual.sizes, usual.ranks, shares or None)


def _check_meshes(call: ModuleCall, mesh: DeviceMesh) -> None:
    for name, item in zip(call.names, call.flat, strict=True):
        if isinstance(item, Part) and item.device_mesh != mesh:
            what = f"input '{name}' lies on another mesh, {_spell(item.device_mesh)}, than {_spell(mesh)}"
            raise InputError(what, hint="part(x, mesh) with the mesh of the module")


def _spell(mesh: DeviceMesh) -> str:
    return " x ".join(f"{n} {name}" for n, name in zip(mesh.mesh.shape, mesh.mesh_dim_names or (), strict=True))
