"""`tilegrad.tile`: a module in, a module out, with the same parameters and the same gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.autograd import Function

from .bounds import MODES, image_axes, lower_graph
from .budget import Search, fit_budget
from .errors import GridError, InputError, TilegradError
from .importers import Captured, Slot, export_module
from .ir import Graph, Kind
from .runtime import Engine, Session, plain_bytes
from .schedule import Schedule, Storage, check_schedule, format_plan, plan_to_json
from .units import parse_bytes


def tile(
    module: nn.Module,
    *,
    budget: str | int | None = None,
    tile: int | Sequence[int] | Mapping[str, int] | None = None,
    axes: str | Sequence[str] | None = None,
    mode: str = "auto",
    halos: str = "auto",
) -> TiledModule:
    """Wrap `module` so that it runs tile by tile: same parameters, same outputs, same gradients, less memory.

    tile: elements of the input per tile, one number or one per axis.
    budget: device bytes ("4GiB") that a step may use in all: parameters, their gradients, inputs on the device and
    everything in between (not the optimizer's state). The largest tile that is predicted to fit is used.
    axes: what to cut, among "n", "d", "h", "w" (default: the image's axes).
    mode: "stream", "scatter", "gather", "none", or "auto" (stream). halos: kept on "device", "host" or "disk".
    """
    return TiledModule(module, Options.parse(budget, tile, axes, mode, halos))


@dataclass(frozen=True)
class Options:
    """What the caller asked for, checked."""

    budget: int | None
    tile: int | tuple[int, ...] | tuple[tuple[str, int], ...] | None
    axes: tuple[str, ...] | None
    mode: str
    storage: Storage | None

    @classmethod
    def parse(cls, budget: Any, tile: Any, axes: Any, mode: str, halos: str) -> Options:
        if mode not in (*MODES, "none", "auto"):
            raise InputError(f"'{mode}' is not a mode", hint=f"one of {', '.join((*MODES, 'none', 'auto'))}")
        if halos not in (*Storage, "auto"):
            raise InputError(f"halos cannot be kept on '{halos}'", hint=f"one of {', '.join((*Storage, 'auto'))}")
        if isinstance(tile, Mapping):
            tile = tuple((str(a), int(n)) for a, n in tile.items())
        elif tile is not None and not isinstance(tile, int):
            tile = tuple(int(n) for n in tile)
        if isinstance(axes, str):
            axes = axes.replace(" ", "").split(",") if "," in axes else list(axes)
        return cls(
            parse_bytes(budget) if budget is not None else None,
            tile,
            tuple(axes) if axes is not None else None,
            mode,
            Storage(halos) if halos != "auto" else None,
        )

    def on(self, device: torch.device) -> Options:
        """For a model on the CPU its memory is the host's: there is nowhere to move halos but to disk."""
        here = device.type != "cuda" and self.storage is Storage.HOST
        return replace(self, storage=Storage.DEVICE) if here else self

    def storages(self, device: torch.device) -> list[Storage]:
        """Where halos may be kept, nearest first."""
        if self.storage:
            return [self.storage]
        return list(Storage) if device.type == "cuda" else [Storage.DEVICE, Storage.DISK]

    def cut_axes(self, graph: Graph) -> tuple[str, ...]:
        return self.axes or tuple(image_axes(graph))

    def sizes(self, graph: Graph) -> dict[str, int] | None:
        """Tile size per axis, or None where only a budget is given."""
        axes = self.cut_axes(graph)
        if self.tile is None:
            return None
        if isinstance(self.tile, int):
            return dict.fromkeys(axes, self.tile)
        if isinstance(self.tile[0], tuple):
            return dict(self.tile)
        if len(self.tile) != len(axes):
            raise GridError(f"{len(self.tile)} tile sizes for {len(axes)} axes ({', '.join(axes)})")
        return dict(zip(axes, self.tile, strict=True))


@dataclass
class _State:
    """What a tiled module knows besides parameters: kept out of torch's registries."""

    module: nn.Module
    options: Options
    plans: dict[Any, _Runner] = field(default_factory=dict)
    last: _Runner | None = None


class TiledModule(nn.Module):
    """The wrapped module. Planned on first use of an input shape; plans are kept."""

    def __init__(self, module: nn.Module, options: Options):
        if isinstance(module, TiledModule):
            raise InputError("this module is tiled already", hint="tile(model.module, …)")
        super().__init__()
        # The very same dictionaries: one set of parameters, buffers and children under unchanged names.
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[part] = module.__dict__[part]
        self.__dict__["_state"] = _State(module, options)
        self.training = module.training

    @property
    def module(self) -> nn.Module:
        """The module as it was given."""
        return self._state.module

    @property
    def options(self) -> Options:
        return self._state.options

    def __getattr__(self, name: str) -> Any:
        """Anything the wrapped module has, such as `model.features`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_state"].module, name)

    def train(self, mode: bool = True) -> TiledModule:
        super().train(mode)
        self.module.train(mode)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TiledModule:
        return TiledModule(copy.deepcopy(self.module, memo), self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return TiledModule, (self.module, self.options)

    def extra_repr(self) -> str:
        return f"tiled: {self.options}"

    @property
    def plan(self) -> Plan:
        """The plan of the last call."""
        if self._state.last is None:
            raise InputError("nothing is planned yet", hint="call the module once, or use .plan_for(*inputs)")
        return Plan(self._state.last.schedule)

    def plan_for(self, *inputs: Any, **kwargs: Any) -> Plan:
        """Plan for inputs (tensors, or shapes) without running anything."""
        flat, _ = pytree.tree_flatten((inputs, kwargs), is_leaf=_is_shape)
        self._state.last = self._runner(flat, inputs, kwargs)
        return self.plan

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_exporting():
            return self.module(*args, **kwargs)
        flat, _ = pytree.tree_flatten((args, kwargs))
        runner = self._state.last = self._runner(flat, args, kwargs)
        if runner.schedule.mode == "none":
            return self.module(*args, **kwargs)  # it fits as it is
        return runner(self.module, flat)

    def _runner(self, flat: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Runner:
        self.module.training = self.training
        key = _key(self.module, flat)
        plans = self._state.plans
        if key not in plans:
            graded = [isinstance(x, Tensor) and x.requires_grad for x in flat]
            captured = export_module(self.module, args, kwargs)
            train = torch.is_grad_enabled()
            plain = partial(plain_bytes, self.module, args, kwargs, train=train)
            plans[key] = _Runner(captured, self.options, self.module, graded if train else None, plain)
        return plans[key]


@dataclass(frozen=True)
class Plan:
    """What will run: printable, with its schedule for those who want every step."""

    schedule: Schedule

    def __str__(self) -> str:
        return format_plan(self.schedule)

    def to_json(self) -> dict[str, Any]:
        """Mode, phases with their grids, and predicted figures, as plain data."""
        return plan_to_json(self.schedule)


def _is_shape(item: Any) -> bool:
    return isinstance(item, tuple) and bool(item) and all(isinstance(n, int) for n in item)


def _key(module: nn.Module, flat: Sequence[Any]) -> Any:
    """What a plan depends on: inputs' types, train or eval of every part, parameters' types and devices."""
    inputs = tuple((tuple(x.shape), x.dtype, x.requires_grad) if isinstance(x, Tensor) else repr(x) for x in flat)
    parameters = tuple((p.dtype, p.device, p.shape, p.requires_grad) for p in module.parameters())
    return inputs, tuple(m.training for m in module.modules()), parameters, torch.is_grad_enabled()


class _Runner:
    """A planned input shape: binds tensors to the graph's values and runs sessions."""

    def __init__(
        self,
        captured: Captured,
        options: Options,
        module: nn.Module,
        graded: Sequence[bool] | None,
        plain: Callable[[], int],
    ):
        self.captured = captured
        self.user_inputs = list(captured.program.graph_signature.user_inputs)
        graph = lower_graph(captured.graph)
        wanted: set[str] = set()
        if graded is not None:
            named = dict(module.named_parameters(remove_duplicate=False))
            wanted |= {str(name) for name, needed in zip(self.user_inputs, graded, strict=True) if needed}
            wanted |= {v.name for v in graph.of_kind(Kind.PARAMETER) if named[str(v.target)].requires_grad}
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        self.schedule = make_schedule(graph, options.on(device), sorted(wanted), plain, options.storages(device))
        self.engine = Engine(self.schedule)

    def __call__(self, module: nn.Module, flat: Sequence[Any]) -> Any:
        tensors = self._bind(module, flat)
        device = next((p.device for p in module.parameters()), None)
        device = device or next((t.device for t in tensors.values()), torch.device("cpu"))
        train = torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
        autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        seed = int(torch.randint(1 << 62, ()).item()) if self._random else 0
        session = Session(self.engine, tensors, device, train=train, seed=seed, autocast=autocast)
        if train:
            names = list(tensors)
            found = _Tiled.apply(session, names, *tensors.values())  # type: ignore[no-untyped-call]
            outputs = list(found)
        else:
            outputs, updates = session.forward()
            _update(session, updates)
        return self._assemble(outputs)

    @property
    def _random(self) -> bool:
        return any(self.engine.op(n.name).random for n in self.engine.graph.nodes)

    def _bind(self, module: nn.Module, flat: Sequence[Any]) -> dict[str, Tensor]:
        graph = self.engine.graph
        named = dict(module.named_parameters(remove_duplicate=False)) | dict(
            module.named_buffers(remove_duplicate=False)
        )
        constants = self.captured.constants
        inputs = dict(zip(self.user_inputs, flat, strict=True))
        found: dict[str, Tensor] = {}
        for value in graph.values:
            match value.kind:
                case Kind.INPUT:
                    found[value.name] = inputs[value.name]
                case Kind.PARAMETER | Kind.BUFFER:
                    found[value.name] = named[str(value.target)]
                case Kind.CONSTANT:
                    found[value.name] = constants[value.name]
        return found

    def _assemble(self, outputs: Sequence[Tensor]) -> Any:
        flat = [outputs[item.index] if isinstance(item, Slot) else item for item in self.captured.outputs]
        return pytree.tree_unflatten(flat, self.captured.program.call_spec.out_spec)


class _Tiled(Function):
    """The whole tiled module as one autograd function: parameters get their gradient once, whole."""

    @staticmethod
    def forward(ctx: Any, session: Session, names: Sequence[str], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.session, ctx.names = session, names
        outputs, updates = session.forward()
        _update(session, updates)
        plain = [o for o, name in zip(outputs, session.engine.graph.outputs, strict=True) if name not in session.needs]
        ctx.mark_non_differentiable(*plain)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        session: Session | None = ctx.session
        if torch.is_grad_enabled():
            raise TilegradError(
                "second-order gradients through a tiled module are not available",
                hint="backward without create_graph=True, or the module without tilegrad.tile",
            )
        if session is None or session.spent:
            raise TilegradError(
                "backward a second time through the same tiled call: what it kept is freed",
                hint="one backward per call (sum the losses first), or call the module again",
            )
        found = session.backward(grads)
        tensors = session.tensors
        result = [found[n].to(tensors[n].dtype) if n in found and n in session.needs else None for n in ctx.names]
        ctx.session = None
        return (None, None, *result)


def _update(session: Session, updates: Sequence[tuple[str, Tensor]]) -> None:
    with torch.no_grad():
        for name, value in updates:
            session.tensors[name].copy_(value)


def make_schedule(
    graph: Graph, options: Options, graded: Sequence[str], plain: Callable[[], int], storages: Sequence[Storage]
) -> Schedule:
    """The schedule that the options ask for. `graded`: the outside values that need a gradient; `plain`: what plain
    execution allocates; `storages`: where halos may be kept."""
    mode = "stream" if options.mode == "auto" else options.mode
    sizes = options.sizes(graph)
    search = Search(graph, options.cut_axes(graph), mode, tuple(graded), bool(graded), plain)
    if mode == "none" or (sizes is None and options.budget is None):
        return search.plain().planned
    if sizes is not None:
        schedule = search.tiled(sizes, options.storage or Storage.DEVICE).planned
    else:
        assert options.budget is not None
        schedule = fit_budget(search, options.budget, storages)
    check_schedule(schedule)
    return schedule
