"""The events of a torch trace, as far as a profile needs them: read one by one, kept small, in whole nanoseconds.

Kept are, of each host thread, `cpu_op`, `user_annotation`, modules (`python_function` events "nn.Module: ...") and
Python functions that are not torch's, calls that launch (`cuda_runtime`, `cuda_driver` with a correlation) and
`[memory]`; of devices kernels, copies and memsets.

Tolerated, with a note: an event with no duration or a negative one (it counts as 0), shapes that cannot be read.
Errors: whatever else is of the wrong type, times that are not finite or beyond `_FARTHEST_US`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from ..profile.model import MOST_BYTES, Shape
from .json_walk import JsonWalk

_FARTHEST_US = 1e17  # three thousand years
_DEVICE_WORK = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_MODULE = "nn.Module: "
_FRAME = re.compile(r"(?!torch/|<)(.+\.py)\((\d+)\): ")  # a call of a Python function that is not torch's
_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 14: "meta", 20: "privateuse1"}
_FACTS = ("schemaVersion", "baseTimeNanoseconds", "record_shapes", "profile_memory", "with_stack", "with_modules")
_MORE_FACTS = ("with_flops", "cuda_runtime_version", "cuda_driver_version", "trace_id", "deviceProperties")
_NOT_TENSORS = frozenset(("", "Scalar", "ScalarList", "None", "GenericList"))

T = TypeVar("T")
Thread = tuple[str | int | None, str | int | None]  # pid, tid


class EventKind(IntEnum):
    """What a mark is. Of marks that begin and end together, the smaller kind is outside."""

    MODULE = 0
    FRAME = 1
    NOTE = 2
    OP = 3
    LAUNCH = 4
    MEMORY = 5


class OpData(NamedTuple):
    """What the arguments of an operator tell; equal ones are one object."""

    shapes: tuple[Shape, ...] = ()
    types: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    module: str = ""


class MemoryEvent(NamedTuple):
    address: int
    bytes: int  # less than 0: freed
    device: str
    allocated: int | None  # on the device, after this
    reserved: int | None


class Mark(NamedTuple):
    """An event of a host thread. The order of the fields is the order of nesting: outer ones first."""

    start: int
    minus_end: int
    kind: EventKind
    order: int  # in the file
    name: str
    data: OpData | MemoryEvent | None
    external: int | None  # of LAUNCH: the correlation
    flops: int | None
    sequence: int | None


class Work(NamedTuple):
    """Work of a device."""

    start: int
    end: int
    order: int
    kind: str  # kernel, memcpy, memset
    name: str
    stream: str
    correlation: int | None
    external: int | None
    bytes: int | None
    grid: tuple[tuple[int, ...], tuple[int, ...]] | None


@dataclass
class Events:
    threads: dict[Thread, list[Mark]] = field(default_factory=dict)
    works: list[Work] = field(default_factory=list)
    names: dict[Thread, str] = field(default_factory=dict)  # of threads
    odd: Counter[str] = field(default_factory=Counter)  # what was tolerated
    facts: dict[str, Any] = field(default_factory=dict)
    count: int = 0  # of events, also of those not kept


class EventReader:
    """Reads events into `found`."""

    def __init__(self, walk: JsonWalk) -> None:
        self.walk, self.found = walk, Events()
        self._shared: dict[Any, Any] = {}  # texts and arguments, once each

    def read_fact(self, key: str, value: Any) -> None:
        """A member of the file beside the events."""
        if key in _FACTS or key in _MORE_FACTS:
            self.found.facts[key] = value

    def read_events(self) -> None:
        """The array that stands here."""
        for event in self.walk.values():
            self.found.count += 1
            if not isinstance(event, dict):
                self.walk.fail("an event must be an object")
            match event.get("ph"):
                case "X":
                    self._read_span(event)
                case "i" | "I" if event.get("name") == "[memory]":
                    self._read_memory(event)
                case "M" if event.get("name") == "thread_name":
                    name = self._args(event).get("name")
                    if isinstance(name, str):
                        self.found.names[self._thread(event)] = name

    def _read_span(self, event: dict[str, Any]) -> None:
        category, name = event.get("cat"), event.get("name")
        if not isinstance(category, str):
            return
        if category in _DEVICE_WORK:
            self._read_work(event, _DEVICE_WORK[category])
        elif category == "cpu_op":
            self._add_mark(event, EventKind.OP)
        elif category == "user_annotation":
            self._add_mark(event, EventKind.NOTE)
        elif category == "python_function":
            if isinstance(name, str) and name.startswith(_MODULE):
                self._add_mark(event, EventKind.MODULE)
            elif isinstance(name, str) and _FRAME.match(name):
                self._add_mark(event, EventKind.FRAME)
        elif category.endswith(("_runtime", "_driver")) and self._args(event).get("correlation") is not None:
            self._add_mark(event, EventKind.LAUNCH)

    def _add_mark(self, event: dict[str, Any], kind: EventKind) -> None:
        args, name = self._args(event), self._text(event, "name")
        start, end = self._times(event)
        data: OpData | None = None
        key, flops, sequence = "correlation" if kind is EventKind.LAUNCH else "External id", None, None
        if kind is EventKind.OP:
            data = self._op_data(args)
            if isinstance(args.get("flops"), float) and args["flops"].is_integer():
                args["flops"] = int(args["flops"])
            flops = self._whole(args, "flops", 0, optional=True)
            sequence = self._whole(args, "Sequence number", optional=True)
        elif kind is EventKind.MODULE:
            name = name.removeprefix(_MODULE)
        elif kind is EventKind.FRAME:
            name = _FRAME.sub(r"\1:\2 ", name)
        external = self._whole(args, key, optional=True)
        mark = Mark(start, -end, kind, self.found.count, self._share(name), data, external, flops, sequence)
        self.found.threads.setdefault(self._thread(event), []).append(mark)

    def _read_memory(self, event: dict[str, Any]) -> None:
        args, at = self._args(event), self._time(event, "ts")
        bytes = self._whole(args, "Bytes", -MOST_BYTES)
        address = self._whole(args, "Addr", 0)
        number = self._whole(args, "Device Id", optional=True)
        type = self._whole(args, "Device Type", optional=True) or 0
        device = _DEVICE_TYPES.get(type, f"device type {type}")
        if type:
            device = f"{device} {max(number or 0, 0)}"
        totals = [self._whole(args, key, optional=True) for key in ("Total Allocated", "Total Reserved")]
        assert bytes is not None and address is not None
        memory = MemoryEvent(address, bytes, self._share(device), *totals)
        mark = Mark(at, -at, EventKind.MEMORY, self.found.count, "", memory, None, None, None)
        self.found.threads.setdefault(self._thread(event), []).append(mark)

    def _read_work(self, event: dict[str, Any], kind: str) -> None:
        args, (start, end) = self._args(event), self._times(event)
        device, stream = args.get("device", event.get("pid")), args.get("stream", event.get("tid"))
        for key, value in (("device", device), ("stream", stream)):
            if not isinstance(value, str | int | None):
                self.walk.fail(f"no {key}, but {_shown(value)}", inside=("args", key))
        grid, block = self._sizes(args.get("grid")), self._sizes(args.get("block"))
        self.found.works.append(
            Work(
                start,
                end,
                self.found.count,
                kind,
                self._share(self._text(event, "name")),
                self._share(f"cuda {device} stream {stream}"),
                self._whole(args, "correlation", optional=True),
                self._whole(args, "External id", optional=True),
                self._whole(args, "bytes", 0, optional=True),
                None if grid is None or block is None else self._share((grid, block)),
            )
        )

    def _op_data(self, args: dict[str, Any]) -> OpData:
        inputs, module = args.get("Concrete Inputs"), args.get("Module Hierarchy")
        shapes, types = self._tensors(args.get("Input Dims"), args.get("Input type"))
        given = inputs if isinstance(inputs, list) and all(isinstance(i, str) for i in inputs) else ()
        return self._share(OpData(shapes, types, tuple(given), module if isinstance(module, str) else ""))

    def _tensors(self, dims: Any, types: Any) -> tuple[tuple[Shape, ...], tuple[str, ...]]:
        """Shapes and types of the inputs that are tensors. Where no type tells, [] is taken for no tensor."""
        if dims is None:
            return (), ()
        shapes: list[Shape] = []
        kept: list[str] = []
        typed = isinstance(types, list) and isinstance(dims, list) and len(types) == len(dims)
        for at, dim in enumerate(dims if isinstance(dims, list) else [None]):
            type = types[at] if typed else None
            if type in _NOT_TENSORS if isinstance(type, str) else dim == []:
                continue
            several = isinstance(dim, list) and dim and isinstance(dim[0], list)  # a list of tensors
            sizes = [self._sizes(part) for part in (dim if several else [dim])]
            if None in sizes:
                self.found.odd["shapes that cannot be read, and are left out"] += 1
                continue
            shapes += [size for size in sizes if size is not None]
            kept += [type] * len(sizes) if isinstance(type, str) else []
        return tuple(shapes), tuple(kept)

    @staticmethod
    def _sizes(raw: Any) -> Shape | None:
        """A shape; None where it is none."""
        whole = isinstance(raw, list) and all(type(n) is int and 0 <= n <= MOST_BYTES for n in raw)
        return tuple(raw) if whole else None

    def _times(self, event: dict[str, Any]) -> tuple[int, int]:
        start, lasted = self._time(event, "ts"), 0
        if event.get("dur") is None:
            self.found.odd["events with no duration, which counts as 0"] += 1
        else:
            lasted = self._time(event, "dur")
        if lasted < 0:
            self.found.odd["events of less than no duration, which counts as 0"] += 1
        return start, start + max(lasted, 0)

    def _time(self, event: dict[str, Any], key: str) -> int:
        """In nanoseconds."""
        value = event.get(key)
        if type(value) is not float and type(value) is not int:
            self.walk.fail(f"no time in microseconds, but {_shown(value)}", inside=(key,))
        if not -_FARTHEST_US < value < _FARTHEST_US:  # NaN is no time either
            self.walk.fail(f"a time beyond all: {_shown(value)} µs", inside=(key,))
        return round(value * 1000)

    def _whole(self, args: dict[str, Any], key: str, low: int = -(2**63), optional: bool = False) -> int | None:
        value = args.get(key)
        if value is None and optional:
            return None
        if type(value) is not int or not low <= value <= MOST_BYTES:
            self.walk.fail(f"no whole number from {low} to {MOST_BYTES}, but {_shown(value)}", inside=("args", key))
        return value

    def _args(self, event: dict[str, Any]) -> dict[str, Any]:
        args = event.get("args")
        if args is None:
            return {}
        if not isinstance(args, dict):
            self.walk.fail(f"no object, but {_shown(args)}", inside=("args",))
        return args

    def _text(self, event: dict[str, Any], key: str) -> str:
        value = event.get(key)
        if not isinstance(value, str):
            self.walk.fail(f"no text, but {_shown(value)}", inside=(key,))
        return value

    def _thread(self, event: dict[str, Any]) -> Thread:
        pid, tid = event.get("pid"), event.get("tid")
        if not isinstance(pid, str | int | None) or not isinstance(tid, str | int | None):
            self.walk.fail(f"no process and thread, but {_shown(pid)} and {_shown(tid)}", inside=("pid",))
        return pid, tid

    def _share(self, value: T) -> T:
        return self._shared.setdefault(value, value)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
