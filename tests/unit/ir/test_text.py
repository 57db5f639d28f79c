"""The text form: parse(format(graph)) is the graph, and what is not a graph is an error with its line."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_graphs import NAMES, reference_graph
from thorough import often
from tilegrad.errors import FormatError
from tilegrad.ir import (
    Graph,
    Held,
    Input,
    Kind,
    Node,
    Phase,
    Role,
    Source,
    TensorType,
    Value,
    format_graph,
    parse_graph,
)
from tilegrad.region import Box

ODD = ["a b", 'say "hi"', "back\\slash", "ünï→", "f(x)", "} @ {", "a: b, c: d", "-> y {}", "as", "", "\n", "\u2028"]
names = st.sampled_from(
    [*ODD, "x", "layer1.0.conv", "forward", "float", "in", "reads", "writes", "away", "on"]
) | st.text(max_size=6)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | names
attributes = st.recursive(scalars, lambda part: st.lists(part, max_size=3) | st.dictionaries(names, part, max_size=2))
inputs = st.builds(Input, names, names, st.sampled_from(Role))
shapes = st.lists(st.integers(-1, 10**9), max_size=4).map(tuple)
types = st.builds(TensorType, shapes, st.sampled_from(["float32", "bool"]))
boxes = st.lists(st.tuples(st.integers(-9, 10**9), st.integers(-9, 10**9)), max_size=3).map(Box)
held = st.none() | st.builds(Held, boxes, st.none() | boxes)
axes = st.lists(st.tuples(st.sampled_from("ndhw"), st.integers(0, 5)), max_size=3).map(tuple)
values = st.builds(
    Value, names, types, st.sampled_from(Kind), st.none() | names, st.none() | names, held, st.booleans(), axes
)
nodes = st.builds(
    Node,
    name=names,
    op=names,
    inputs=st.lists(inputs, max_size=3).map(tuple),
    outputs=st.lists(names, max_size=2).map(tuple),
    attrs=st.dictionaries(names, attributes, max_size=3).map(MappingProxyType),
    target=names,
    phase=st.sampled_from(Phase),
    source=st.builds(Source, names, names),
    time_s=st.none() | st.floats(),
)
graphs = st.builds(
    Graph,
    st.lists(values, max_size=4).map(tuple),
    st.lists(nodes, max_size=3).map(tuple),
    st.lists(names, max_size=2).map(tuple),
    st.lists(st.tuples(names, names), max_size=2).map(tuple),
    names,
)


def comparable(graph: Graph) -> Graph:
    """NaN differs from itself: let it be a word."""

    def still(item: Any) -> Any:
        if isinstance(item, float) and math.isnan(item):
            return "not a number"
        if isinstance(item, dict | MappingProxyType):
            return {key: still(value) for key, value in item.items()}
        return [still(each) for each in item] if isinstance(item, list) else item

    return replace(graph, nodes=tuple(replace(n, attrs=still(n.attrs), time_s=still(n.time_s)) for n in graph.nodes))


@settings(max_examples=often(100, 300))
@given(graphs)
def test_parse_undoes_format(graph: Graph) -> None:
    assert comparable(parse_graph(format_graph(graph))) == comparable(graph)


@pytest.mark.parametrize("name", NAMES)
def test_reference_networks_survive(name: str) -> None:
    graph = reference_graph(name)
    assert parse_graph(format_graph(graph)) == graph


@pytest.mark.parametrize("number", [math.inf, -math.inf, 1e-320, -0.0, 0.1 + 0.2])
def test_odd_floats_survive(number: float) -> None:
    node = Node("n", "pad", (), (), MappingProxyType({"value": number, "float": number}))
    (back,) = parse_graph(format_graph(Graph((), (node,)))).nodes
    assert [repr(v) for v in back.attrs.values()] == [repr(number)] * 2


def test_the_documented_form() -> None:
    text = (
        'graph resnet18\nvalue x: float32[1, 3, 64, 64] input\nvalue weight: float32[8] parameter "conv.weight"\n'
        "value y: float32[1, 8, 64, 64] activation\n"
        'node conv2d = conv2d(input: x, weight: weight as parameter) -> y {"stride": [1, 1]} @ {"line": "net.py:3"}\n'
        "output y\n"
    )
    graph = parse_graph(text)
    assert graph.name == "resnet18" and graph.outputs == ("y",)
    assert graph.node["conv2d"].inputs[1] == Input("weight", "weight", Role.PARAMETER)
    assert graph.node["conv2d"].source.line == "net.py:3"
    assert format_graph(graph) == text.replace('"conv.weight"', "conv.weight")


def test_boxes_of_a_rank() -> None:
    line = "value x: float32[4, 8] activation in y reads 0:4,0:5 writes 0:4,0:4\n"
    (value,) = parse_graph(line).values
    assert value.alias == "y" and value.held == Held(Box.full((4, 5)), Box.full((4, 4)))
    assert format_graph(Graph((value,), ())) == "graph graph\n" + line
    (value,) = parse_graph("value reads: float32[] parameter reads -\n").values
    assert value.name == "reads" and value.target is None and value.held == Held(Box(()))


def test_empty_lines_are_skipped() -> None:
    assert parse_graph("graph g\n\n  \noutput x\n") == Graph((), (), ("x",), (), "g")


GOOD = "graph g\nvalue x: float32[2] input\n"
NODE = "node a = relu(self: x) -> y "
BROKEN = {
    "unknown word": "tensor x: float32[2]",
    "unknown kind": "value y: float32[2] weight",
    "no shape": "value y: float32 input",
    "minus minus": "value y: float32[--2] input",
    "fractional": "value y: float32[2.5] input",
    "no box": "value y: float32[2] input reads 0:2:3",
    "half a box": "value y: float32[2] input reads 0",
    "writes alone": "value y: float32[2] input writes 0:2",
    "unknown role": "node a = relu(self: x as king) -> y {} @ {}",
    "no source": NODE + "{}",
    "bad JSON": NODE + '{"a": } @ {}',
    "after the end": NODE + "{} @ {} and more",
    "list of attributes": NODE + "[] @ {}",
    "list as source": NODE + "{} @ []",
    "unknown phase": NODE + '{} @ {"phase": "sideways"}',
    "phase is a list": NODE + '{} @ {"phase": []}',
    "target is a number": NODE + '{} @ {"target": 3}',
    "time is a word": NODE + '{} @ {"time_s": "late"}',
    "unclosed quote": 'output "y',
    "bad escape": r'output "\q"',
    "no arrow": "update x y",
    "a digit first": "output 1x",
    "a thousand digits": f"value y: float32[{'9' * 5000}] input",
    "a huge integer": NODE + '{"a": ' + "9" * 5000 + "} @ {}",
    "float of a word": NODE + '{"a": {"float": "pi"}} @ {"phase": 1}',
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_named(line: str) -> None:
    with pytest.raises(FormatError, match=r"cannot read this line of the graph: .+") as caught:
        parse_graph(GOOD + line + "\noutput x\n")
    assert caught.value.where == "line 3"


DEEP = 100_000
HOSTILE = {
    "deep list": NODE + '{"a": ' + "[" * DEEP + "]" * DEEP + "} @ {}",
    "deep dict": NODE + '{"a":' * DEEP + "1" + "}" * DEEP + " @ {}",
    "many inputs, no end": "node a = relu(" + "self: x, " * 50_000,
    "many names, no end": "node a = relu(self: x) -> " + "y, " * 50_000,
    "many quotes": "output " + '"' * 100_001,
    "many escapes": 'output "' + "\\" * 100_001 + '"',
    "long plain name": "node " + "a" * 200_000,
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_an_error_and_soon(line: str) -> None:
    start = time.process_time()
    with pytest.raises(FormatError, match="cannot read this line of the graph") as caught:
        parse_graph(line)
    assert time.process_time() - start < 5
    assert caught.value.where == "line 1"
    assert len(str(caught.value)) < 1000


@settings(max_examples=200)
@given(
    st.text(max_size=60) | st.lists(st.sampled_from([*ODD, NODE, GOOD, "{}", " @ ", '"', "output ", "\n"])).map("".join)
)
def test_noise_is_an_error_or_a_graph(text: str) -> None:
    try:
        graph = parse_graph(text)
    except FormatError:
        return
    assert comparable(parse_graph(format_graph(graph))) == comparable(graph)
