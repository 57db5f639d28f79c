"""`tilegrad.predict`: a tiled module's outputs written to files as the walk makes them, and never whole in memory.

An output that others read as well, that lies in another's memory, or that has no axes of an image, is made whole first;
so is everything where the plan is to run plain. What is written is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..execution.walk import Sink
from ..images.written import Written, written
from ..importers import LOCK, Captured, fill
from ..progress import Progress, tick
from ..region import Box, Interval
from ..torch_private import pytree
from .calls import ModuleCall
from .runner import Runner
from .tiled import TiledModule

Paths = str | Path | Sequence[str | Path] | Mapping[str, str | Path]


def predict(
    module: nn.Module,
    inputs: Any,
    out: Paths,
    *,
    argmax: bool = False,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> None:
    """Run a tiled module without gradients, and write what it gives to files: .zarr, .tif or .npy.

    inputs: an image (of `tilegrad.open`, a tensor, an array), or a tuple of arguments. out: a path; where the module
    gives several tensors, a path for each, in order, or a dict of paths where it gives a dict. argmax: of the channels,
    the number of the largest. dtype: of what is written.
    """
    if not isinstance(module, TiledModule):
        raise InputError(f"{type(module).__name__} is not tiled", hint='tilegrad.tile(model, budget="4GiB")')
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    change = _Change(argmax, dtype)
    with torch.no_grad():
        with LOCK:
            call = ModuleCall.of(module.module, args, {}).as_stream
            runner = module.planned(call)
        wanted = _wanted(runner.captured, out)
        with written([path for path, _ in wanted], overwrite) as files:
            places = [(file, at) for file, (_, at) in zip(files, wanted, strict=True)]
            (_run_plain if runner.schedule.mode == "none" else _run_tiles)(module, runner, call, places, change)


Places = Sequence[tuple[Written, int]]  # files, and which output each is for


class _Change:
    """What is done to an output before it is written: to every pixel by itself, so box by box."""

    def __init__(self, argmax: bool, dtype: torch.dtype | None):
        self.argmax, self.dtype = argmax, dtype

    def begin(self, file: Written, shape: Sequence[int], dtype: torch.dtype) -> None:
        shape = (shape[0], 1, *shape[2:]) if self.argmax else shape
        file.begin(shape, self.dtype or (torch.int64 if self.argmax else dtype))

    def write(self, file: Written, box: Box, tile: Tensor) -> None:
        if self.argmax:
            tile, box = tile.argmax(1, keepdim=True), Box((box[0], Interval(0, 1), *box[2:]))
        file.write(box, tile if self.dtype is None else tile.to(self.dtype))

    def to(self, file: Written) -> Sink:
        return lambda box, tile: self.write(file, box, tile)


def _run_tiles(module: TiledModule, runner: Runner, call: ModuleCall, places: Places, change: _Change) -> None:
    graph, sinks = runner.engine.graph, dict[str, list[Sink]]()
    for file, at in places:
        name = graph.outputs[at]
        change.begin(file, graph.shape(name), getattr(torch, graph.type(name).dtype))
        sinks.setdefault(name, []).append(change.to(file))
    away = {name: _all(each) for name, each in sinks.items() if graph.value[name].away}
    with Progress("predicting") as progress:
        shown = _shown(away, sum(prod(graph.shape(name)) for name in away), progress)
        whole = iter(runner.stream(runner.captured.bind(call.flat), shown))
    for name in graph.outputs:
        if name not in away:
            tensor = next(whole)
            for write in sinks.pop(name, ()):
                write(Box.full(tensor.shape), tensor)


def _run_plain(module: TiledModule, runner: Runner, call: ModuleCall, places: Places, change: _Change) -> None:
    args, kwargs = fill(call.tree, call.whole)
    result = runner.plain(module.module, args, kwargs)
    order = pytree.tree_leaves(runner.captured.arrangement)
    found = dict(zip(order, pytree.tree_leaves(result), strict=True))
    for file, at in places:
        change.begin(file, found[at].shape, found[at].dtype)
        change.write(file, Box.full(found[at].shape), found[at])


def _shown(sinks: Mapping[str, Sink], total: int, progress: Progress) -> dict[str, Sink]:
    """What is written moves the bar."""
    done = 0

    def shown(sink: Sink) -> Sink:
        def write(box: Box, tile: Tensor) -> None:
            nonlocal done
            sink(box, tile)
            done += box.volume
            progress.tell(f"{done / total:.0%}", done, total)
            tick()

        return write

    return {name: shown(sink) for name, sink in sinks.items()}


def _all(writes: Sequence[Sink]) -> Sink:
    def write(box: Box, tile: Tensor) -> None:
        for each in writes:
            each(box, tile)

    return write


def _wanted(captured: Captured, out: Paths) -> list[tuple[str | Path, int]]:
    """Paths, and the number of the output that each is for."""
    given = captured.arrangement
    if isinstance(out, Mapping):
        if not isinstance(given, Mapping) or not out.keys() <= given.keys():
            names = ", ".join(map(str, given)) if isinstance(given, Mapping) else "no names"
            raise InputError(f"the module gives {names}, not {', '.join(out)}", hint="a path for each, in order")
        pairs = [(path, given[name]) for name, path in out.items()]
    else:
        paths, outputs = [out] if isinstance(out, str | Path) else list(out), pytree.tree_leaves(given)
        if len(paths) != len(outputs):
            what = f"{len(paths)} paths for {len(outputs)} outputs"
            raise InputError(what, hint='a path for each: ["a.zarr", "b.zarr"]')
        pairs = list(zip(paths, outputs, strict=True))
    if any(not isinstance(at, int) for _, at in pairs):
        raise InputError("an output that is no tensor, or an input given back", hint="outputs that the module makes")
    return pairs
