"""Read a MegEngine graph profile into records, each checked where it stands.

    profiler.host.<op>.<thread>        {start, kern, end} in seconds; kern is -1 where no kernel ran
    profiler.device.<op>.<comp node>   the same by the device's clock, which has a zero of its own
    profiler.opr_footprint.<op>        flops, bytes, shapes, parameters
    graph_exec.comp_seq                ids of the operators that ran, in order
    graph_exec.operator.<id>           type, name, inputs, outputs; no parameters here
    graph_exec.var.<id>                where it lives, where it last lived, and what is inferred of its shape
    graph_exec.mem_chunk.chk<var>      memory that lives as long as the graph: constants

Oddities that are no errors: operators that never ran (and have no times), variables that never had memory (their
`prev_dev_ptr` is 0 and the key of its end is absent), workspaces of no bytes, variables that share another's memory,
names that cite ids of another graph (names are labels). An id that is *used* and not there is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from sys import intern
from typing import Any

from ...profile import Span
from ...profile.model import MOST_BYTES, Shape
from ..json_walk import JsonWalk, Progress, open_json

_LARGEST_RANK = 64


@dataclass(frozen=True, slots=True)
class OpRecord:
    id: str
    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VarRecord:
    id: str
    name: str
    node: str  # the comp node it lives on: "gpu0:0"
    flags: frozenset[str]
    address: int | None  # where it last lived
    bytes: int
    pointer: int | None  # where it lives now
    chunk: str | None
    offset: int  # in its chunk
    dtype: str | None
    source: str | None  # the variable whose memory it shares
    shape: Shape | None
    shape_tag: str  # how its shape is known: CONST, RT_STATIC, MISSING_INP, NO_DESC
    value_tag: str

    @property
    def workspace(self) -> bool:
        return "VOLATILE_CONTENT" in self.flags


@dataclass(frozen=True, slots=True)
class OperatorFootprint:
    flops: int | None
    bytes: int
    in_shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]
    param: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    id: str
    owner: str
    bytes: int
    address: int | None


@dataclass
class MegEngineDump:
    name: str
    sequence: list[str] = field(default_factory=list)
    operators: dict[str, OpRecord] = field(default_factory=dict)
    vars: dict[str, VarRecord] = field(default_factory=dict)
    chunks: dict[str, Chunk] = field(default_factory=dict)
    host: dict[str, dict[str, Span]] = field(default_factory=dict)
    device: dict[str, dict[str, Span]] = field(default_factory=dict)
    footprints: dict[str, OperatorFootprint] = field(default_factory=dict)
    internal: int = 0  # entries of opr_internal_pf
    unknown: list[str] = field(default_factory=list)  # keys that this reader does not know

    def owner(self, var: VarRecord) -> VarRecord:
        """The variable in whose memory it lives."""
        while var.source is not None:
            var = self.vars[var.source]
        return var


def sniff_megengine(head: bytes) -> bool:
    """Does a file begin like one? Its two keys may come in any order."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    keys = (b'"profiler"', b'"graph_exec"')
    return text.startswith(b"{") and text[1:].lstrip().startswith(keys)


def read_dump(path: str | Path, progress: Progress | None = None) -> MegEngineDump:
    """All records of a file. What they say of each other is checked by `check_references`."""
    walk = open_json(path, progress)
    dump, seen = MegEngineDump(walk.name), set[str]()
    for section in walk.members():
        if section not in ("profiler", "graph_exec"):
            dump.unknown.append(section)
            walk.skip()
            continue
        for part in walk.members():
            seen.add(part)
            if part in _PARTS:
                _PARTS[part](walk, dump)
            else:
                dump.unknown.append(f"{section}.{part}")
                walk.skip()
    walk.end()
    for part in ("operator", "var", "comp_seq"):
        if part not in seen:
            walk.fail(f"no 'graph_exec.{part}'", "is the file whole?")
    check_references(dump, walk)
    return dump


def check_references(dump: MegEngineDump, walk: JsonWalk) -> None:
    """Every id that is used is there, and no operator runs twice or writes what another writes."""
    writer: dict[str, str] = {}
    for op in dump.operators.values():
        for name in (*op.inputs, *op.outputs):
            if name not in dump.vars:
                walk.fail(f"operator '{op.id}' cites variable '{name[:60]}', which is not there")
        for name in op.outputs:
            if writer.setdefault(name, op.id) != op.id or op.outputs.count(name) > 1:
                walk.fail(f"variable '{name[:60]}' is written twice: by '{writer[name]}' and by '{op.id}'")
    if len(set(dump.sequence)) != len(dump.sequence):
        walk.fail("graph_exec.comp_seq names an operator twice")
    for what, ids in (("comp_seq", dump.sequence), ("host", dump.host), ("device", dump.device)):
        for id in ids:
            if id not in dump.operators:
                walk.fail(f"{what} names operator '{id[:60]}', which is not there")
    for var in dump.vars.values():
        if var.source is not None and var.source not in dump.vars:
            walk.fail(f"variable '{var.id}' shares the memory of '{var.source[:60]}', which is not there")
    _check_sharing(dump, walk)
    for chunk in dump.chunks.values():
        if chunk.owner not in dump.vars:
            walk.fail(f"chunk '{chunk.id[:60]}' is owned by variable '{chunk.owner[:60]}', which is not there")


def _check_sharing(dump: MegEngineDump, walk: JsonWalk) -> None:
    """No circle of variables that share each other's memory."""
    sound: set[str] = set()
    for var in dump.vars.values():
        at, seen = var, dict[str, None]()
        while at.source is not None and at.id not in sound:
            if at.id in seen:
                walk.fail(f"variables share each other's memory in a circle: '{at.id[:60]}' is in it")
            seen[at.id] = None
            at = dump.vars[at.source]
        sound.update(seen)


# Sections -------------------------------------------------------------------------------------------------------------


def _read_sequence(walk: JsonWalk, dump: MegEngineDump) -> None:
    for _ in walk.items():
        dump.sequence.append(intern(_text(walk, walk.value(), "an id")))


def _records(walk: JsonWalk, what: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of an object by their keys; `what`: those that say their key themselves."""
    for key in walk.members():
        raw = _table(walk, walk.value())
        if what is not None and raw.get("id", key) != key:
            walk.fail(f"the {what} calls itself {str(raw.get('id'))[:60]!r}")
        yield intern(key), raw


def _read_operators(walk: JsonWalk, dump: MegEngineDump) -> None:
    for key, raw in _records(walk, "operator"):
        dump.operators[key] = OpRecord(
            key,
            _text(walk, raw.get("name"), "a name"),
            intern(_text(walk, raw.get("type"), "a type")),
            tuple(intern(_text(walk, v, "an input")) for v in _list(walk, raw.get("input"), "input")),
            tuple(intern(_text(walk, v, "an output")) for v in _list(walk, raw.get("output"), "output")),
        )


def _read_vars(walk: JsonWalk, dump: MegEngineDump) -> None:
    flag_sets: dict[frozenset[str], frozenset[str]] = {}
    for key, raw in _records(walk, "variable"):
        flags = frozenset(intern(_text(walk, f, "a flag")) for f in _list(walk, raw.get("flag", []), "flag"))
        start = _whole(walk, raw.get("prev_dev_ptr", 0), "prev_dev_ptr")
        end = _whole(walk, raw.get("prev_dev_ptr_end", start), "prev_dev_ptr_end")
        if end < start:
            walk.fail(f"memory that ends before it begins: {start} to {end}")
        plan = raw.get("mem_plan")
        plan = None if plan is None else _table(walk, plan)
        layout = _table(walk, (plan or {}).get("layout", {}))
        tags = _table(walk, raw.get("static_infer_tags", {}))
        shape_tag, value_tag = (_table(walk, tags.get(tag, {})) for tag in ("SHAPE", "VALUE"))
        inferred = shape_tag.get("inferred_result", layout.get("shape"))
        dump.vars[key] = VarRecord(
            key,
            _text(walk, raw.get("name", ""), "a name"),
            intern(_text(walk, raw.get("comp_node", ""), "a comp node")),
            flag_sets.setdefault(flags, flags),
            start if end > start else None,
            end - start,
            _optional(walk, raw.get("dev_ptr"), "dev_ptr"),
            None if plan is None else _text(walk, plan.get("mem_chunk_id"), "a chunk"),
            _whole(walk, (plan or {}).get("offset_byte", 0), "offset_byte"),
            intern(layout["dtype"]) if isinstance(layout.get("dtype"), str) else None,
            None if raw.get("mem_readonly_fwd_src") is None else _text(walk, raw["mem_readonly_fwd_src"], "a source"),
            None if inferred is None else _shape(walk, inferred),
            intern(str(shape_tag.get("infer_type", ""))),
            intern(str(value_tag.get("infer_type", ""))),
        )


def _read_chunks(walk: JsonWalk, dump: MegEngineDump) -> None:
    for key, raw in _records(walk):
        size, owner = _whole(walk, raw.get("size"), "size"), _text(walk, raw.get("owner_var"), "an owner")
        dump.chunks[key] = Chunk(key, owner, size, _optional(walk, raw.get("dev_ptr"), "dev_ptr"))


def _read_footprints(walk: JsonWalk, dump: MegEngineDump) -> None:
    for key, raw in _records(walk):
        dump.footprints[key] = OperatorFootprint(
            _optional(walk, raw.get("computation"), "computation"),
            _whole(walk, raw.get("memory", 0), "memory"),
            tuple(_shape(walk, s) for s in _list(walk, raw.get("in_shapes", []), "in_shapes")),
            tuple(_shape(walk, s) for s in _list(walk, raw.get("out_shapes", []), "out_shapes")),
            _table(walk, raw.get("param", {})),
        )


def _read_times(walk: JsonWalk, found: dict[str, dict[str, Span]]) -> None:
    for key, raw in _records(walk):
        found[key] = {intern(lane): _span(walk, _table(walk, times)) for lane, times in raw.items()}


def _read_internal(walk: JsonWalk, dump: MegEngineDump) -> None:
    dump.internal = len(_table(walk, walk.value()))


_PARTS: dict[str, Callable[[JsonWalk, MegEngineDump], None]] = {
    "comp_seq": _read_sequence,
    "operator": _read_operators,
    "var": _read_vars,
    "mem_chunk": _read_chunks,
    "opr_footprint": _read_footprints,
    "host": lambda walk, dump: _read_times(walk, dump.host),
    "device": lambda walk, dump: _read_times(walk, dump.device),
    "opr_internal_pf": _read_internal,
}


# Values ---------------------------------------------------------------------------------------------------------------


def _text(walk: JsonWalk, item: Any, what: str) -> str:
    if not isinstance(item, str):
        walk.fail(f"{what} must be a text, not {_show(item)}")
    return item


def _table(walk: JsonWalk, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        walk.fail(f"an object must stand here, not {_show(item)}")
    return item


def _list(walk: JsonWalk, item: Any, what: str) -> list[Any]:
    if not isinstance(item, list):
        walk.fail(f"'{what}' must be an array, not {_show(item)}")
    return item


def _whole(walk: JsonWalk, item: Any, what: str) -> int:
    if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= MOST_BYTES:
        walk.fail(f"'{what}' must be a whole number from 0 to 2**63 - 1, not {_show(item)}")
    return item


def _optional(walk: JsonWalk, item: Any, what: str) -> int | None:
    return None if item is None else _whole(walk, item, what)


def _shape(walk: JsonWalk, item: Any) -> Shape:
    sizes = _list(walk, item, "shape")
    if len(sizes) > _LARGEST_RANK:
        walk.fail(f"a shape of {len(sizes)} dimensions")
    return tuple(_whole(walk, size, "a size") for size in sizes)


def _span(walk: JsonWalk, raw: Mapping[str, Any]) -> Span:
    start, kern, end = (_second(walk, raw.get(key), key) for key in ("start", "kern", "end"))
    kernel = None if kern == -1 else kern
    if end < start or (kernel is not None and not start <= kernel <= end):
        walk.fail(f"times that run backward: start {start}, kern {kern}, end {end}")
    return Span(start, end, kernel)


def _second(walk: JsonWalk, item: Any, what: str) -> float:
    if isinstance(item, bool) or not isinstance(item, int | float) or not -1e300 < item < 1e300 or not isfinite(item):
        walk.fail(f"'{what}' must be a number of seconds, not {_show(item)}")
    return float(item)


def _show(item: Any) -> str:
    if item is None:
        return "nothing"
    if isinstance(item, int) and abs(item) > 2**70:
        return "a number of more than 70 bits"
    return repr(item)[:60] if isinstance(item, str | int | float) else f"a {type(item).__name__}"
