"""The records of a MegEngine profile as a `Profile`.

Ticks are operators, in the order in which they were issued. Memory that the graph allocates while it runs has the
address and size it had in the run that was recorded; it lives from the operator that writes it to the last that reads
it, a workspace during its operator alone. A variable that shares another's memory makes that one live longer. Constants
live throughout; inputs come from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...garbage import no_collections
from ...profile import Block, BlockKind, Operator, Profile, Span, check_profile
from ..json_walk import Progress
from .dump import MegEngineDump, OpRecord, read_dump
from .facts import find_facts
from .graph import make_graph

_CALLBACKS = ("InputCallback", "Host2DeviceCopy", "SharedDeviceTensor")


@no_collections()
def load_megengine(path: str | Path, progress: Progress | None = None) -> Profile:
    """The profile in a file."""
    dump = read_dump(path, progress)
    place = {id: at for at, id in enumerate(dump.sequence)}
    operators = [_operator(dump, dump.operators[id]) for id in dump.sequence]
    clock = _clock(operators)
    operators += _further_kernels(dump)
    graph, why = make_graph(dump)
    ran = set(dump.sequence)
    idle = tuple(_operator(dump, op) for id, op in dump.operators.items() if id not in ran)
    profile = Profile(
        name=Path(path).name,
        format="megengine profile",
        operators=tuple(operators),
        blocks=tuple(_blocks(dump, place)),
        clock=clock,
        idle=idle,
        graph=graph,
        one_clock=False,
        facts=find_facts(dump),
        notes=(*_notes(dump), *([why] if why else [])),
    )
    check_profile(profile)
    return profile


def _operator(dump: MegEngineDump, op: OpRecord) -> Operator:
    thread, host = _first(dump.host.get(op.id, {}))
    stream, device = _first(dump.device.get(op.id, {}))
    print_ = dump.footprints.get(op.id)
    return Operator(
        op.id, op.name, op.type, host, thread, device, stream,
        flops=print_.flops if print_ else None,
        bytes=print_.bytes if print_ else None,
        in_shapes=print_.in_shapes if print_ else (),
        out_shapes=print_.out_shapes if print_ else (),
        reads=op.inputs,
        writes=op.outputs,
        attrs=print_.param if print_ else {},
    )  # fmt: skip


def _first(spans: dict[str, Span]) -> tuple[str, Span | None]:
    return min(spans.items(), key=lambda item: item[1].start_s) if spans else ("", None)


def _further_kernels(dump: MegEngineDump) -> Iterator[Operator]:
    """What an operator did on a second stream."""
    for id in dump.sequence:
        spans = sorted(dump.device.get(id, {}).items(), key=lambda item: item[1].start_s)
        for at, (stream, span) in enumerate(spans[1:], start=1):
            op = dump.operators[id]
            yield Operator(f"{id}.{at}", op.name, op.type, device=span, stream=stream)


def _clock(operators: list[Operator]) -> tuple[float, ...]:
    """When each operator began; where nothing was measured, when the one before did."""
    found, now = [], None
    for op in operators:
        span = op.span
        if span is not None and (now is None or span.start_s > now):
            now = span.start_s
        found.append(now)
    first = next((s for s in found if s is not None), 0.0)
    return tuple(first if s is None else s for s in found)


def _blocks(dump: MegEngineDump, place: dict[str, int]) -> Iterator[Block]:
    ticks = len(dump.sequence)
    maker = {name: op.id for op in dump.operators.values() for name in op.outputs}
    for chunk in dump.chunks.values():
        var, made = dump.vars[chunk.owner], maker.get(chunk.owner, "")
        yield Block(
            var.id, chunk.bytes, 0, ticks, BlockKind.WEIGHT, chunk.address, var.node, place.get(made), owned=False
        )
    last = _last_reads(dump, place)
    for var in dump.vars.values():
        if var.chunk is not None or var.source is not None or var.address is None:
            continue
        made = maker.get(var.id, "")
        start = place.get(made, 0)
        outside = made in dump.operators and dump.operators[made].type in _CALLBACKS
        kind = BlockKind.WORKSPACE if var.workspace else BlockKind.INPUT if outside else BlockKind.ACTIVATION
        stop = max(start, last.get(var.id, start)) + 1 if ticks else 0
        yield Block(var.id, var.bytes, start, stop, kind, var.address, var.node, place.get(made), owned=not outside)


def _last_reads(dump: MegEngineDump, place: dict[str, int]) -> dict[str, int]:
    """The last operator that reads each variable or one that shares its memory."""
    last: dict[str, int] = {}
    for id, at in place.items():
        for name in dump.operators[id].inputs:
            last[name] = max(at, last.get(name, at))
    for var in dump.vars.values():
        owner = dump.owner(var)
        if owner is not var and var.id in last:
            last[owner.id] = max(last[var.id], last.get(owner.id, 0))
    return last


def _notes(dump: MegEngineDump) -> Iterator[str]:
    idle = len(dump.operators) - len(dump.sequence)
    if idle:
        yield f"{idle} of {len(dump.operators)} operators never ran"
    if dump.unknown:
        yield f"{len(dump.unknown)} unknown keys were left out, the first: {dump.unknown[0][:60]}"
    bare = sum(id not in dump.device for id in dump.sequence)
    if bare:
        yield f"{bare} operators ran without device times"
    if dump.device and dump.host:
        yield "host and device count from different zeros: their distance is known from below only"
