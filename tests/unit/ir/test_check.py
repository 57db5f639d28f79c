"""Every legality rule, broken once; and the graph they are broken from is legal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reference_graphs import NAMES, reference_graph
from tilegrad.errors import FormatError
from tilegrad.ir import Graph, Held, Input, Kind, Node, Phase, Role, TensorType, Value, check_graph
from tilegrad.ir.check import RULES
from tilegrad.region import Box

T = TensorType((2, 3))
X, W, B = Value("x", T, Kind.INPUT), Value("w", T, Kind.PARAMETER, "w"), Value("b", T, Kind.BUFFER, "b")
Y, Z = Value("y", T), Value("z", T)
MUL = Node("mul", "mul", (Input("self", "x"), Input("other", "w", Role.PARAMETER)), ("y",))
ADD = Node("add", "add", (Input("self", "y"), Input("other", "b")), ("z",))
LEGAL = Graph((X, W, B, Y, Z), (MUL, ADD), ("z",), (("b", "z"),), "g")


def test_the_example_is_legal() -> None:
    check_graph(LEGAL)
    check_graph(split(Box([(0, 2), (1, 1)]), Box([(0, 1), (0, 3)])))


def test_a_kind_of_graph_may_add_rules() -> None:
    with pytest.raises(FormatError, match="breaks rule Q1: there is one") as error:
        check_graph(LEGAL, {"Q1": lambda graph: iter([(graph.nodes[0].name, "there is one")])})
    assert error.value.where == "mul"


@pytest.mark.parametrize("name", NAMES)
def test_captured_networks_are_legal(name: str) -> None:
    check_graph(reference_graph(name))


def reads(node: Node, *inputs: Input) -> Node:
    return replace(node, inputs=inputs)


def split(read: Box, write: Box | None = None) -> Graph:
    return replace(LEGAL, values=(replace(X, held=Held(read, write)), W, B, Y, Z))


BROKEN = [
    ("G1", replace(LEGAL, values=(*LEGAL.values, X)), "2 values are called 'x'", "x"),
    ("G1", replace(LEGAL, nodes=(MUL, ADD, replace(ADD, outputs=()))), "2 nodes are called 'add'", "add"),
    ("G2", replace(LEGAL, nodes=(MUL, reads(ADD, Input("self", "v")))), "value 'v' is not declared", "add 'add'"),
    ("G2", replace(LEGAL, nodes=(MUL, ADD, replace(ADD, name="c", outputs=("u",)))), "'u' is not declared", "add 'c'"),
    ("G2", replace(LEGAL, outputs=("gone",)), "value 'gone' is not declared", "outputs"),
    ("G2", replace(LEGAL, updates=(("b", "gone"),)), "value 'gone' is not declared", "outputs"),
    ("G3", replace(LEGAL, nodes=(MUL, ADD, replace(MUL, name="m2"))), "value is written 2 times, not 1", "y"),
    ("G3", replace(LEGAL, nodes=(MUL, replace(ADD, outputs=("z", "x")))), "input value is written 1 times, not 0", "x"),
    ("G3", replace(LEGAL, nodes=(MUL,)), "activation value is written 0 times, not 1", "z"),
    ("G4", replace(LEGAL, nodes=(ADD, MUL)), "'y' is read before it is written", "add 'add'"),
    ("G4", replace(LEGAL, nodes=(MUL, reads(ADD, Input("self", "z")))), "'z' is read before it", "add 'add'"),
    (
        "G5",
        replace(LEGAL, nodes=(MUL, reads(ADD, Input("grad", "y", Role.GRADIENT)))),
        "a forward node reads 'y' as gradient",
        "add 'add'",
    ),
    (
        "G5",
        replace(LEGAL, nodes=(reads(MUL, Input("self", "x", Role.PARAMETER)), ADD)),
        "input 'x' is read as a parameter",
        "mul 'mul'",
    ),
    ("G6", replace(LEGAL, nodes=(replace(MUL, phase=Phase.BACKWARD), ADD)), "comes after backward", "add 'add'"),
    ("G7", replace(LEGAL, values=(X, W, B, Y, Value("z", TensorType((2,), "float3")))), "'float3' is not known", "z"),
    ("G7", replace(LEGAL, values=(X, W, B, Y, Value("z", TensorType((2, -1))))), r"\(2, -1\) has a negative size", "z"),
    ("G8", replace(LEGAL, updates=(("y", "z"),)), "the update target 'y' is computed in the graph", "y"),
    (
        "G8",
        replace(LEGAL, values=(X, W, Value("b", TensorType((4,)), Kind.BUFFER), Y, Z)),
        r"'z' \(float32\[2, 3\]\) cannot replace 'b' \(float32\[4\]\)",
        "b",
    ),
    ("G9", replace(LEGAL, values=(X, W, B, replace(Y, alias="z"), Z)), "'z', which is not declared before it", "y"),
    (
        "G9",
        replace(LEGAL, values=(Value("s", TensorType(()), Kind.INPUT), X, W, B, Y, replace(Z, alias="s"))),
        "it is larger than 's'",
        "z",
    ),
    ("G10", split(Box([(0, 2)])), r"a rank reads \[0:2\], which is not inside float32\[2, 3\]", "x"),
    ("G10", split(Box([(0, 2), (2, 1)])), r"a rank reads \[0:2 2:1\]", "x"),
    ("G10", split(Box([(0, 2), (-1, 1)])), r"a rank reads \[0:2 -1:1\]", "x"),
    ("G10", split(Box([(0, 2), (0, 1)]), Box([(0, 3), (0, 1)])), r"a rank writes \[0:3 0:1\]", "x"),
]


@pytest.mark.parametrize(("rule", "graph", "message", "where"), BROKEN, ids=[f"{b[0]}-{b[3]}" for b in BROKEN])
def test_a_broken_rule_is_named(rule: str, graph: Graph, message: str, where: str) -> None:
    with pytest.raises(FormatError, match=f"graph 'g' breaks rule {rule}: .*{message}") as caught:
        check_graph(graph)
    assert caught.value.where == where


def test_every_rule_is_broken_above() -> None:
    assert {rule for rule, *_ in BROKEN} == set(RULES)


def test_retained_values_are_read_in_backward() -> None:
    """The mirror of G5: what a forward node may not read, a backward node may."""
    back = replace(ADD, phase=Phase.BACKWARD, inputs=(Input("self", "y", Role.RETAINED_INPUT),))
    check_graph(replace(LEGAL, nodes=(MUL, back)))
