"""Read a graph of rects from JSON: the repaired drawing, or what `format_rect_json` wrote.

    {"source": …, "counts": {…}, "totals": {…},
     "arrays": [{"name", "dim", "role", "read_rect", "write_rect", "writers", "readers"}, …],
     "operators": [{"name", "kind", "inputs", "outputs", "result_dim", "attrs"}, …],
     "edges": [{"src", "dst", "port", "evidence"}, …]}

Arrays and operators make the graph. All else says it once more: where it is there it must agree. Keys that are not
known are passed over.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from ...errors import FormatError
from ...rects import Array, Edge, Evidence, RectGraph, RectOperator, RectRole, check_rect_graph, format_rect_json
from ...rects.model import Dim
from ...region import Box
from ..json_walk import JsonWalk, Progress, open_json

MOST_NODES, MOST_RANK, LONGEST_NAME, LARGEST_SIDE = 200_000, 16, 500, 2**31 - 1
_HEAD = re.compile(rb'\s*\{\s*"(?:source|name|arrays|legend|counts)"\s*:')
_MARK = re.compile(rb'"(?:read_rect|write_rect|dist_\w+|weights_dims|by_kind|edges_seen)"\s*:')
_ROLES, _EVIDENCE = frozenset(map(str, RectRole)), frozenset(map(str, Evidence))


def sniff_rect_json(head: bytes) -> bool:
    """An object that begins like ours and speaks of rects."""
    return bool(_HEAD.match(head) and _MARK.search(head))


def load_rect_json(path: str | Path, progress: Progress | None = None) -> RectGraph:
    """The graph in this file. Raises `FormatError` where it cannot be read or contradicts itself."""
    path = Path(path)
    walk = open_json(path, progress)
    arrays: list[Array] | None = None
    operators: list[RectOperator] | None = None
    users: dict[str, tuple[Any, Any]] = {}
    said: dict[str, Any] = {}
    name = path.stem
    for key in walk.members():
        if key == "arrays":
            arrays = _items(walk, lambda: _array(walk, walk.value(), users))
        elif key == "operators":
            operators = _items(walk, lambda: _operator(walk, walk.value()))
        elif key == "edges":
            said[key] = _items(walk, lambda: _edge(walk, walk.value()))
        elif key in ("counts", "totals"):
            said[key] = walk.value()
        elif key == "source":
            name = _text(walk, walk.value(), ())
        else:
            walk.skip()
    walk.end()
    if arrays is None or operators is None:
        raise FormatError(f"no '{'arrays' if arrays is None else 'operators'}'", where=path.name)
    evidence = {edge: found for edge, found in said.get("edges", ()) if found is not None}
    graph = RectGraph(tuple(arrays), tuple(operators), name, MappingProxyType(evidence))
    check_rect_graph(graph)
    _check_said(graph, said, users, path.name)
    return graph


def _items(walk: JsonWalk, take: Any) -> list[Any]:
    found = []
    for at in walk.items():
        if at >= MOST_NODES:
            walk.fail(f"more than {MOST_NODES}")
        found.append(take())
    return found


def _array(walk: JsonWalk, raw: Any, users: dict[str, tuple[Any, Any]]) -> Array:
    _object(walk, raw, ("name", "dim", "role", "read_rect", "write_rect"), ())
    name = _text(walk, raw["name"], ("name",))
    if not isinstance(raw["role"], str) or raw["role"] not in _ROLES:
        walk.fail(f"the role must be one of {', '.join(sorted(_ROLES))}", inside=("role",))
    dim = _numbers(walk, raw["dim"], ("dim",))
    read = _rect(walk, raw["read_rect"], ("read_rect",))
    write = None if raw["write_rect"] is None else _rect(walk, raw["write_rect"], ("write_rect",))
    users[name] = raw.get("writers"), raw.get("readers")
    return Array(name, dim, RectRole(raw["role"]), read, write)


def _operator(walk: JsonWalk, raw: Any) -> RectOperator:
    _object(walk, raw, ("name", "kind", "inputs", "outputs"), ())
    name, kind = (_text(walk, raw[key], (key,)) for key in ("name", "kind"))
    ports = []
    for key in ("inputs", "outputs"):
        _object(walk, raw[key], (), (key,))
        found = {_text(walk, port, (key,)): _text(walk, array, (key, port)) for port, array in raw[key].items()}
        ports.append(MappingProxyType(found))
    result = None if raw.get("result_dim") is None else _numbers(walk, raw["result_dim"], ("result_dim",))
    dists: dict[str, Box] = {}
    attrs: dict[str, Any] = {}
    given = raw.get("attrs", {})
    _object(walk, given, (), ("attrs",))
    for key, value in given.items():
        if key.startswith("dist_") or key in ("read_rect", "write_rect"):
            dists[key] = _rect(walk, value, ("attrs", key))
        else:
            attrs[_text(walk, key, ("attrs",))] = _plain(walk, value, ("attrs", key))
    return RectOperator(name, kind, ports[0], ports[1], result, MappingProxyType(dists), MappingProxyType(attrs))


def _edge(walk: JsonWalk, raw: Any) -> tuple[Edge, Evidence | None]:
    _object(walk, raw, ("src", "dst", "port"), ())
    edge = Edge(*(_text(walk, raw[key], (key,)) for key in ("src", "dst", "port")))
    found = raw.get("evidence")
    if found is not None and (not isinstance(found, str) or found not in _EVIDENCE):
        walk.fail(f"the evidence must be one of {', '.join(sorted(_EVIDENCE))}", inside=("evidence",))
    return edge, None if found is None else Evidence(found)


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


def _plain(walk: JsonWalk, raw: Any, inside: tuple[str, ...]) -> Any:
    if raw is None or isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        return _text(walk, raw, inside)
    if not isinstance(raw, int | float) or not isfinite(raw) or abs(raw) > 2**62:
        walk.fail("an attribute must be a text, a number, true, false or null", inside=inside)
    return raw


def _numbers(walk: JsonWalk, raw: Any, inside: tuple[str | int, ...]) -> Dim:
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


def _check_said(graph: RectGraph, said: Mapping[str, Any], users: dict[str, tuple[Any, Any]], file: str) -> None:
    """What the file says of the graph must be so."""
    if "edges" in said:
        wrong = Counter(graph.edges)
        wrong.subtract(edge for edge, _ in said["edges"])
        for edge, times in wrong.items():
            if times:
                what = "is missing" if times > 0 else "is no port of an operator, or stands twice"
                _contradicted(f"the edge {edge.src} {edge.port} {edge.dst} {what}", f"{file} (edges)")
    ours = json.loads(format_rect_json(graph))
    for array in ours["arrays"]:
        for key, found in zip(("writers", "readers"), users[array["name"]], strict=True):
            alike = isinstance(found, list) and all(isinstance(item, str) for item in found)
            if found is not None and not (alike and sorted(found) == sorted(array[key])):
                what = f"the {key} of '{array['name'][:80]}' are {', '.join(array[key])[:200] or 'none'}"
                _contradicted(what, f"{file} (arrays)")
    for part in ("counts", "totals"):
        _check_part(ours[part], said.get(part, {}), f"{file} ({part}")


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
