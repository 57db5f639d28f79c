"""`tilegrad.tile`: a module in, a module out, with the same parameters and the same gradients."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from .errors import InputError
from .importers import export_module
from .options import Options
from .runner import Runner
from .runtime import plain_bytes
from .schedule import Schedule, format_plan, plan_to_json
from .schedule.step_list import StepList
from .search import Planning
from .wrapped import Wrapped

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .distributed import DistributedModule


@overload
def tile(
    module: nn.Module,
    *,
    budget: str | int | None = None,
    tile: int | Sequence[int] | Mapping[str, int] | None = None,
    axes: str | Sequence[str] | None = None,
    mode: str = "auto",
    halos: str = "auto",
    planner: str = "auto",
) -> TiledModule: ...


@overload
def tile(
    module: nn.Module,
    *,
    mesh: DeviceMesh,
    budget: str | int | None = None,
    exchange: str = "auto",
    timeout: float | None = None,
) -> DistributedModule: ...


def tile(
    module: nn.Module,
    *,
    budget: str | int | None = None,
    tile: int | Sequence[int] | Mapping[str, int] | None = None,
    axes: str | Sequence[str] | None = None,
    mode: str = "auto",
    halos: str = "auto",
    planner: str = "auto",
    mesh: DeviceMesh | None = None,
    exchange: str = "auto",
    timeout: float | None = None,
) -> TiledModule | DistributedModule:
    """Wrap `module` so that it runs in less memory: same parameters, same outputs, same gradients.

    tile: elements of the input per tile, one number or one per axis.
    budget: device bytes ("4GiB") that a step may use in all: parameters, their gradients, inputs on the device and
    everything in between (not the optimizer's state); "0.5 of device" is a share. Of all plans that are predicted to
    fit, the fastest is used: plain, nodes run again, values on the host, tiles.
    planner: "auto", or one of "keep", "segments", "recompute", "offload", "tile".
    axes: what to cut, among "n", "d", "h", "w" (default: the image's axes).
    mode: "stream", "scatter", "gather", "none", or "auto" (stream). halos: kept on "device", "host" or "disk".
    mesh: ranks that own boxes of the image, a `DeviceMesh` with axes among "batch", "d", "h" and "w"; the budget is
    then each rank's own. exchange: halos move once per "segment", per "layer", or what is faster ("auto"). timeout:
    seconds to wait for another rank. See `tilegrad.distributed`.
    """
    if mesh is not None:
        from .distributed import distribute

        if (tile, axes, mode, halos, planner) != (None, None, "auto", "auto", "auto"):
            what = "with a mesh there is a budget, but no tile, axes, mode, halos or planner"
            raise InputError(what, hint='budget="4GiB"')
        return distribute(module, mesh, budget=budget, exchange=exchange, timeout=timeout)
    return TiledModule(module, Options.parse(budget, tile, axes, mode, halos, planner))


@dataclass
class _State:
    """What a tiled module knows besides parameters: kept out of torch's registries."""

    options: Options
    plans: dict[Any, Runner] = field(default_factory=dict)
    last: Runner | None = None


class TiledModule(Wrapped):
    """The wrapped module. Planned on first use of an input shape; plans are kept."""

    def __init__(self, module: nn.Module, options: Options):
        if isinstance(module, Wrapped):
            raise InputError("this module is tiled already", hint="tile(model.module, …)")
        super().__init__(module, _State(options))

    @property
    def options(self) -> Options:
        return self._state.options

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
        return Plan(self._state.last.schedule, self._state.last.planning)

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

    def _runner(self, flat: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Runner:
        self.module.training = self.training
        key = _key(self.module, flat)
        plans = self._state.plans
        if key not in plans:
            graded = [isinstance(x, Tensor) and x.requires_grad for x in flat]
            captured = export_module(self.module, args, kwargs)
            train = torch.is_grad_enabled()
            plain = partial(plain_bytes, self.module, args, kwargs, train=train)
            plans[key] = Runner(captured, self.options, self.module, graded if train else None, plain)
        return plans[key]


@dataclass(frozen=True)
class Plan:
    """What will run: printable, with its schedule for those who want every step."""

    schedule: Schedule | StepList
    planning: Planning | None = None  # all candidates, where a budget was given

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
