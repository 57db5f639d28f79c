"""Each rule of a graph of rects, broken once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tilegrad.errors import FormatError
from tilegrad.rects import RectGraph, RectOperator, RectRole, check_rect_graph, training_step
from tilegrad.region import Box

GRAPH = training_step(batch=2, image=(9, 9), channels=1, layers=[(3, 4), (2, 3)], classes=5, workers=(1, 1))[0]


def arrays(which: str, /, **change: Any) -> RectGraph:
    return replace(GRAPH, arrays=tuple(replace(a, **change) if a.name == which else a for a in GRAPH.arrays))


def operators(name: str, **change: Any) -> RectGraph:
    found = tuple(replace(op, **change) if op.name == name else op for op in GRAPH.operators)
    return replace(GRAPH, operators=found)


def more(op: RectOperator) -> RectGraph:
    return replace(GRAPH, operators=(*GRAPH.operators, op))


def without(name: str) -> RectGraph:
    return replace(GRAPH, operators=tuple(op for op in GRAPH.operators if op.name != name))


def cycle() -> RectGraph:
    return operators("L1.filterNL", inputs={"input": "L1.filterNL.output"})


def renamed() -> RectGraph:
    """A gradient of L0.x, which is not there."""

    def ports(found: Mapping[str, str]) -> dict[str, str]:
        return {port: array.replace("L0.a.grad", "L0.x.grad") for port, array in found.items()}

    changed = tuple(replace(op, inputs=ports(op.inputs), outputs=ports(op.outputs)) for op in GRAPH.operators)
    return replace(arrays("L0.a.grad", name="L0.x.grad"), operators=changed)


BROKEN: dict[str, tuple[Callable[[], RectGraph], str]] = {
    "twice": (lambda: replace(GRAPH, arrays=(*GRAPH.arrays, GRAPH.arrays[0])), "T1: 2 arrays or operators"),
    "no name": (lambda: arrays("L0.W", name=""), "T1"),
    "kind": (lambda: operators("L0.filter", kind="conv"), "T2: the kind 'conv' is not known"),
    "port gone": (lambda: operators("L0.filterA", inputs={"input": "L0.filter.output"}), "T2: .* has a port 'a'"),
    "port more": (lambda: operators("L0.filterNL", outputs={"output": "L0.filterNL.output", "x": "L0.a"}), "T2"),
    "no array": (lambda: operators("L0.filterNL", inputs={"input": "nothing"}), "T2: .*'nothing', which is no array"),
    "no such dist": (lambda: operators("data", dists={"dist_result": Box.full((1,))}), "T2: a source has no"),
    "dim 0": (lambda: arrays("L0.a", dim=(0,)), "T3"),
    "rank": (lambda: arrays("L0.a", read_rect=Box.full((1, 1))), "T3: read_rect"),
    "outside": (lambda: arrays("L0.a", read_rect=Box([(0, 2)])), "T3: read_rect .* not inside dim"),
    "backward": (lambda: arrays("L0.a", read_rect=Box([(1, 0)])), "T3"),
    "dist outside": (lambda: operators("L0.filterNL", dists={"dist_result": Box.full((9, 9, 9, 9))}), "T3: dist_"),
    "huge": (lambda: arrays("L0.a", dim=(2**31, 2**32)), "T3"),
    "param written": (lambda: arrays("L0.a", write_rect=Box.full((1,))), "T4: a param with a write_rect"),
    "no write_rect": (lambda: arrays("L0.filter.output", write_rect=None), "T4: a activation without"),
    "no zero": (lambda: without("L0.a.grad.set_zero"), "T4: a grad with 0 set_zero"),
    "no update": (lambda: without("update_L0.b"), "T4: a param with 0 updates"),
    "two writers": (
        lambda: more(replace(GRAPH.operator["L1.filterNL"], name="again")),
        "T4: a activation with 2 writers",
    ),
    "role": (lambda: arrays("data.labels_output", role=RectRole.GRAD), "T4"),
    "gradient of nothing": (renamed, "T5: a gradient, but of no array"),
    "gradient's dim": (lambda: arrays("L0.a.grad", dim=(2,)), "T5: dim .2., and that of 'L0.a'"),
    "cycle": (cycle, "T6: it waits for what it makes itself"),
    "kernel": (
        lambda: replace(
            GRAPH,
            arrays=tuple(
                replace(a, dim=(4, 1, 1, 1, 4, 3, 7, 7)) if a.name in ("L0.W", "L0.W.grad") else a for a in GRAPH.arrays
            ),
        ),
        "T7: dims that do not fit a locally_connected",
    ),
    "result_dim": (lambda: operators("L0.filter", result_dim=(2, 4, 7, 8)), "T7: result_dim"),
    "written": (
        lambda: operators("L0.filterNL", dists={"dist_result": Box([(0, 2), (0, 4), (0, 7), (0, 6)])}),
        "T8: dist_result",
    ),
    "gradient's rect": (
        lambda: arrays("L0.b.grad", read_rect=Box([(0, 1), (0, 4), (0, 7), (0, 6)])),
        "T8: the params' rect",
    ),
    "read": (lambda: arrays("data.raw_output", read_rect=Box([(0, 2), (0, 1), (0, 9), (0, 8)])), "T8: dist_input"),
}


def test_the_graph_itself_keeps_them() -> None:
    check_rect_graph(GRAPH)


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    make, message = BROKEN[name]
    with pytest.raises(FormatError, match=f"rule {message}"):
        check_rect_graph(make())


def test_equal_in_any_order_and_under_any_name() -> None:
    turned = RectGraph(GRAPH.arrays[::-1], GRAPH.operators[::-1], "other")
    assert turned == GRAPH and hash(turned) == hash(GRAPH)
    assert arrays("L0.a", read_rect=Box([(0, 0)])) != GRAPH
    assert GRAPH != "graph"
