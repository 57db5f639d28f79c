"""`tilegrad.tile`: a module in, a module out, with the same parameters and the same gradients."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn

from ..errors import InputError
from ..execution.graphs import GraphPool
from ..importers import LOCK, export_call, fill, from_shapes, tracing_elsewhere, tracing_here, untouched
from ..sim.plain import plain_bytes
from ..torch_private import uncompiled
from ..units import units_like
from .calls import Calls, ModuleCall, explained
from .options import Options
from .plan import Plan
from .runner import Runner
from .wrapped import Wrapped

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from ..distributed import DistributedModule


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
    cuda_graphs: bool | str = "auto",
    compile: bool | Mapping[str, Any] | None = None,
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
    cuda_graphs: bool | str = "auto",
    compile: bool | Mapping[str, Any] | None = None,
    mesh: DeviceMesh | None = None,
    exchange: str = "auto",
    timeout: float | None = None,
) -> TiledModule | DistributedModule:
    """Wrap `module` so that it runs in less memory: same parameters, same outputs, same gradients.

    tile: elements of the input per tile, one number or one per axis.
    budget: device bytes ("4GiB") that a step may use in all: parameters, their gradients, inputs on the device and
    everything in between (not the optimizer's state); "0.5 of device" is a share. Of all plans that are predicted to
    fit, the fastest is used: plain, nodes run again, values on the host, tiles.
    planner: "auto", or one of "keep", "segments", "recompute", "offload", "mixed", "tile".
    axes: what to cut, among "batch", "d", "h", "w" (default: the image's axes); "n" is "batch".
    mode: "stream", "scatter", "gather", "none", or "auto" (stream). halos: kept on "device", "host" or "disk".
    cuda_graphs: True, False, or "auto": on a GPU, steps that do the same every time are recorded and launched at once
    where Python would take longer than the device.
    compile: True, or a dict with "backend", "mode" and "options" of `torch.compile`: tiles run through it, each kind of
    tile compiled once. By default so it is for a module that `torch.compile` was called on.
    mesh, exchange, timeout: `tilegrad.distribute(module, mesh, …)`, which see.
    """
    module, compiled = uncompiled(module)
    if mesh is not None:
        from ..distributed import distribute

        if (tile, axes, mode, halos, planner, cuda_graphs) != (None, None, *["auto"] * 4) or compile:
            what = "with a mesh there is a budget, but no tile, axes, mode, halos, planner, cuda_graphs or compile"
            raise InputError(what, hint='budget="4GiB"')
        return distribute(module, mesh, budget=budget, exchange=exchange, timeout=timeout)
    if exchange != "auto" or timeout is not None:
        name = "exchange" if exchange != "auto" else "timeout"
        raise InputError(f"{name} has no effect without a mesh", hint="mesh=init_device_mesh(…)")
    wanted = compiled if compile is None else compile
    return TiledModule(module, Options.parse(budget, tile, axes, mode, halos, planner, cuda_graphs, wanted))


@dataclass
class _State:
    """What a tiled module knows besides the module."""

    options: Options
    calls: Calls[Runner] = field(default_factory=Calls)
    last: Runner | None = None
    pool: GraphPool = field(default_factory=GraphPool)


class TiledModule(Wrapped):
    """The wrapped module. Planned on first use of an input shape; plans are kept."""

    def __init__(self, module: nn.Module, options: Options):
        super().__init__(module, _State(options))

    @property
    def options(self) -> Options:
        found: Options = self._state.options
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> TiledModule:
        return TiledModule(copy.deepcopy(self.module, memo), self.options)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return TiledModule, (self.module, self.options)

    def extra_repr(self) -> str:
        return f"tiled: {self.options}"

    @property
    def plan(self) -> Plan:
        """The plan of the last call."""
        if self._state.last is None:
            raise InputError("nothing is planned yet", hint="call the module once, or use .plan_for(*inputs)")
        return self._state.last.plan

    def plan_for(self, *inputs: Any, **kwargs: Any) -> Plan:
        """Plan for inputs (tensors, or shapes) without running anything."""
        with LOCK:
            call = ModuleCall.of(self.module, *from_shapes(self.module, inputs, kwargs))
            self.planned(call)
        return self.plan

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if tracing_here() or (torch.compiler.is_exporting() and not tracing_elsewhere()):
            return self.module(*args, **kwargs)
        with LOCK:  # a capture puts other tensors into the module for a moment, which say they lie elsewhere
            call = ModuleCall.of(self.module, args, kwargs)
            runner = self.planned(call)
            tensors = runner.captured.bind(call.flat)
        if runner.schedule.mode == "none":
            return runner.plain(self.module, *fill(call.tree, call.whole))
        return runner(tensors, call.flat)

    def planned(self, call: ModuleCall) -> Runner:
        """What runs a call: made once, and kept."""
        found: Runner | None = self._state.calls.find(call)
        if found is None:
            found = self._plan(call)
        self._state.last = found
        return found

    def _plan(self, call: ModuleCall) -> Runner:
        captured = export_call(self.module, call.tree, call.blank, call.names, call.away, call.streamed)
        train = torch.is_grad_enabled()
        graded = captured.graded(call.flat) if train else []
        plain = partial(_plain_bytes, self.module, call, train)
        with explained(self.module), units_like(self.options.decimal):
            found = Runner(captured, self.options, graded, plain, call.device, self._state.pool)
        self._state.calls.add(call, found, captured)
        return found


def _plain_bytes(module: nn.Module, call: ModuleCall, train: bool) -> int:
    with untouched(module):
        args, kwargs = fill(call.tree, call.blank)
        return plain_bytes(module, args, kwargs, train=train)
