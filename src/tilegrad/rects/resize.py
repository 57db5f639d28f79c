"""The same step on another number of workers: its sizes read off the arrays, and all rects made anew."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError
from .model import RectGraph
from .system import Gain, training_step


def split_step(graph: RectGraph, workers: tuple[int, int]) -> tuple[RectGraph, ...]:
    """One graph per worker of the step that a graph shows. Raises `InputError` where it is of another form."""
    try:
        image, labels = graph.array["data.raw_output"].dim, graph.array["classifier.weights1"].dim
        layers: list[tuple[tuple[int, int], int]] = []
        while (name := f"L{len(layers)}.W") in graph.array:
            maps, _, _, _, kh, kw, _, _ = graph.array[name].dim
            layers.append(((kh, kw), maps))
        reads = graph.operator["L0.filterA.grad"].inputs
        found = training_step(
            batch=image[0], image=(image[2], image[3]), channels=image[1], layers=layers, classes=labels[0],
            gain=_gain(reads), workers=workers,
        )  # fmt: skip
    except InputError:
        raise
    except (KeyError, ValueError, IndexError):
        what = "a step of another form than layers L0, L1, … and a classifier"
        raise InputError(what, where=graph.name, hint="the rects of the file itself, without --mesh") from None
    whole = training_step(
        batch=image[0], image=(image[2], image[3]), channels=image[1], layers=layers, classes=labels[0],
        gain=_gain(reads),
    )[0]  # fmt: skip
    if whole.edges != graph.edges and set(whole.edges) != set(graph.edges):
        raise InputError("a step with other operators than the layers explain", where=graph.name)
    return found


def _gain(reads: Mapping[str, str]) -> Gain:
    return "a*(x+b)" if "b" in reads else "a*x+b"
