"""For Graphviz: a profile's operators and what they hand to each other; a step in rects with its arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import InputError
from ..ir import Graph
from ..profile import Profile
from ..rects.step import arrays, dists_of, edges, held_of, result_dim, show
from ..units import format_bytes, format_seconds, printable

LABEL = 120  # characters of a line


def format_dot(profile: Profile) -> str:
    """The text of a .dot file: a box for every operator, an arrow for every value that another reads."""
    if not any(op.reads or op.writes for op in profile.operators):
        what = "the profile does not tell which operator reads what: there is nothing to draw"
        raise InputError(what, where=profile.name, hint="a MegEngine profile, or tilegrad.record()")
    return "\n".join(_lines(profile)) + "\n"


def _lines(profile: Profile) -> Iterator[str]:
    maker = {name: at for at, op in enumerate(profile.operators) for name in op.writes}
    size = {block.name: block.bytes for block in profile.blocks}
    yield f"digraph {_quote(profile.name)} {{"
    yield '  node [shape=box, fontname="sans-serif"];'
    for at, op in enumerate(profile.operators):
        parts = [op.type, op.module or op.name, format_seconds(op.span.kernel_s) if op.span is not None else ""]
        yield f"  n{at} [label={_label(parts)}];"
    for at, op in enumerate(profile.operators):
        for name in dict.fromkeys(op.reads):
            if name in maker and maker[name] != at:
                label = f" [label={_quote(format_bytes(size[name]))}]" if name in size else ""
                yield f"  n{maker[name]} -> n{at}{label};"
    yield "}"


def format_rects_dot(graph: Graph) -> str:
    """Arrays as boxes with their dims and rects, operators as ovals, ports on the arrows; dashed where inferred."""
    return "\n".join(_rect_lines(graph)) + "\n"


def _rect_lines(graph: Graph) -> Iterator[str]:
    number = {array.name: f"a{at}" for at, array in enumerate(arrays(graph))}
    number |= {name: f"o{at}" for at, name in enumerate(graph.node)}
    yield f"digraph {_quote(graph.name)} {{"
    yield '  node [fontname="sans-serif"];'
    for array in arrays(graph):
        held = held_of(array)
        label = [array.name, f"dim={show(array.type.shape)}", f"read_rect={held.read}", f"write_rect={held.write}"]
        yield f"  {number[array.name]} [shape=box, label={_label(label)}];"
    for node in graph.nodes:
        label = [node.name, "" if node.op == "linear_grad" else f"result_dim={show(result_dim(graph, node))}"]
        label += [f"{key}={rect}" for key, rect in dists_of(node).items()]
        yield f"  {number[node.name]} [shape=oval, label={_label(label)}];"
        for src, dst, port in edges(graph, node):
            style = ", style=dashed" if node.attrs.get("evidence", {}).get(port) == "inferred" else ""
            yield f"  {number[src]} -> {number[dst]} [label={_quote(port)}{style}];"
    yield "}"


def _label(lines: Iterable[str]) -> str:
    return '"' + "\\n".join(_escape(line[:LABEL]) for line in lines if line) + '"'


def _escape(text: str) -> str:
    """Text inside double quotes; Graphviz ends lines at control characters and reads backslashes."""
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _quote(text: str) -> str:
    return f'"{_escape(text)}"'
