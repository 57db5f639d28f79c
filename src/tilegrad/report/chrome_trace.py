"""A profile as a Chrome trace, for Perfetto and chrome://tracing, in the form of `torch.profiler`, and readable again.

Threads of the host are threads of one process, streams those of one process for each device. "[memory]" instants tell
where every block begins and ends, counters the bytes alive on each device. Events are made one by one.

What torch's form lacks is under "tilegrad" in the arguments of the events, and at the top of the file: schema 1, whose
reader is `importers.own_trace`. All of the profile is there but its graph.

Rule C1  `ts` and `dur`, in microseconds from the first moment (of the host, of the device, where they have different
         clocks), are for viewers: rounded to a millionth. The records hold the seconds themselves, to the last bit.
Rule C2  Any text is kept. JSON cannot keep two halves of a surrogate pair apart: they come back as one character.
         Names for viewers have no halves and no NUL.
Rule C3  Attributes and facts are kept as JSON: tuples come back as lists, what JSON has not (NaN, objects) as texts,
         and what is nested deeper than 40 as "...".
Rule C4  The file is written whole or not at all.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from ..files import whole_file
from ..profile import Block, Operator, Profile, Span

SCHEMA = 1
Event = dict[str, Any]
_HOST = 1  # process
_MEMORY = 0  # thread of it
_FARTHEST_US = 1e300
_CLOCK_PIECE = 1000  # ticks in one event
_DEEPEST = 40
_DEVICE_TYPES = {"cpu": 0, "cuda": 1, "hip": 6, "xla": 9, "xpu": 12, "mps": 13, "meta": 14}
_OTHER_TYPE = 20
_NO_ADDRESS = 1 << 62  # and on: of blocks that have none, for viewers


def save_chrome_trace(profile: Profile, path: str | Path) -> None:
    """Write the trace, gzipped where the name ends in .gz, whole or not at all (rule C4)."""
    with whole_file(path, "the trace") as raw:
        if str(path).endswith(".gz"):
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed:
                _write(profile, packed)
        else:
            _write(profile, raw)


def _write(profile: Profile, file: BinaryIO | gzip.GzipFile) -> None:
    for piece in format_chrome_trace(profile):
        file.write(piece.encode("ascii"))


def format_chrome_trace(profile: Profile) -> Iterator[str]:
    """The file, piece by piece. All of it is ASCII."""
    yield f'{{"schemaVersion":1,"tilegrad":{_dump(_head(profile))},\n"displayTimeUnit":"ms","traceEvents":[\n'
    for place, event in enumerate(chrome_trace(profile)):
        yield f"{',' if place else ''}{_dump(event)}\n"
    yield "]}\n"


def _dump(data: Any) -> str:
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def _head(profile: Profile) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": profile.name,
        "format": profile.format,
        "one_clock": profile.one_clock,
        "operators": len(profile.operators),
        "idle": len(profile.idle),
        "blocks": len(profile.blocks),
        "ticks": profile.ticks,
        "notes": list(profile.notes),
        "facts": _plain(profile.facts),
    }


def chrome_trace(profile: Profile) -> Iterator[Event]:
    """The events."""
    host_zero, device_zero = _zeros(profile)
    yield _metadata("process_name", _HOST, _MEMORY, {"name": f"host: {_shown(profile.name)}"})
    yield _metadata("thread_name", _HOST, _MEMORY, {"name": "memory"})
    yield from _clock_events(profile.clock)
    tracks = _Tracks()
    for place, op in enumerate(profile.operators):
        yield from _operator_events(op, place, tracks, host_zero, device_zero)
    for place, op in enumerate(profile.idle):
        yield _metadata("tilegrad_idle", _HOST, _MEMORY, {"tilegrad": {"idle": _operator_record(op, place)}})
    yield from _memory_events(profile, host_zero)


def _zeros(profile: Profile) -> tuple[float, float]:
    """The first moments of host and device."""
    host = min(
        chain((op.host.start_s for op in profile.operators if op.host is not None), profile.clock[:1]), default=math.inf
    )
    device = min((op.device.start_s for op in profile.operators if op.device is not None), default=math.inf)
    if profile.one_clock:
        host = device = min(host, device)
    return (host if math.isfinite(host) else 0.0), (device if math.isfinite(device) else 0.0)


class _Tracks:
    """Processes and threads, numbered as they come; each is named when it comes."""

    def __init__(self) -> None:
        self._threads: dict[str, int] = {}
        self._processes: dict[str, int] = {}
        self._streams: dict[str, tuple[int, int]] = {}

    def thread(self, name: str) -> tuple[int, int, list[Event]]:
        if (number := self._threads.get(name)) is not None:
            return _HOST, number, []
        number = self._threads[name] = len(self._threads) + 1
        return _HOST, number, [_metadata("thread_name", _HOST, number, {"name": _shown(name) or "thread"})]

    def stream(self, name: str) -> tuple[int, int, list[Event]]:
        if name in self._streams:
            return *self._streams[name], []
        device, named = name.partition(" stream ")[0] or "device", list[Event]()
        if device not in self._processes:
            self._processes[device] = _HOST + 1 + len(self._processes)
            named.append(_metadata("process_name", self._processes[device], 0, {"name": _shown(device)}))
        track = self._streams[name] = self._processes[device], len(self._streams) + 1
        named.append(_metadata("thread_name", *track, {"name": _shown(name) or "stream"}))
        return *track, named


def _operator_events(
    op: Operator, place: int, tracks: _Tracks, host_zero: float, device_zero: float
) -> Iterator[Event]:
    """What is known of the operator goes with its first event."""
    more: dict[str, Any] = {"tilegrad": {"operator": _operator_record(op, place)}}
    if op.host is not None:
        pid, tid, named = tracks.thread(op.thread)
        yield from named
        yield _span_event("cpu_op", op.name, pid, tid, op.host, host_zero, {"External id": place + 1} | more)
        more = {}
    if op.device is not None:
        pid, tid, named = tracks.stream(op.stream)
        yield from named
        args = {"External id": place + 1, "device": pid, "stream": tid} | more
        yield _span_event("kernel", op.kernel or op.name, pid, tid, op.device, device_zero, args)
    elif op.host is None:
        yield _metadata("tilegrad_operator", _HOST, _MEMORY, more)


def _span_event(category: str, name: str, pid: int, tid: int, span: Span, zero: float, args: dict[str, Any]) -> Event:
    if span.kern_s is not None:
        args = {"wait (us)": _micros(span.wait_s), "kernel (us)": _micros(span.kernel_s)} | args
    times = {"ts": _micros(span.start_s - zero), "dur": _micros(span.total_s)}
    return {"ph": "X", "cat": category, "name": _shown(name), "pid": pid, "tid": tid} | times | {"args": args}


def _clock_events(clock: tuple[float, ...]) -> Iterator[Event]:
    for first in range(0, len(clock), _CLOCK_PIECE):
        record = {"at": first, "seconds": clock[first : first + _CLOCK_PIECE]}
        yield _metadata("tilegrad_clock", _HOST, _MEMORY, {"tilegrad": {"clock": record}})


def _memory_events(profile: Profile, zero: float) -> Iterator[Event]:
    """Where blocks begin and end, in order of time; counters where a tick changed something."""
    # tick; 0 an older block ends, 1 one begins, 2 one that was none ends; place
    changes: list[tuple[int, int, int]] = []
    for place, block in enumerate(profile.blocks):
        if block.start < profile.ticks:
            changes.append((block.start, 1, place))
        else:
            record = _block_record(block, place)
            yield _metadata("tilegrad_block", _HOST, _MEMORY, {"tilegrad": {"block": record}})
        if block.stop < profile.ticks:
            changes.append((block.stop, 0 if block.start < block.stop else 2, place))
    changes.sort()
    live: dict[str, int] = {}
    devices = _Devices()
    changed: dict[str, None] = {}
    for at, (tick, what, place) in enumerate(changes):
        block, ts = profile.blocks[place], _micros(profile.clock[tick] - zero)
        live[block.device] = live.get(block.device, 0) + (block.bytes if what == 1 else -block.bytes)
        changed[block.device] = None
        yield _memory_event(block, place, what == 1, ts, live[block.device], devices)
        if at + 1 == len(changes) or changes[at + 1][0] != tick:
            for device in changed:
                name = f"live bytes {_shown(device)}".rstrip()
                yield {"ph": "C", "name": name, "pid": _HOST, "tid": _MEMORY, "ts": ts, "args": {"bytes": live[device]}}
            changed = {}


class _Devices:
    """Types and numbers of devices, as torch counts them; of those that it has not, in the order they come."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}

    def number(self, device: str) -> tuple[int, int]:
        if device not in self._known:
            found = re.fullmatch(r"([a-z]+)[ :]?([0-9]{1,6})?", device)
            if found and found[1] in _DEVICE_TYPES:
                self._known[device] = _DEVICE_TYPES[found[1]], int(found[2] or -1)
            else:
                self._known[device] = _OTHER_TYPE, len(self._known)
        return self._known[device]


def _memory_event(block: Block, place: int, begins: bool, ts: float, live: int, devices: _Devices) -> Event:
    type, number = devices.number(block.device)
    args: dict[str, Any] = {
        "Total Reserved": 0,
        "Total Allocated": live,
        "Bytes": block.bytes if begins else -block.bytes,
        "Device Id": number,
        "Device Type": type,
        "Addr": _NO_ADDRESS + place if block.address is None else block.address,
        "name": _shown(block.name),
    }
    if begins:
        args["tilegrad"] = {"block": _block_record(block, place)}
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": _HOST, "tid": _MEMORY}
    return event | {"ts": ts, "args": args}


def _operator_record(op: Operator, place: int) -> dict[str, Any]:
    """What differs from nothing."""
    record: dict[str, Any] = {"at": place, "id": op.id, "name": op.name, "type": op.type}
    record |= {key: value for key in ("thread", "stream", "module", "kernel", "source") if (value := getattr(op, key))}
    for key in ("host", "device"):
        if (span := getattr(op, key)) is not None:
            record[key] = [span.start_s, span.end_s] + ([] if span.kern_s is None else [span.kern_s])
    record |= {key: value for key in ("flops", "bytes") if (value := getattr(op, key)) is not None}
    for key in ("in_shapes", "out_shapes", "reads", "writes"):
        if value := getattr(op, key):
            record[key] = value
    if op.attrs:
        record["attrs"] = _plain(op.attrs)
    if op.phase is not None:
        record["phase"] = str(op.phase)
    return record


def _block_record(block: Block, place: int) -> dict[str, Any]:
    record: dict[str, Any] = {"at": place, "name": block.name, "bytes": block.bytes, "start": block.start}
    record |= {"stop": block.stop, "kind": str(block.kind), "owned": block.owned}
    if block.device:
        record["device"] = block.device
    return record | {key: value for key in ("address", "maker") if (value := getattr(block, key)) is not None}


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _micros(seconds: float) -> float:
    return round(min(max(seconds * 1e6, -_FARTHEST_US), _FARTHEST_US), 6)


def _shown(text: str) -> str:
    """A text that viewers can show (rule C2)."""
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any, depth: int = 0) -> Any:
    """As JSON (rule C3)."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | int):  # also enumerations
        return str(value) if isinstance(value, str) else int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return str(value)
