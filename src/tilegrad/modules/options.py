"""What the caller of `tilegrad.tile` asked for, checked."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

import numpy as np
import torch

from ..bounds import AXES, MODES, choose_axes, image_axes
from ..bounds.mesh import NAMES
from ..errors import GridError, InputError, one_of
from ..execution.stores import stores
from ..ir import Graph
from ..planners import check_planner
from ..schedule import Storage
from ..sim.measure import device_bytes
from ..units import is_decimal, parse_budget

WHOLE = ("keep", "segments", "recompute", "offload")  # planners that cut nothing
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
    decimal: bool = False  # was the budget given in powers of 1000?

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
            raise InputError(f"'{mode}' is not a mode", hint=one_of(mode, (*MODES, "none", "auto")))
        if halos not in (*stores(), "auto"):
            raise InputError(f"halos cannot be kept on '{halos}'", hint=one_of(halos, (*stores(), "auto")))
        _check_effects(budget, tile, axes, mode, halos, planner)
        if cuda_graphs is True and tile is None and budget is None:
            raise _idle("cuda_graphs", "without a tile or a budget", 'budget="4GiB"')
        return cls(
            budget if budget is None or _is_share(budget) else parse_budget(budget),
            _tile(tile),
            _axes(axes),
            mode,
            halos if halos != "auto" else None,
            planner if mode == "auto" else "tile",
            None if cuda_graphs == "auto" else bool(cuda_graphs),
            _compile_options(compile),
            is_decimal(budget),
        )

    def records(self, device: torch.device) -> bool:
        """May a step be recorded as CUDA graphs?"""
        if self.cuda_graphs and device.type != "cuda":
            raise _idle("cuda_graphs", f"on {device}", 'cuda_graphs="auto"')
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


def _check_effects(budget: Any, tile: Any, axes: Any, mode: str, halos: str, planner: str) -> None:
    """What would change nothing is refused."""
    there = {"axes": axes is not None, "halos": halos != "auto", "planner": planner != "auto"}
    there |= {"budget": budget is not None, "tile": tile is not None}
    given = [name for name, is_there in there.items() if is_there]
    others = {name for name in given if name in ("axes", "halos")}
    sized = tile is not None or mode in MODES
    if mode == "none" and given:
        raise _idle(given[0], "with mode='none', which is plain PyTorch", "mode='auto', or mode='none' alone")
    if tile is None and budget is None and mode != "none" and (given not in ([], ["planner"]) or mode != "auto"):
        raise _idle([*given, "mode"][0], "without a tile or a budget", 'budget="4GiB"')
    if tile is None and budget is None and planner not in ("auto", "keep"):
        raise _idle("planner", "without a budget", 'budget="4GiB"')
    if sized and planner not in ("auto", "tile"):
        what = "a tile" if tile is not None else f"mode='{mode}'"
        raise _idle("planner", f"with {what}: that is the planner 'tile'", "planner='tile', or a budget alone")
    if planner in WHOLE and others:
        raise _idle(sorted(others)[0], f"with planner='{planner}', which cuts nothing", "planner='tile'")
    if isinstance(tile, Mapping) and axes is not None and set(_axes(axes) or ()) != set(tile):
        raise _idle("axes", "where the tile names others", f"tile={dict(tile)} alone")


def _idle(name: str, when: str, hint: str) -> InputError:
    return InputError(f"{name} has no effect {when}", hint=hint)


def _tile(given: Any) -> int | tuple[int, ...] | tuple[tuple[str, int], ...] | None:
    if given is None:
        return None
    several = given.values() if isinstance(given, Mapping) else given if isinstance(given, Iterable) else [given]
    sizes = [None if isinstance(n, bool) or not isinstance(n, int | np.integer) else int(n) for n in several]
    if not sizes or None in sizes:
        raise InputError(f"a tile of {given!r} is not possible", hint='128, (128, 256) or {"h": 128}')
    found = tuple(n for n in sizes if n is not None)
    if isinstance(given, Mapping):
        return tuple(zip(_axes(given) or (), found, strict=True))
    return found if isinstance(given, Iterable) else found[0]


def _axes(given: Any) -> tuple[str, ...] | None:
    """`"hw"`, `"h,w"`, `"batch"` or `["h", "w"]`."""
    if given is None:
        return None
    one = isinstance(given, str) and given not in NAMES and "," not in given
    names = list(given) if one or not isinstance(given, str) else given.replace(" ", "").split(",")
    wrong = [name for name in names if name not in NAMES]
    found = tuple(NAMES[name] for name in names if name in NAMES)
    if wrong or not names or len(set(found)) < len(found):
        what = f"there is no axis {wrong[0]!r}" if wrong else f"axes {names} are none, or one of them twice"
        raise InputError(what, hint=f"some of {', '.join(AXES)}, each once")
    return found


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
        raise InputError(f"'{name}' is not an option of compile", hint=one_of(name, _COMPILE))
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
