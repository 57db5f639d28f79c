"""What every viewer may rely on in a Chrome trace, and what ours adds: a check of the events, one by one."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

_KEYS: dict[str, set[str]] = {
    "X": {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"},
    "M": {"ph", "name", "pid", "tid", "ts", "args"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
    "i": {"ph", "cat", "s", "name", "pid", "tid", "ts", "args"},
}
_MEMORY = {"Total Reserved", "Total Allocated", "Bytes", "Device Id", "Device Type", "Addr"}


def check_trace(data: Any) -> None:
    """The whole file, decoded."""
    assert set(data) == {"schemaVersion", "tilegrad", "displayTimeUnit", "traceEvents"}
    assert data["schemaVersion"] == 1 and data["displayTimeUnit"] == "ms" and data["tilegrad"]["schema"] == 1
    check_events(data["traceEvents"])


def check_events(events: Iterable[dict[str, Any]]) -> None:
    named: dict[str, set[tuple[int, int]]] = {"process_name": set(), "thread_name": set()}
    for event in events:
        assert set(event) == _KEYS[event["ph"]], event
        assert type(event["pid"]) is int and type(event["tid"]) is int
        assert _is_shown(event["name"]) and isinstance(event["args"], dict)
        assert _is_time(event["ts"])
        if event["ph"] == "X":
            assert _is_time(event["dur"]) and event["dur"] >= 0
            assert event["cat"] in ("cpu_op", "kernel")
            assert (event["pid"], event["tid"]) in named["thread_name"]
            assert event["pid"] in {pid for pid, _ in named["process_name"]}
        elif event["ph"] == "C":
            assert event["args"] and all(type(value) is int for value in event["args"].values())
        elif event["ph"] == "i":
            assert event["name"] == "[memory]" and event["s"] == "t" and event["cat"] == "cpu_instant_event"
            assert set(event["args"]) >= _MEMORY and all(type(event["args"][key]) is int for key in _MEMORY)
        elif event["name"] in named:
            assert _is_shown(event["args"]["name"])
            assert (event["pid"], event["tid"]) not in named[event["name"]]
            named[event["name"]].add((event["pid"], event["tid"]))


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_shown(text: Any) -> bool:
    """No half of a surrogate pair, no NUL: there are viewers that stop at either."""
    return isinstance(text, str) and "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)
