"""Memory snapshots of CUDA (`torch.cuda.memory._snapshot()`, as JSON) into profiles: blocks, and no operators.

- A block lives from `alloc` to `free_completed`, when its memory can be used again; its bytes are those asked for.
- What is in the segments and was never seen allocated was there before the history began: alive from tick 0 to the end.
  The history may be cut at its beginning (`max_entries`): see `block_lives` for frees of what was not seen.
- A block is called by the innermost frame of Python that is not torch's own: "model.py:12 forward"; else by the
  innermost of torch's, else of C++, else "memory 7".
- Facts, by device: bytes reserved at the end and at most (reckoned back from the end), bytes allocated and free at the
  end, segments, and `fragmentation`: the share of the reserved bytes that no block uses. Being out of memory is a note.

Seconds count from the first event. A pickle is never loaded: it can run any code (see `formats`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import FormatError
from ..profile import Profile, check_profile
from ..profile.model import MOST_BYTES
from .block_lives import Lives
from .json_walk import JsonTable, JsonWalk, Progress, open_json

FORMAT = "cuda memory snapshot"

_KEYS = rb"segments|device_traces|allocator_settings|external_annotations"
_HEAD = re.compile(rb'\{\s*"(?:' + _KEYS + rb')"\s*:\s*[\[{]')
_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_ALIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_OF_TORCH = re.compile(r"(?:^|[\\/])torch[\\/]|<frozen|<string>")
_OF_RECORDER = ("torch::unwind", "torch::CapturedTraceback", "unwind::unwind")  # what looks at the stack is on it too
_FARTHEST_US = 10**17
_SHOWN_OOMS = 8


def sniff_cuda_snapshot(head: bytes) -> bool:
    """Does a file that begins like this (decompressed) hold a snapshot as JSON?"""
    return bool(_HEAD.match(head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")))


def sniff_pickle(head: bytes) -> bool:
    """Does a file that begins like this (decompressed) hold a pickle? Of protocol 2 or later, as torch writes."""
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 9


class _Event(NamedTuple):
    micros: int
    order: int
    device: str
    freed: bool
    bytes: int
    address: int
    name: str


def load_cuda_snapshot(path: str | Path, progress: Progress | None = None) -> Profile:
    """The profile in a snapshot. Raises `FormatError` where it cannot be read."""
    walk = open_json(path, progress)
    reader, seen = _Reader(walk), set[str]()
    for key in walk.members():
        seen.add(key)
        if key == "segments":
            for segment in walk.values():
                reader.read_segment(segment)
        elif key == "device_traces":
            for device in walk.items():
                for event in walk.values():
                    reader.read_event(device, event)
        elif key == "allocator_settings":
            settings = walk.value()
            reader.facts |= {"allocator_settings": settings} if isinstance(settings, dict) else {}
        else:
            walk.skip()
    if not seen & {"segments", "device_traces"}:
        walk.fail("no 'segments' and no 'device_traces'", "a snapshot of torch.cuda.memory")
    walk.end()
    profile = reader.make_profile()
    check_profile(profile)
    return profile


class _Table(JsonTable):
    def whole(self, key: str, default: int | None = None) -> int:
        what = f"whole number from 0 to {MOST_BYTES}"
        return self.take(key, lambda v: type(v) is int and 0 <= v <= MOST_BYTES, what, default)

    def array(self, key: str) -> list[Any]:
        return self.take(key, lambda v: isinstance(v, list), "array", [])


class _Reader:
    def __init__(self, walk: JsonWalk) -> None:
        self.walk = walk
        self.facts: dict[str, Any] = {}
        self.events: list[_Event] = []
        self.reserved: list[tuple[int, int, str, int]] = []  # moment, order, device, bytes more
        self.held: list[tuple[str, int, int, str]] = []  # device, address, bytes, name: at the end
        self.ends: dict[str, dict[str, int]] = {}  # device -> figures at the end
        self.ooms: list[str] = []
        self.count = self.oom_count = self.last = self.untimed = 0
        self._names: dict[Any, str] = {}

    def read_segment(self, raw: Any) -> None:
        segment = _Table(self.walk, raw)
        device = f"cuda {segment.whole('device', default=0)}"
        size, at = segment.whole("total_size"), segment.whole("address", default=0)
        end = self.ends.setdefault(device, dict.fromkeys(("reserved", "used", "segments", "largest_free"), 0))
        end["reserved"] += size
        end["segments"] += 1
        for place, part in enumerate(segment.array("blocks")):
            block = _Table(self.walk, part, ("blocks", place))
            bytes, address = block.whole("size"), block.whole("address", default=min(at, MOST_BYTES))
            at = address + bytes
            if block.raw.get("state") in _ALIVE:
                end["used"] += bytes
                asked = block.whole("requested_size", default=bytes)
                self.held.append((device, address, asked, self._name(block.array("frames"))))
            else:
                end["largest_free"] = max(end["largest_free"], bytes)

    def read_event(self, number: int, raw: Any) -> None:
        event = _Table(self.walk, raw)
        action, device = event.raw.get("action"), f"cuda {number}"
        self.count += 1
        if not isinstance(action, str):
            event.fail("action", "an event with no action")
        moment = self._moment(event)
        if action in _RESERVES:
            self.reserved.append((moment, self.count, device, event.whole("size") * _RESERVES[action]))
        elif action in ("alloc", "free_completed"):
            bytes, address = event.whole("size"), event.whole("addr")
            freed = action == "free_completed"
            name = "" if freed else self._name(event.array("frames"))
            self.events.append(_Event(moment, self.count, device, freed, bytes, address, name))
        elif action == "oom":
            self.oom_count += 1
            if len(self.ooms) < _SHOWN_OOMS:
                self.ooms.append(f"out of memory on {device}: {event.whole('size')} bytes were asked for")

    def make_profile(self) -> Profile:
        if not self.events and not self.held:
            raise FormatError("no memory in the snapshot", where=self.walk.name, hint="_record_memory_history() first")
        self.events.sort()
        self.reserved.sort()
        moments = [event.micros for event in self.events[:1]] + [moment for moment, *_ in self.reserved[:1]]
        zero = min(moments, default=0)
        lives, number = Lives(0.0), 0
        for event in self.events:
            second = (event.micros - zero) / 1e6
            name = event.name or f"memory {number}"
            change = lives.free if event.freed else lives.allocate
            named_before = event.freed and lives.is_alive(event.device, event.address)
            number += not event.name and not named_before
            change(second, event.device, event.address, event.bytes, name)
        for device, address, bytes, name in self.held:
            if not lives.is_alive(device, address):
                lives.add_lasting(device, address, bytes, name or f"memory {number}")
                number += not name
        notes = [*self.ooms, *lives.notes()]
        if self.oom_count > len(self.ooms):
            notes.append(f"{self.oom_count - len(self.ooms)} more times out of memory")
        if self.untimed:
            notes.append(f"{self.untimed} events with no time, which count as happening with the one before")
        return Profile(
            self.walk.name,
            FORMAT,
            (),
            lives.blocks(),
            tuple(lives.clock),
            facts=self.facts | self._figures(),
            notes=tuple(notes),
        )

    def _figures(self) -> dict[str, Any]:
        """By device: what is reserved, and how much of it is used."""
        found: dict[str, Any] = {}
        for device, end in sorted(self.ends.items()):
            reserved, used = end["reserved"], end["used"]
            found[device] = {
                "reserved_bytes": reserved,
                "reserved_peak_bytes": reserved,
                "allocated_bytes": used,
                "free_bytes": reserved - used,
                "largest_free_bytes": end["largest_free"],
                "segments": end["segments"],
                "fragmentation": 1 - used / reserved if reserved else 0.0,
            }
        for device in sorted({device for _, _, device, _ in self.reserved}):
            changes = [bytes for _, _, of, bytes in self.reserved if of == device]
            now = found.get(device, {}).get("reserved_bytes", 0)
            most = now
            for change in reversed(changes):  # from the end back: what was there before the history is not told
                now -= change
                most = max(most, now)
            found.setdefault(device, {})["reserved_peak_bytes"] = most
        return {"devices": found, "events": self.count, "out_of_memory": self.oom_count}

    def _moment(self, event: _Table) -> int:
        value = event.raw.get("time_us")
        if value is None:
            self.untimed += 1
            return self.last
        if type(value) is not int or not 0 <= value < _FARTHEST_US:
            event.fail("time_us", f"no time in whole microseconds, but {repr(value)[:60]}")
        self.last = value
        return value

    def _name(self, frames: list[Any]) -> str:
        """Of the frame to call a block by; "" where there is none."""
        best, rank = None, 9
        for frame in frames:
            if not isinstance(frame, dict):
                continue
            file, line, function = frame.get("filename"), frame.get("line"), frame.get("name")
            if not isinstance(file, str) or not isinstance(function, str) or type(line) is not int:
                continue
            if function.startswith(_OF_RECORDER):
                continue
            mine = 2 if not file.endswith(".py") else 1 if _OF_TORCH.search(file) else 0
            if mine < rank:
                best, rank = (file, line, function), mine
            if rank == 0:
                break
        if best is None:
            return ""
        if best not in self._names:
            file, line, function = best
            base = re.split(r"[\\/]", file)[-1]
            self._names[best] = f"{base}:{line} {function}" if rank < 2 else function or base
        return self._names[best]
