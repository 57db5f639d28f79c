"""Rewrite nodes that mix a local part with a reduction (normalisations, reduced losses) into simpler ones, after axes
that views have merged are kept apart (`unmerge`).

Afterwards every node is local, a fold or whole, and nothing has side effects: what a layer remembers (running
statistics) is a value that replaces its buffer after the step.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir import Build, Graph, Input, Node, check_graph
from ..ops import Call, Reduction, find
from .axes import label_axes
from .unmerge import unmerge_graph


def lower_graph(graph: Graph) -> Graph:
    """The same computation in nodes that a walk over tiles can run."""
    before = [graph.value[name].away for name in graph.outputs]
    graph = unmerge_graph(graph)
    axes = label_axes(graph)
    build = Build(graph.name)
    renamed: dict[str, str] = {}
    for value in graph.values:
        if not value.kind.computed:
            build.values[value.name] = value
    for original in graph.nodes:
        node = _rename(original, renamed)
        build.source, build.prefix = node.source, f"{node.name}."
        call = Call(node, tuple(map(build.type, node.reads)), tuple(map(graph.type, node.outputs)))
        tiled = tuple(axes.dims[original.reads[0]].values()) if original.inputs else ()
        found = find(node).lower(call, build, tiled)
        if found is not None:
            renamed[node.outputs[0]] = found
        else:
            build.values[node.outputs[0]] = graph.value[node.outputs[0]]
            build.nodes.append(node)
    _take_inputs_in(build)
    build.updates += [(old, renamed.get(new, new)) for old, new in graph.updates]
    lowered = build.graph([renamed.get(name, name) for name in graph.outputs])
    lowered = lowered.with_away({new for old, new in zip(before, lowered.outputs, strict=True) if old})
    check_graph(lowered)
    return graph if lowered == graph else lowered


def _take_inputs_in(build: Build) -> None:
    """A fold accumulates what a walk makes, so an input that is folded is first taken into the walk."""
    nodes, build.nodes = build.nodes, []
    for node in nodes:
        first = node.inputs[0].value if node.inputs else ""
        if isinstance(find(node), Reduction) and not build.values[first].kind.computed:
            build.source, build.prefix = node.source, f"{node.name}."
            alias = build.emit("alias", [("self", first)], build.type(first), target="aten.alias.default")
            node = replace(node, inputs=(Input(node.inputs[0].arg, alias), *node.inputs[1:]))
        build.nodes.append(node)


def _rename(node: Node, renamed: dict[str, str]) -> Node:
    if not any(i.value in renamed for i in node.inputs):
        return node
    return replace(node, inputs=tuple(replace(i, value=renamed.get(i.value, i.value)) for i in node.inputs))
