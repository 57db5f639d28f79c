"""What makes a graph legal, one rule each.

Rule G1  Names are unique among values, and among nodes.
Rule G2  Every value a node reads or writes, the graph's outputs and its updates are declared.
Rule G3  A computed value is written by exactly one node; an outside value by none.
Rule G4  A node reads only what earlier nodes wrote (so the graph has no cycle).
Rule G5  Retained roles and gradients are read in the backward phase only; parameters keep their role.
Rule G6  Phases come in order: forward, then backward, then update.
Rule G7  Shapes are non-negative and dtypes known.
Rule G8  An update replaces a buffer, input or parameter by a value of the same type.
Rule G9  An alias lives in the memory of a value declared before it, and is no larger.
Rule G10 The boxes that a rank has of a value lie inside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ..errors import FormatError
from .graph import Graph, Kind, Phase, Role
from .types import DTYPE_BYTES

Problem = tuple[str, str]  # where, what
Rules = Mapping[str, Callable[[Graph], Iterator[Problem]]]


def check_graph(graph: Graph, more: Rules = MappingProxyType({})) -> None:
    """Raise `FormatError` naming the first broken rule: of those above, then of those that a kind of graph adds."""
    for rule, find in (*RULES.items(), *more.items()):
        for where, what in find(graph):
            raise FormatError(f"graph '{graph.name}' breaks rule {rule}: {what}", where=where)


def _unique(graph: Graph) -> Iterator[Problem]:
    for what, names in (("value", [v.name for v in graph.values]), ("node", [n.name for n in graph.nodes])):
        for name, times in Counter(names).items():
            if times > 1:
                yield name, f"{times} {what}s are called '{name}'"


def _declared(graph: Graph) -> Iterator[Problem]:
    known = {v.name for v in graph.values}
    for node in graph.nodes:
        for name in (*node.reads, *node.outputs):
            if name not in known:
                yield node.describe(), f"value '{name}' is not declared"
    for name in (*graph.outputs, *(name for pair in graph.updates for name in pair)):
        if name not in known:
            yield "outputs", f"value '{name}' is not declared"


def _written_once(graph: Graph) -> Iterator[Problem]:
    writers = Counter(out for node in graph.nodes for out in node.outputs)
    for value in graph.values:
        expected = 1 if value.kind.computed else 0
        if writers[value.name] != expected:
            yield value.name, f"{value.kind} value is written {writers[value.name]} times, not {expected}"


def _ordered(graph: Graph) -> Iterator[Problem]:
    ready = set(graph.outside)
    for node in graph.nodes:
        for name in node.reads:
            if name not in ready:
                yield node.describe(), f"'{name}' is read before it is written"
        ready.update(node.outputs)


def _roles(graph: Graph) -> Iterator[Problem]:
    backward_only = (Role.GRADIENT, Role.RETAINED_INPUT, Role.RETAINED_OUTPUT, Role.SUM)
    for node in graph.nodes:
        for i in node.inputs:
            if i.role in backward_only and node.phase is Phase.FORWARD:
                yield node.describe(), f"a forward node reads '{i.value}' as {i.role}"
            if i.role is Role.PARAMETER and graph.value[i.value].kind is Kind.INPUT:
                yield node.describe(), f"input '{i.value}' is read as a parameter"


def _phases(graph: Graph) -> Iterator[Problem]:
    order = list(Phase)
    latest = 0
    for node in graph.nodes:
        if order.index(node.phase) < latest:
            yield node.describe(), f"{node.phase} comes after {order[latest]}"
        latest = max(latest, order.index(node.phase))


def _types(graph: Graph) -> Iterator[Problem]:
    for value in graph.values:
        if value.type.dtype not in DTYPE_BYTES:
            yield value.name, f"dtype '{value.type.dtype}' is not known"
        if any(n < 0 for n in value.type.shape):
            yield value.name, f"shape {value.type.shape} has a negative size"


def _updates(graph: Graph) -> Iterator[Problem]:
    for old, new in graph.updates:
        if graph.value[old].kind.computed:
            yield old, f"the update target '{old}' is computed in the graph"
        if graph.type(old) != graph.type(new):
            yield old, f"'{new}' ({graph.type(new)}) cannot replace '{old}' ({graph.type(old)})"


def _aliases(graph: Graph) -> Iterator[Problem]:
    before: set[str] = set()
    for value in graph.values:
        if value.alias is not None:
            if value.alias not in before:
                yield value.name, f"it lives in '{value.alias}', which is not declared before it"
            elif graph.type(value.alias).bytes < value.type.bytes:
                yield value.name, f"it is larger than '{value.alias}', in whose memory it lives"
        before.add(value.name)


def _held(graph: Graph) -> Iterator[Problem]:
    for value in graph.values:
        for verb, box in (("reads", value.held.read), ("writes", value.held.write)) if value.held else ():
            if box is not None and not box.inside(value.type.shape):
                yield value.name, f"a rank {verb} {box}, which is not inside {value.type}"


RULES: Rules = {
    "G1": _unique,
    "G2": _declared,
    "G3": _written_once,
    "G4": _ordered,
    "G5": _roles,
    "G6": _phases,
    "G7": _types,
    "G8": _updates,
    "G9": _aliases,
    "G10": _held,
}
