"""The text form of a graph: one line per value and node, parsed back to the same graph.

    graph "resnet18"
    value x: float32[1, 3, 64, 64] input
    value weight: float32[8, 3, 3, 3] parameter "conv.weight"
    value z: float32[1, 8, 64, 64] activation in y
    value part: float32[8, 64] activation reads 0:8,0:34 writes 0:8,0:32
    value slide: float32[1, 3, 65536, 65536] input away
    node conv2d = conv2d(input: x, weight: weight as parameter) -> y {"stride": [1, 1]} @ {"target": …}
    output y
    update running_mean <- new_mean

Names that are not plain identifiers are quoted as JSON strings. No eval: lines are read by one regular
grammar, attributes by the JSON parser.
"""

from __future__ import annotations

import json
import re
from types import MappingProxyType
from typing import Any

from ..errors import FormatError
from ..region import Box
from .graph import Graph, Held, Input, Kind, Node, Phase, Role, Source, Value
from .types import TensorType

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_NAME = r'(?:[A-Za-z_][A-Za-z0-9_.]*|"(?:[^"\\]|\\.)*")'
_GRAPH = re.compile(rf"graph ({_NAME})")
_BOX = "([0-9:,-]+)"
_VALUE = re.compile(
    rf"value ({_NAME}): (\w+)\[([0-9, -]*)\] (\w+)(?: (?!in |reads |away$|away on |on )({_NAME}))?(?: in ({_NAME}))?"
    rf"(?: reads {_BOX}(?: writes {_BOX})?)?( away)?(?: on ([a-z][0-9]+(?:,[a-z][0-9]+)*))?"
)
_ONE_INPUT = rf"{_NAME}: {_NAME}(?: as \w+)?"
_NODE = re.compile(
    rf"node ({_NAME}) = ({_NAME})\(((?:{_ONE_INPUT}(?:, {_ONE_INPUT})*)?)\) -> ((?:{_NAME}(?:, {_NAME})*)?) "
)
_INPUT = re.compile(rf"({_NAME}): ({_NAME})(?: as (\w+))?")
_UPDATE = re.compile(rf"update ({_NAME}) <- ({_NAME})")
_OUTPUT = re.compile(rf"output ({_NAME})")


def format_graph(graph: Graph) -> str:
    lines = [f"graph {_quote(graph.name)}"]
    for v in graph.values:
        target = f" {_quote(v.target)}" if v.target is not None else ""
        alias = f" in {_quote(v.alias)}" if v.alias is not None else ""
        held = f" reads {v.held.read.text}" if v.held is not None else ""
        axes = f" on {','.join(f'{axis}{dim}' for axis, dim in v.axes)}" if v.axes else ""
        held += f" writes {v.held.write.text}" if v.held is not None and v.held.write is not None else ""
        lines.append(f"value {_quote(v.name)}: {v.type} {v.kind}{target}{alias}{held}{' away' if v.away else ''}{axes}")
    lines += [_format_node(n) for n in graph.nodes]
    lines += [f"output {_quote(name)}" for name in graph.outputs]
    lines += [f"update {_quote(old)} <- {_quote(new)}" for old, new in graph.updates]
    return "\n".join(lines) + "\n"


def _format_node(node: Node) -> str:
    inputs = ", ".join(
        f"{_quote(i.arg)}: {_quote(i.value)}" + ("" if i.role is Role.DATA else f" as {i.role}") for i in node.inputs
    )
    outputs = ", ".join(map(_quote, node.outputs))
    about = {
        "target": node.target,
        "phase": "" if node.phase is Phase.FORWARD else node.phase.value,
        "module": node.source.module,
        "line": node.source.line,
        "time_s": node.time_s,
    }
    said = {key: value for key, value in about.items() if value not in ("", None)}
    head = f"node {_quote(node.name)} = {_quote(node.op)}({inputs}) -> {outputs}"
    # An attribute may be infinite (the value of a pad): json writes and reads Infinity and NaN.
    return f"{head} {json.dumps(dict(node.attrs))} @ {json.dumps(said)}"


def parse_graph(text: str) -> Graph:
    """The inverse of `format_graph`; `FormatError` names the line that cannot be read."""
    name, values, nodes, outputs, updates = "graph", [], [], [], []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if match := _NODE.match(line):
                nodes.append(_parse_node(match, line[match.end() :]))
            elif match := _VALUE.fullmatch(line):
                values.append(_parse_value(match))
            elif match := _OUTPUT.fullmatch(line):
                outputs.append(_unquote(match[1]))
            elif match := _UPDATE.fullmatch(line):
                updates.append((_unquote(match[1]), _unquote(match[2])))
            elif match := _GRAPH.fullmatch(line):
                name = _unquote(match[1])
            elif line.strip():
                raise ValueError("not a graph, value, node, output or update line")
        except (ValueError, RecursionError) as error:
            raise FormatError(f"cannot read this line of the graph: {error}", where=f"line {number}") from None
    return Graph(tuple(values), tuple(nodes), tuple(outputs), tuple(updates), name)


def _parse_value(match: re.Match[str]) -> Value:
    shape = tuple(int(n) for n in match[3].split(",") if n.strip())
    target = _unquote(match[5]) if match[5] else None
    alias = _unquote(match[6]) if match[6] else None
    held = Held(Box.parse(match[7]), Box.parse(match[8]) if match[8] else None) if match[7] else None
    axes = tuple((each[0], int(each[1:])) for each in match[10].split(",")) if match[10] else ()
    type_, kind = TensorType(shape, match[2]), Kind(match[4])
    return Value(_unquote(match[1]), type_, kind, target, alias, held, bool(match[9]), axes)


def _parse_node(match: re.Match[str], rest: str) -> Node:
    decoder = json.JSONDecoder()
    attrs, end = decoder.raw_decode(rest)
    if rest[end : end + 3] != " @ ":
        raise ValueError("attributes must be followed by ' @ ' and the node's source")
    about = json.loads(rest[end + 3 :])
    if not isinstance(attrs, dict) or not isinstance(about, dict):
        raise ValueError("attributes and source must be JSON objects")
    inputs = tuple(
        Input(_unquote(i[1]), _unquote(i[2]), Role(i[3]) if i[3] else Role.DATA) for i in _INPUT.finditer(match[3])
    )
    outputs = tuple(_unquote(out) for out in re.findall(_NAME, match[4]))
    return Node(
        name=_unquote(match[1]),
        op=_unquote(match[2]),
        inputs=inputs,
        outputs=outputs,
        attrs=MappingProxyType(attrs),
        target=_word(about, "target"),
        phase=Phase(_word(about, "phase") or Phase.FORWARD),
        source=Source(_word(about, "module"), _word(about, "line")),
        time_s=_seconds(about),
    )


def _word(about: dict[str, Any], key: str) -> str:
    if not isinstance(found := about.get(key, ""), str):
        raise ValueError(f"{key} must be a string")
    return found


def _seconds(about: dict[str, Any]) -> float | None:
    found = about.get("time_s")
    if found is not None and (isinstance(found, bool) or not isinstance(found, int | float)):
        raise ValueError("time_s must be a number")
    return found


def _quote(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name not in ("in", "reads", "away", "on") else json.dumps(name)


def _unquote(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text
