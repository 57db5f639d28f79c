"""Read a graph of rects from JSON: the repaired drawing, or what `format_rect_json` wrote.

    {"source": …, "counts": {…}, "totals": {…},
     "arrays": [{"name", "dim", "role", "read_rect", "write_rect", "writers", "readers"}, …],
     "operators": [{"name", "kind", "inputs", "outputs", "result_dim", "attrs"}, …],
     "edges": [{"src", "dst", "port", "evidence"}, …]}

Names, dims and rects of arrays and the ports of operators make the graph. All else says it once more: where it is
there it must agree. Keys that are not known are passed over.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from ...errors import FormatError
from ...ir import Graph, Input, Kind, Node, Value
from ...rects import KINDS, check_rects, format_rect_json
from ...rects.step import ROLES, Edge, edges, is_rect, make_array, result_dim, single_assignment, with_evidence
from ...region import Box
from ..json_walk import JsonWalk, Progress, open_json

MOST_NODES, MOST_RANK, LONGEST_NAME, LARGEST_SIDE = 200_000, 16, 500, 2**31 - 1
_HEAD = re.compile(rb'\s*\{\s*"(?:source|name|arrays|legend|counts)"\s*:')
_MARK = re.compile(rb'"(?:read_rect|write_rect|dist_\w+|weights_dims|by_kind|edges_seen)"\s*:')
_KINDS = {"param": Kind.PARAMETER, "grad": Kind.GRADIENT}
_EVIDENCE = ("counted", "inferred", "seen")
_SAID = ("role", "writers", "readers")


def sniff_rect_json(head: bytes) -> bool:
    """An object that begins like ours and speaks of rects."""
    return bool(_HEAD.match(head) and _MARK.search(head))


def load_rect_json(path: str | Path, progress: Progress | None = None) -> Graph:
    """The graph in this file. Raises `FormatError` where it cannot be read or contradicts itself."""
    path = Path(path)
    walk = open_json(path, progress)
    found: dict[str, list[Any]] = {}
    said: dict[str, Any] = {}
    names: dict[str, dict[str, Any]] = {}
    name = path.stem
    for key in walk.members():
        if key == "arrays":
            found[key] = _items(walk, lambda: _array(walk, walk.value(), names))
        elif key == "operators":
            found[key] = _items(walk, lambda: _operator(walk, walk.value(), names))
        elif key == "edges":
            said[key] = _items(walk, lambda: _edge(walk, walk.value()))
        elif key in ("counts", "totals"):
            said[key] = walk.value()
        elif key == "source":
            name = _text(walk, walk.value(), ())
        else:
            walk.skip()
    walk.end()
    for key in ("arrays", "operators"):
        if key not in found:
            raise FormatError(f"no '{key}'", where=path.name)
    graph = single_assignment(found["arrays"], found["operators"], name)
    check_rects(graph)
    graph = with_evidence(graph, {edge: how for edge, how in said.get("edges", ()) if how is not None})
    _check_said(graph, said, names, path.name)
    return graph


def _items(walk: JsonWalk, take: Any) -> list[Any]:
    found = []
    for at in walk.items():
        if at >= MOST_NODES:
            walk.fail(f"more than {MOST_NODES}")
        found.append(take())
    return found


def _name(walk: JsonWalk, raw: dict[str, Any], names: dict[str, dict[str, Any]]) -> str:
    """The name of an array or an operator; what else is said of it is kept, to be compared."""
    name = _text(walk, raw["name"], ("name",))
    if name in names:
        walk.fail(f"a second array or operator called '{name[:80]}'", inside=("name",))
    names[name] = {key: _in_order(raw[key]) for key in (*_SAID, "result_dim") if raw.get(key) is not None}
    return name


def _array(walk: JsonWalk, raw: Any, names: dict[str, dict[str, Any]]) -> Value:
    _object(walk, raw, ("name", "dim", "role", "read_rect", "write_rect"), ())
    name = _name(walk, raw, names)
    if raw["role"] not in ROLES:
        walk.fail(f"the role must be one of {', '.join(sorted(ROLES))}", inside=("role",))
    dim = _numbers(walk, raw["dim"], ("dim",))
    read = _rect(walk, raw["read_rect"], ("read_rect",))
    write = None if raw["write_rect"] is None else _rect(walk, raw["write_rect"], ("write_rect",))
    return make_array(name, dim, _KINDS.get(raw["role"], Kind.ACTIVATION), read, write)


def _operator(walk: JsonWalk, raw: Any, names: dict[str, dict[str, Any]]) -> Node:
    _object(walk, raw, ("name", "kind", "inputs", "outputs"), ())
    name, op = _name(walk, raw, names), _text(walk, raw["kind"], ("kind",))
    if (kind := KINDS.get(op)) is None:
        walk.fail(f"the kind '{op[:80]}' is not known", inside=("kind",))
    inputs, outputs = (_ports(walk, raw[key], key) for key in ("inputs", "outputs"))
    if not set(kind.outputs) - set(kind.optional) <= set(outputs) <= set(kind.outputs):
        walk.fail(f"the outputs of a {op} are {', '.join(kind.outputs) or 'none'}", inside=("outputs",))
    attrs = raw.get("attrs", {})
    _object(walk, attrs, (), ("attrs",))
    for key, value in attrs.items():
        if key == "evidence":
            walk.fail("evidence is said of edges", inside=("attrs", key))
        (_rect if is_rect(key) else _plain)(walk, value, ("attrs", _text(walk, key, ("attrs",))))
    reads = tuple(Input(port, array) for port, array in inputs.items())
    writes = tuple(outputs[port] for port in kind.outputs if port in outputs)
    return Node(name, op, reads, writes, MappingProxyType(attrs))


def _ports(walk: JsonWalk, raw: Any, key: str) -> dict[str, str]:
    _object(walk, raw, (), (key,))
    return {_text(walk, port, (key,)): _text(walk, array, (key, port)) for port, array in raw.items()}


def _edge(walk: JsonWalk, raw: Any) -> tuple[Edge, str | None]:
    _object(walk, raw, ("src", "dst", "port"), ())
    src, dst, port = (_text(walk, raw[key], (key,)) for key in ("src", "dst", "port"))
    if (how := raw.get("evidence")) is not None and how not in _EVIDENCE:
        walk.fail(f"the evidence must be one of {', '.join(_EVIDENCE)}", inside=("evidence",))
    return (src, dst, port), how


def _object(walk: JsonWalk, raw: Any, keys: Iterable[str], inside: tuple[str, ...]) -> None:
    if not isinstance(raw, dict):
        walk.fail("an object must stand here", inside=inside)
    for key in keys:
        if key not in raw:
            walk.fail(f"the key '{key}' is missing", inside=inside)


def _text(walk: JsonWalk, raw: Any, inside: tuple[str, ...]) -> str:
    if not isinstance(raw, str) or not 0 < len(raw) <= LONGEST_NAME or not raw.isprintable():
        walk.fail(f"a text of 1 to {LONGEST_NAME} printable characters must stand here", inside=inside)
    return raw


def _plain(walk: JsonWalk, raw: Any, inside: tuple[str, ...]) -> None:
    if isinstance(raw, str):
        _text(walk, raw, inside)
    elif raw is not None and (not isinstance(raw, int | float) or not isfinite(raw) or abs(raw) > 2**62):
        walk.fail("an attribute must be a text, a number, true, false or null", inside=inside)


def _numbers(walk: JsonWalk, raw: Any, inside: tuple[str | int, ...]) -> tuple[int, ...]:
    if not isinstance(raw, list) or not 1 <= len(raw) <= MOST_RANK:
        walk.fail(f"a list of 1 to {MOST_RANK} numbers must stand here", inside=inside)
    for number in raw:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LARGEST_SIDE:
            walk.fail(f"a whole number from 0 to {LARGEST_SIDE} must stand here", inside=inside)
    return tuple(raw)


def _rect(walk: JsonWalk, raw: Any, inside: tuple[str, ...]) -> Box:
    if not isinstance(raw, list) or len(raw) != 2:
        walk.fail("a rect must be [begin, end]", inside=inside)
    begin, end = (_numbers(walk, part, (*inside, at)) for at, part in enumerate(raw))
    if len(begin) != len(end):
        walk.fail("a rect whose begin and end have different ranks", inside=inside)
    return Box(zip(begin, end, strict=True))


def _check_said(graph: Graph, said: dict[str, Any], names: dict[str, dict[str, Any]], file: str) -> None:
    """What the file says of the graph must be so."""
    if "edges" in said:
        wrong = Counter(edges(graph))
        wrong.subtract(edge for edge, _ in said["edges"])
        for (src, dst, port), times in wrong.items():
            if times:
                what = "is missing" if times > 0 else "is no port of an operator, or stands twice"
                _contradicted(f"the edge {src} {port} {dst} {what}", f"{file} (edges)")
    ours = json.loads(format_rect_json(graph))
    ours["arrays"] = {one["name"]: {key: _in_order(one[key]) for key in _SAID} for one in ours["arrays"]}
    ours["operators"] = {node.name: {"result_dim": list(result_dim(graph, node))} for node in graph.nodes}
    for part in ("arrays", "operators"):
        said[part] = {name: names[name] for name in ours[part]}
    for part in ("counts", "totals", "arrays", "operators"):
        _check_part(ours[part], said.get(part, {}), f"{file} ({part}")


def _in_order(found: Any) -> Any:
    """Users in whatever order they are listed."""
    return sorted(found) if isinstance(found, list) and all(isinstance(item, str) for item in found) else found


def _check_part(ours: Any, found: Any, where: str) -> None:
    if not isinstance(found, dict):
        _contradicted("an object must stand here", f"{where})")
    for key, value in found.items():
        place = f"{where}.{str(key)[:80]}"
        mine = ours.get(key)
        if isinstance(mine, dict):
            _check_part(mine, value, place)
        elif (key in ours or (isinstance(key, str) and key.startswith("edges_"))) and value != mine:
            _contradicted(f"{str(value)[:80]}, but the graph has {mine}", f"{place})")


def _contradicted(what: str, where: str) -> NoReturn:
    raise FormatError(what, where=where, hint="arrays and operators must agree with what else the file says")
