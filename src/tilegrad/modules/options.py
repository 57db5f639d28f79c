"""What the caller of `tilegrad.tile` asked for, checked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

import torch

from ..bounds import MODES, choose_axes, image_axes
from ..errors import GridError, InputError
from ..execution.stores import stores
from ..ir import Graph
from ..planners import check_planner
from ..schedule import Storage
from ..sim.measure import device_bytes
from ..units import parse_budget

_COMPILE = ("backend", "mode", "options")  # of torch.compile's options; the others are ours to decide


@dataclass(frozen=True)
class Options:
    """What the caller asked for, checked."""

    budget: int | str | None
    tile: int | tuple[int, ...] | tuple[tuple[str, int], ...] | None
    axes: tuple[str, ...] | None
    mode: str
    storage: str | None
    planner: str = "auto"
    cuda_graphs: bool | None = None  # None: where they pay
    compile: tuple[tuple[str, Any], ...] | None = None  # options of torch.compile, where it is wanted

    @classmethod
    def parse(
        cls,
        budget: Any,
        tile: Any,
        axes: Any,
        mode: str,
        halos: str,
        planner: str = "auto",
        cuda_graphs: bool | str = "auto",
        compile: Any = None,
    ) -> Options:
        check_planner(planner)
        if cuda_graphs not in (True, False, "auto"):
            raise InputError(f"cuda_graphs cannot be {cuda_graphs!r}", hint='"auto", True or False')
        if planner == "mesh":
            raise InputError("the planner 'mesh' is for many ranks", hint="tilegrad.tile(module, mesh=…)")
        if mode not in (*MODES, "none", "auto"):
            raise InputError(f"'{mode}' is not a mode", hint=f"one of {', '.join((*MODES, 'none', 'auto'))}")
        if halos not in (*stores(), "auto"):
            raise InputError(f"halos cannot be kept on '{halos}'", hint=f"one of {', '.join((*stores(), 'auto'))}")
        if isinstance(tile, Mapping):
            tile = tuple((str(a), int(n)) for a, n in tile.items())
        elif tile is not None and not isinstance(tile, int):
            tile = tuple(int(n) for n in tile)
        if isinstance(axes, str):
            axes = axes.replace(" ", "").split(",") if "," in axes else list(axes)
        return cls(
            budget if budget is None or _is_share(budget) else parse_budget(budget),
            tile,
            tuple(axes) if axes is not None else None,
            mode,
            halos if halos != "auto" else None,
            planner if mode == "auto" else "tile",
            None if cuda_graphs == "auto" else bool(cuda_graphs),
            _compile_options(compile),
        )

    def records(self, device: torch.device) -> bool:
        """May a step be recorded as CUDA graphs?"""
        return device.type == "cuda" and self.cuda_graphs is not False

    def budget_on(self, device: torch.device) -> int | None:
        """In bytes: a share is of the memory of the device that the model is on."""
        return None if self.budget is None else parse_budget(self.budget, device_bytes(device))

    def on(self, device: torch.device) -> Options:
        """For a model on the CPU its memory is the host's: there is nowhere to move halos but to disk."""
        here = device.type != "cuda" and self.storage == Storage.HOST
        return replace(self, storage=Storage.DEVICE) if here else self

    def storages(self, device: torch.device) -> list[str]:
        """Where halos may be kept, nearest first."""
        if self.storage:
            return [self.storage]
        return list(Storage.ALL) if device.type == "cuda" else [Storage.DEVICE, Storage.DISK]

    def cut_axes(self, graph: Graph) -> tuple[str, ...]:
        """The axes that were asked for; else the image's, as many as pay where nothing says how many there must be."""
        if self.axes:
            return self.axes
        several = isinstance(self.tile, tuple) and not isinstance(self.tile[0], tuple)
        return tuple(image_axes(graph)) if several else choose_axes(graph)

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


def _is_share(budget: Any) -> bool:
    """Is it a share of a device? Checked here; how large the device is is known when a model is on it."""
    if not isinstance(budget, str) or "of" not in budget:
        return False
    parse_budget(budget, 1 << 40)
    return True


def _compile_options(asked: Any) -> tuple[tuple[str, Any], ...] | None:
    if asked is None or asked is False:
        return None
    if asked is not True and not isinstance(asked, Mapping):
        raise InputError(f"compile={asked!r}", hint='True, or options of torch.compile: {"backend": "aot_eager"}')
    options = {} if asked is True else dict(asked)
    for name in options.keys() - _COMPILE:
        raise InputError(f"'{name}' is not an option of compile", hint=f"one of {', '.join(_COMPILE)}")
    graphs = (options.get("options") or {}).get("triton.cudagraphs")
    if graphs or options.get("mode") in ("reduce-overhead", "max-autotune"):
        what = "CUDA graphs of torch.compile write over what tiles still read"
        raise InputError(what, hint='{"mode": "max-autotune-no-cudagraphs"}, or no mode')
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it imports
            torch.compile(_nothing, **options)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"torch.compile refuses {options}: {shorten(str(error), 160)}") from error
    return tuple(sorted(options.items()))


def _nothing() -> None:
    """For torch.compile to look at."""
