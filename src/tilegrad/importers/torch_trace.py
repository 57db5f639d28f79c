"""Chrome traces of `torch.profiler` (`export_chrome_trace`), CPU and CUDA, into profiles.

- An *operator* is a `cpu_op` with "::" in its name, not of the autograd engine, inside no other operator of its thread.
  What is inside is told by times: an event that begins inside another is inside, and ends with it at the latest.
- `module` is the path of the "nn.Module: ..." events around it (`with_stack=True`), the module hierarchy TorchScript
  tells, or else the path of user annotations (`record_function`), without those torch makes itself. Operators of the
  backward have the module of the forward operator with their sequence number, where one thread alone ran forward.
- `source` is the innermost Python function around it that is not torch's (`with_stack=True`): the file and the line
  where it begins. In the backward that of the forward operator, as for modules.
- `phase`: BACKWARD inside "autograd::engine::evaluate_function", UPDATE inside "Optimizer.step#" and
  "Optimizer.zero_grad#", none inside "enumerate(DataLoader)#", FORWARD elsewhere.
- Kernels, copies and memsets belong to the operator around the call with their correlation id, or else to the one with
  their external id. The first in time is the operator's device span; further ones are operators "7.1", "7.2". Those of
  no operator are operators of their own, of the type "kernel", "memcpy" or "memset".
- `flops` are the operator's, or else those of the outermost events in it that tell them (`with_flops=True`), or else
  those that follow from the shapes (`record_shapes=True`): see `trace_flops`.
- Memory: see `block_lives`. Names count by operator type; memory that an operator also frees is its workspace, other
  memory is an activation in the forward and a gradient in the backward. What the device's totals say was allocated
  before, and is never freed, is one block.

Times are whole nanoseconds, in seconds from the first event. Odd things that were tolerated are in `notes`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ..errors import FormatError
from ..ir import Phase
from ..profile import BlockKind, Operator, Profile, Span, check_profile
from .block_lives import Lives
from .json_walk import Progress, open_json
from .own_trace import load_own_trace
from .torch_events import EventKind, EventReader, Events, Mark, MemoryEvent, OpData, Thread, Work
from .trace_flops import shape_flops

FORMAT = "torch trace"
_ENGINE = "autograd::engine::"
_BACKWARD = _ENGINE + "evaluate_function"
_UPDATE = ("Optimizer.step#", "Optimizer.zero_grad#")
_LOADER = "enumerate(DataLoader)#"
_OF_TORCH = (*_UPDATE, _LOADER, "ProfilerStep#")  # annotations that are no place in the user's program
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:')
_HEAD_KEYS = re.compile(rb'"schemaVersion"\s*:\s*\d')
_BARE = re.compile(rb'\[\s*\{.*?"ph"\s*:\s*"', re.DOTALL)
_KINDS = {Phase.FORWARD: BlockKind.ACTIVATION, Phase.BACKWARD: BlockKind.GRADIENT}


def sniff_torch_trace(head: bytes) -> bool:
    """Does a file that begins like this (up to 4096 bytes, decompressed) hold a Chrome trace? Also one of ours."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    if head.startswith(b"{"):
        return bool(_EVENTS_KEY.search(head) or _HEAD_KEYS.search(head))
    return bool(_BARE.match(head))


def load_torch_trace(path: str | Path, progress: Progress | None = None) -> Profile:
    """The profile in a trace. Raises `FormatError` where it cannot be read."""
    walk = open_json(path, progress)
    reader, seen = EventReader(walk), False
    if walk.starts("["):
        reader.read_events()
    else:
        for key in walk.members():
            if key == "traceEvents":
                reader.read_events()
                seen = True
            elif key == "tilegrad":
                return load_own_trace(path, progress)
            else:
                reader.read_fact(key, walk.value())
        if not seen:
            walk.fail("no 'traceEvents'", "a trace of torch.profiler, by export_chrome_trace")
    walk.end()
    profile = _make_profile(reader.found, walk.name)
    check_profile(profile)
    return profile


@dataclass(slots=True)
class _Op:
    """An operator found on a thread, or work of a device that belongs to none (`mark` None)."""

    start: int
    mark: Mark | None
    thread: str = ""
    module: str = ""
    source: str = ""
    notes: str = ""  # path of annotations
    phase: Phase | None = None
    flops: int | None = None
    sequence: int | None = None  # of the forward operator whose backward this is
    works: list[Work] = field(default_factory=list)
    place: int = -1  # in the operators of the profile


class _Around(NamedTuple):
    """What is around a moment on a thread."""

    end: float
    op: _Op | None = None
    modules: str = ""
    source: str = ""
    notes: str = ""
    phase: Phase | None = Phase.FORWARD
    sequence: int | None = None
    counted: bool = False  # flops are


@dataclass
class _Found:
    ops: list[_Op] = field(default_factory=list)
    launches: dict[int, tuple[_Op | None, int]] = field(default_factory=dict)  # correlation -> operator, moment
    externals: dict[int, _Op] = field(default_factory=dict)
    memory: list[tuple[int, int, MemoryEvent, _Op | None]] = field(default_factory=list)  # moment, order
    forward: dict[int, tuple[str, str]] = field(default_factory=dict)  # sequence number -> module, source
    forward_threads: set[str] = field(default_factory=set)


def _make_profile(events: Events, name: str) -> Profile:
    found = _Found()
    names = _thread_names(events)
    for thread, marks in events.threads.items():
        marks.sort()
        _sweep(marks, names[thread], found, events.odd)
    firsts = [marks[0].start for marks in events.threads.values()] + [work.start for work in events.works]
    zero = min(firsts, default=0)
    _give_works(events, found)
    for op in found.ops:
        if op.sequence is not None and len(found.forward_threads) == 1:
            module, source = found.forward.get(op.sequence, ("", ""))
            op.module, op.source = op.module or module, source or op.source
        op.module = op.module or op.notes
    found.ops.sort(key=lambda op: op.start)
    operators: list[Operator] = []
    for number, op in enumerate(found.ops):
        op.place = len(operators)
        operators += _operators(op, number, zero)
    if events.count == 0 or not (operators or found.memory):
        what = "no events" if events.count == 0 else f"{events.count} events, but no operator, kernel or memory in them"
        raise FormatError(what, where=name, hint="profile a step with torch.profiler and activities=[CPU, CUDA]")
    lives, facts, notes = _blocks(found.memory, zero)
    notes = [f"{times} {what}" for what, times in sorted(events.odd.items())] + notes
    return Profile(
        name,
        FORMAT,
        tuple(operators),
        lives.blocks() if lives else (),
        tuple(lives.clock) if lives else (),
        facts=events.facts | facts,
        notes=tuple(notes),
    )


def _thread_names(events: Events) -> dict[Thread, str]:
    """A name of its own for every thread."""
    several = len({pid for pid, _ in events.threads}) > 1
    names: dict[Thread, str] = {}
    for pid, tid in events.threads:
        name = events.names.get((pid, tid)) or f"thread {tid}"
        if several:
            name = f"process {pid} {name}"
        taken = set(names.values())
        names[pid, tid] = name if name not in taken else next(n for i in count(2) if (n := f"{name} #{i}") not in taken)
    return names


def _sweep(marks: Iterable[Mark], thread: str, found: _Found, odd: Counter[str]) -> None:
    """Nest the marks of a thread, which come in order."""
    stack = [_Around(float("inf"))]
    for mark in marks:
        while stack[-1].end <= mark.start:
            stack.pop()
        around = stack[-1]
        if mark.kind is EventKind.MEMORY:
            assert isinstance(mark.data, MemoryEvent)
            if mark.data.bytes:
                found.memory.append((mark.start, mark.order, mark.data, around.op))
        elif mark.kind is EventKind.LAUNCH:
            assert mark.external is not None
            if mark.external in found.launches:
                odd["launches with the correlation id of another: the first counts"] += 1
            found.launches.setdefault(mark.external, (around.op, mark.start))
        else:
            stack.append(_enter(mark, around, thread, found))


def _enter(mark: Mark, around: _Around, thread: str, found: _Found) -> _Around:
    end, name = min(-mark.minus_end, around.end), mark.name
    around = around._replace(end=end)
    if mark.kind is EventKind.MODULE:
        return around._replace(modules=_join(around.modules, name))
    if mark.kind is EventKind.FRAME:
        return around._replace(source=name)
    if name.startswith(_BACKWARD):
        around = around._replace(phase=Phase.BACKWARD, sequence=mark.sequence)
    elif name.startswith(_UPDATE):
        around = around._replace(phase=Phase.UPDATE)
    elif name.startswith(_LOADER):
        around = around._replace(phase=None)
    if mark.kind is EventKind.NOTE:
        return around if name.startswith(_OF_TORCH) else around._replace(notes=_join(around.notes, name))
    assert isinstance(mark.data, OpData)
    if around.op is None and "::" in name and not name.startswith(_ENGINE):
        module = mark.data.module or around.modules
        places = (thread, module, around.source, around.notes)
        found.ops.append(_Op(mark.start, mark, *places, around.phase, sequence=around.sequence))
        around = around._replace(op=found.ops[-1], counted=False)
    if (op := around.op) is not None:
        if mark.external:
            found.externals.setdefault(mark.external, op)
        if mark.flops and not around.counted:
            op.flops = (op.flops or 0) + mark.flops
            around = around._replace(counted=True)
        if mark.sequence is not None and op.phase is Phase.FORWARD:
            # the last one with this number makes the node
            found.forward[mark.sequence] = (op.module or op.notes, op.source)
            found.forward_threads.add(thread)
    return around


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _give_works(events: Events, found: _Found) -> None:
    """Every work of a device to its operator."""
    events.works.sort()
    for work in events.works:
        op, moment = (
            found.launches.get(work.correlation, (None, None)) if work.correlation is not None else (None, None)
        )
        if op is None and work.external:
            op = found.externals.get(work.external)
        if op is None:
            op = _Op(work.start if moment is None else moment, None)
            found.ops.append(op)
        op.works.append(work)


def _operators(op: _Op, number: int, zero: int) -> Iterable[Operator]:
    """The operator, and one for each further work."""
    mark = op.mark
    data = mark.data if mark is not None and isinstance(mark.data, OpData) else OpData()
    host = _span(mark.start, -mark.minus_end, zero) if mark is not None else None
    for at, work in enumerate(op.works or (None,)):
        type = mark.name if mark is not None else work.kind if work is not None else ""
        attrs: dict[str, object] = {}
        if at == 0 and data.types:
            attrs["types"] = list(data.types)
        if at == 0 and any(data.inputs):
            attrs["inputs"] = list(data.inputs)
        if work is not None and work.grid is not None:
            attrs |= {"grid": list(work.grid[0]), "block": list(work.grid[1])}
        yield Operator(
            f"{number}.{at}" if at else str(number),
            mark.name if mark is not None else work.name if work is not None else "",
            type,
            host if at == 0 else None,
            op.thread if at == 0 else "",
            None if work is None else _span(work.start, work.end, zero),
            "" if work is None else work.stream,
            None if at else op.flops or shape_flops(type, data),
            None if work is None else work.bytes,
            data.shapes if at == 0 else (),
            attrs=attrs,
            module=op.module,
            phase=op.phase,
            kernel="" if work is None else work.name,
            source=op.source,
        )


def _span(start: int, end: int, zero: int) -> Span:
    return Span((start - zero) / 1e9, (end - zero) / 1e9)


def _blocks(
    memory: list[tuple[int, int, MemoryEvent, _Op | None]], zero: int
) -> tuple[Lives | None, dict[str, object], list[str]]:
    """Memory over time; facts of each device; notes."""
    if not memory:
        return None, {}, []
    memory.sort(key=lambda found: found[:2])
    lives, numbers = Lives(0.0), Counter[str]()
    before: dict[str, int] = {}  # device -> bytes that were allocated before, and of which no free is seen
    peaks: dict[str, dict[str, int]] = {"allocated_peak_bytes": {}, "reserved_peak_bytes": {}}
    for at, _, event, op in memory:
        second, device = (at - zero) / 1e9, event.device
        if device not in before:
            before[device] = (event.allocated or 0) - event.bytes if event.allocated is not None else 0
        type = op.mark.name if op is not None and op.mark is not None else "memory"
        maker = op.place if op is not None else None
        if event.bytes > 0:
            kind = _KINDS.get(op.phase, BlockKind.UNKNOWN) if op is not None and op.phase else BlockKind.UNKNOWN
            name = f"{type} {numbers[type]}"
            numbers[type] += 1
            lives.allocate(second, device, event.address, event.bytes, name, kind, maker)
        else:
            name = f"before {numbers['before']}"
            known = lives.free(second, device, event.address, -event.bytes, name, maker)
            numbers["before"] += known > 0
            before[device] -= known
        for total, key in ((event.allocated, "allocated_peak_bytes"), (event.reserved, "reserved_peak_bytes")):
            if total:
                peaks[key][device] = max(peaks[key].get(device, 0), total)
    for device, bytes in before.items():
        if 0 < bytes < 2**63:
            lives.add_lasting(device, None, bytes, "allocated before the trace")
    return lives, {key: value for key, value in peaks.items() if value}, lives.notes()
