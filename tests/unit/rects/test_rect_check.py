"""Each rule of a step in rects, broken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rect_damage import content
from tilegrad.errors import FormatError
from tilegrad.ir import Graph, Held, Input, Kind, Node, TensorType
from tilegrad.rects import check_rects, training_step
from tilegrad.rects.step import arrays, inputs_of, listed, outputs_of, single_assignment
from tilegrad.region import Box

GRAPH = training_step(batch=2, image=(9, 9), channels=1, layers=[(3, 4), (2, 3)], classes=5, workers=(1, 1))[0]


def values(which: str, /, **change: Any) -> Graph:
    """Another array, and all that lives in it."""
    found = tuple(replace(v, **change) if which in (v.name, v.alias) else v for v in GRAPH.values)
    return replace(GRAPH, values=found)


def dim(which: str, *sizes: int) -> Graph:
    return values(which, type=TensorType(sizes))


def held(which: str, read: Box, write: Box | None) -> Graph:
    return values(which, held=Held(read, write))


def nodes(which: str, /, **change: Any) -> Graph:
    return replace(GRAPH, nodes=tuple(replace(n, **change) if n.name == which else n for n in GRAPH.nodes))


def rects(name: str, **given: Box) -> Graph:
    return nodes(name, attrs={key: listed(box) for key, box in given.items()})


def drafts() -> dict[str, Node]:
    """Operators as a file has them: their ports lead to arrays."""
    found = {}
    for n in GRAPH.nodes:
        inputs = tuple(Input(port, array.name) for port, array in inputs_of(GRAPH, n).items())
        found[n.name] = replace(n, inputs=inputs, outputs=tuple(a.name for a in outputs_of(GRAPH, n).values()))
    return found


def operators(*lost: str, **changed: Node) -> Graph:
    """The graph of other operators."""
    found = {name: node for name, node in (drafts() | changed).items() if name not in lost}
    return single_assignment(arrays(GRAPH), list(found.values()), "step")


def reads(name: str, **ports: str) -> Graph:
    inputs = tuple(Input(port, array) for port, array in ports.items())
    return operators(**{name: replace(drafts()[name], inputs=inputs)})


def renamed() -> Graph:
    """A gradient of L0.x, which is not there."""

    def other(name: str) -> str:
        return name.replace("L0.a.grad", "L0.x.grad")

    found = []
    for n in drafts().values():
        inputs = tuple(replace(i, value=other(i.value)) for i in n.inputs)
        found.append(replace(n, inputs=inputs, outputs=tuple(map(other, n.outputs))))
    return single_assignment([replace(a, name=other(a.name)) for a in arrays(GRAPH)], found, "step")


SEVEN = Box([(0, 2), (0, 4), (0, 7), (0, 6)])

BROKEN: dict[str, tuple[Callable[[], Graph], str]] = {
    "twice": (lambda: replace(GRAPH, values=(*GRAPH.values, GRAPH.values[0])), "G1: 2 values"),
    "array and operator": (lambda: nodes("data", name="L0.W"), "T1: 2 arrays or operators"),
    "no name": (lambda: nodes("data", name=""), "T1: a name without a letter"),
    "kind": (lambda: nodes("L0.filter", op="conv"), "T2: the kind 'conv' is not known"),
    "port gone": (lambda: reads("L0.filterA", input="L0.filter.output"), "T2: .* has a port 'a'"),
    "port more": (
        lambda: reads("L0.filterNL", input="L0.filterA.output", x="L0.a"),
        "T2: a nonlinearity has no port 'x'",
    ),
    "output gone": (
        lambda: nodes("classifier.evaluate.accuracy", op="nonlinearity"),
        "T2: a nonlinearity has a port 'output'",
    ),
    "output more": (
        lambda: nodes("data", op="set_zero"),
        "T2: a set_zero has 1 outputs, this has 2",
    ),
    "written by another": (lambda: nodes("L0.filterNL", outputs=("L0.filterNL.output", "L0.a")), "G3"),
    "no array": (lambda: reads("L0.filterNL", input="nothing"), "G2: value 'nothing' is not declared"),
    "no such dist": (lambda: rects("data", dist_result=Box.full((1,))), "T2: a source has no"),
    "dim 0": (lambda: values("L0.a", type=TensorType((0,)), held=None), "T3: dim .0."),
    "rank": (lambda: held("L0.a", Box.full((1, 1)), None), "G10: a rank reads"),
    "outside": (lambda: held("L0.a", Box([(0, 2)]), None), "G10: a rank reads .* not inside"),
    "writes outside": (
        lambda: held("L0.filter.output", Box.full((2, 4, 7, 7)), Box.full((2, 4, 7, 8))),
        "G10: a rank writes .* not inside",
    ),
    "backward": (lambda: held("L0.a", Box([(1, 0)]), None), "G10"),
    "dist outside": (lambda: rects("L0.filterNL", dist_result=Box.full((9, 9, 9, 9))), "T3: dist_"),
    "huge": (lambda: values("L0.a", type=TensorType((2**31, 2**32)), held=None), "T3"),
    "param written": (lambda: held("L0.a", Box.full((1,)), Box.full((1,))), "T4: a parameter with a write_rect"),
    "no write_rect": (lambda: held("L0.filter.output", Box.full((2, 4, 7, 7)), None), "T4: a activation without"),
    "no zero": (lambda: operators("L0.a.grad.set_zero"), "G3: gradient value is written 0 times"),
    "two zeros": (
        lambda: operators(again=replace(drafts()["L0.a.grad.set_zero"], name="again")),
        "G3: gradient value is written 2 times",
    ),
    "no update": (lambda: operators("update_L0.b"), "T4: a parameter with 0 updates"),
    "two updates": (
        lambda: operators(again=replace(drafts()["update_L0.b"], name="again")),
        "T4: a parameter with 2 updates",
    ),
    "update of nothing": (lambda: reads("update_L0.b", gradient="L0.b.grad"), "T2: a update has a port 'params'"),
    "updates left out": (lambda: replace(GRAPH, updates=()), "T4: a param is updated in place"),
    "not added to": (
        lambda: nodes("L0.filterNL.grad", inputs=GRAPH.node["L0.filterNL.grad"].inputs[:-1]),
        "T4: it must add to",
    ),
    "not in its memory": (
        lambda: replace(
            GRAPH, values=tuple(replace(v, alias=None) if v.name == "L0.W.grad_1" else v for v in GRAPH.values)
        ),
        "T4: it must add to",
    ),
    "two writers": (
        lambda: operators(again=replace(drafts()["L1.filterNL"], name="again")),
        "G3: activation value is written 2 times",
    ),
    "kind of an array": (lambda: values("data.labels_output", kind=Kind.GRADIENT), "T4: a gradient that is not set"),
    "zero": (lambda: values("classifier.softmax.output.grad", kind=Kind.ACTIVATION), "T4: a activation that is set"),
    "gradient of nothing": (renamed, "T5: a gradient, but of no array"),
    "gradient's dim": (lambda: dim("L0.a.grad", 2), "T5: dim .2., and that of 'L0.a'"),
    "cycle": (lambda: reads("L1.filterNL", input="L1.filterNL.output"), "G4: .* is read before it is written"),
    "forward waits for backward": (
        lambda: reads("L0.filterNL", input="L0.filterA.output.grad"),
        "G4: .* is read before it is written",
    ),
    "forward reads a gradient": (
        lambda: reads("classifier.evaluate.accuracy", input="L0.W.grad"),
        "G4: 'L0.W.grad' is read before it is written",
    ),
    "kernel": (
        lambda: replace(
            GRAPH,
            values=tuple(
                replace(v, type=TensorType((4, 1, 1, 1, 4, 3, 7, 7))) if v.name.startswith("L0.W") else v
                for v in GRAPH.values
            ),
        ),
        "T6: dims that do not fit a locally_connected",
    ),
    "written": (lambda: rects("L0.filterNL", dist_result=SEVEN), "T7: dist_result"),
    "gradient's rect": (
        lambda: held("L0.b.grad", Box([(0, 1), (0, 4), (0, 7), (0, 6)]), Box.full((1, 4, 7, 7))),
        "T7: the params' rect",
    ),
    "read": (
        lambda: held("data.raw_output", Box([(0, 2), (0, 1), (0, 9), (0, 8)]), Box.full((2, 1, 9, 9))),
        "T7: dist_input",
    ),
}


def test_the_graph_itself_keeps_them() -> None:
    check_rects(GRAPH)
    assert content(operators()) == content(GRAPH)


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    make, message = BROKEN[name]
    with pytest.raises(FormatError, match=f"rule {message}"):
        check_rects(make())


def test_the_same_in_any_order_and_under_any_name() -> None:
    turned = single_assignment(arrays(GRAPH)[::-1], list(drafts().values())[::-1], "other")
    check_rects(turned)
    assert content(turned) == content(GRAPH)
    assert content(held("L0.a", Box([(0, 0)]), None)) != content(GRAPH)
