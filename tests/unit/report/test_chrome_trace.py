"""Profiles as Chrome traces: the schema, what viewers see, how files are written, and reading them again."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest

from profile_samples import cuda_trace, sample_profile, save_cpu_trace, write_json
from tilegrad.errors import FormatError, InputError
from tilegrad.importers.torch_trace import load_torch_trace, sniff_torch_trace
from tilegrad.profile import Block, Operator, Profile, Span
from tilegrad.report.chrome_trace import chrome_trace, format_chrome_trace, save_chrome_trace
from trace_schema import check_events, check_trace


def saved(profile: Profile) -> Any:
    return json.loads("".join(format_chrome_trace(profile)))


def events_of(profile: Profile, ph: str) -> list[dict[str, Any]]:
    return [event for event in saved(profile)["traceEvents"] if event["ph"] == ph]


def one_operator(**fields: Any) -> Profile:
    return Profile("p", "recorded", (Operator("0", "a", "t", **fields),))


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    save_chrome_trace(sample_profile(), tmp_path / name)
    assert load_torch_trace(tmp_path / name) == sample_profile()
    raw = (tmp_path / name).read_bytes()
    assert (raw[:2] == b"\x1f\x8b") == name.endswith(".gz")
    text = gzip.decompress(raw) if name.endswith(".gz") else raw
    assert text.isascii() and sniff_torch_trace(text[:4096])
    check_trace(json.loads(text))


def test_imported_traces_come_back(tmp_path: Path) -> None:
    real = save_cpu_trace(tmp_path / "r.json", profile_memory=True, record_shapes=True, with_stack=True)
    for path in (real, write_json(tmp_path / "cuda.json", cuda_trace())):
        profile = load_torch_trace(path)
        save_chrome_trace(profile, tmp_path / "own.json")
        assert load_torch_trace(tmp_path / "own.json") == profile
        check_trace(json.loads((tmp_path / "own.json").read_text()))


def test_the_same_profile_makes_the_same_file(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        save_chrome_trace(sample_profile(), tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_an_empty_profile(tmp_path: Path) -> None:
    empty = Profile("", "recorded", ())
    save_chrome_trace(empty, tmp_path / "t.json")
    assert load_torch_trace(tmp_path / "t.json") == empty


def test_spans_threads_and_streams() -> None:
    spans = events_of(sample_profile(), "X")
    assert [(e["cat"], e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in spans] == [
        ("cpu_op", "conv</script>", 1, 1, 0.0, 200000.0),
        ("kernel", "sgemm", 2, 1, 0.0, 83333.333333),  # the device has a zero of its own
        ("kernel", "conv", 2, 2, 150000.0, 0.0),
        ("cpu_op", "add", 1, 2, 400000.0, 250000.0),
    ]
    assert spans[0]["args"]["wait (us)"] == spans[0]["args"]["kernel (us)"] == 100000.0
    names = {(e["name"], e["pid"], e["tid"]): e["args"].get("name") for e in events_of(sample_profile(), "M")}
    assert names["thread_name", 1, 1] == "main" and names["thread_name", 2, 2] == "cuda 0 stream 20"
    assert names["process_name", 2, 0] == "cuda 0"


def test_one_clock_has_one_zero() -> None:
    profile = one_operator(host=Span(5.0, 6.0), device=Span(7.0, 8.0))
    assert [e["ts"] for e in events_of(profile, "X")] == [0.0, 2e6]
    assert [e["ts"] for e in events_of(dataclasses.replace(profile, one_clock=False), "X")] == [0.0, 0.0]


def test_memory_and_counters() -> None:
    profile = Profile(
        "p", "simulated", (), (Block("a", 5, 0, 2, device="d"), Block("b", 3, 1, 3, device="d")), (1.0, 2.0, 3.0)
    )
    instants = [(e["ts"], e["args"]["Bytes"], e["args"]["Total Allocated"]) for e in events_of(profile, "i")]
    assert instants == [(0.0, 5, 5), (1e6, 3, 8), (2e6, -5, 3)]
    counters = [(e["name"], e["ts"], e["args"]["bytes"]) for e in events_of(profile, "C")]
    assert counters == [("live bytes d", 0.0, 5), ("live bytes d", 1e6, 8), ("live bytes d", 2e6, 3)]


def test_torchs_own_devices() -> None:
    blocks = tuple(Block("x", 1, 0, 1, device=device) for device in ("cpu", "cuda 3", "cuda:4", "gpu0:0", "", "cuda x"))
    found = [
        (e["args"]["Device Type"], e["args"]["Device Id"])
        for e in events_of(Profile("p", "f", (), blocks, (0.0,)), "i")
    ]
    assert found == [(0, -1), (1, 3), (1, 4), (20, 3), (20, 4), (20, 5)]


def test_times_beyond_all_stay_finite(tmp_path: Path) -> None:
    profile = one_operator(host=Span(-1.7e308, 1.7e308, 0.0), device=Span(5e-324, 1e-323))
    check_events(chrome_trace(profile))
    save_chrome_trace(profile, tmp_path / "t.json")
    assert load_torch_trace(tmp_path / "t.json") == profile


class _Colour(StrEnum):
    RED = "red"


class _Level(IntEnum):
    LOW = 1


def test_attributes_become_json(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    attrs = {"t": (1, 2), "nan": float("nan"), "c": _Colour.RED, "l": _Level.LOW, "p": Path("x"), "m": {3: True}}
    save_chrome_trace(one_operator(attrs=attrs | {"deep": deep}), tmp_path / "t.json")
    found = dict(load_torch_trace(tmp_path / "t.json").operators[0].attrs)
    assert "..." in json.dumps(found.pop("deep"))
    assert found == {"t": [1, 2], "nan": "nan", "c": "red", "l": 1, "p": "x", "m": {"3": True}}


def test_halves_of_a_pair_come_back_as_one(tmp_path: Path) -> None:
    save_chrome_trace(Profile("\ud83d\ude00 \ude00\ud83d", "f", ()), tmp_path / "t.json")
    assert load_torch_trace(tmp_path / "t.json").name == "\U0001f600 \ude00\ud83d"


def test_events_come_one_by_one() -> None:
    """What is made is not held: a trace of some megabytes takes little memory."""
    ops = tuple(Operator(str(at), "a", "t", Span(at, at + 1)) for at in range(3_000))
    blocks = tuple(Block("b", 1, at, at + 1) for at in range(3_000))
    profile = Profile("p", "f", ops, blocks, tuple(map(float, range(3_001))))
    tracemalloc.start()
    size = sum(map(len, format_chrome_trace(profile)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 2_000_000 and peak < 1_000_000


# ------------------------------------------------------------------------------------------------- files


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")
    with pytest.raises(InputError, match="cannot be written"):
        save_chrome_trace(dataclasses.replace(one_operator(), facts={"n": 10**5000}), path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["t.json"]


@pytest.mark.parametrize("target", ["", "none/t.json", "nul\0.json"])
def test_places_that_are_no_file(target: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the trace cannot be written"):
        save_chrome_trace(sample_profile(), f"{tmp_path}/{target}")
    assert not os.listdir(tmp_path)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    save_chrome_trace(sample_profile(), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink() and load_torch_trace(tmp_path / "real.json") == sample_profile()


# ------------------------------------------------------------------------------------------------- read again


def test_order_does_not_matter(tmp_path: Path) -> None:
    data = saved(sample_profile())
    data["traceEvents"].reverse()
    path = write_json(tmp_path / "t.json", {key: data[key] for key in reversed(data)})
    assert load_torch_trace(path) == sample_profile()


def _set(*keys: Any) -> Callable[[Any], None]:
    """Put the last of these where the others lead."""

    def change(data: Any) -> None:
        for key in keys[:-2]:
            data = data[key]
        data[keys[-2]] = keys[-1]

    return change


def _change_first(kind: str, key: str, value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for event in data["traceEvents"]:
            record = event["args"].get("tilegrad", {}).get(kind)
            if record:
                record[key] = value
                return

    return change


BROKEN: dict[str, tuple[Callable[[Any], None], str]] = {
    "newer": (_set("tilegrad", "schema", 2), "schema 2; this version reads 1"),
    "true": (_set("tilegrad", "schema", True), "schema True"),
    "none": (_set("tilegrad", "schema", None), "schema None"),
    "no head": (_set("tilegrad", 7), "an object must stand here"),
    "name": (_set("tilegrad", "name", 7), "no text, but 7"),
    "count": (_set("tilegrad", "operators", 2**63), "no number from 0"),
    "missing": (_set("tilegrad", "operators", 9), "4 records 'operator' where there should be 9"),
    "ticks": (_set("tilegrad", "ticks", 3), "times of 4 ticks where there should be 3"),
    "cut": (lambda data: data["traceEvents"].pop(4), "records 'operator'"),
    "twice": (lambda data: data["traceEvents"].append(data["traceEvents"][4]), "two of the place 0"),
    "clock": (_change_first("clock", "at", 1), "no times from tick 0 on"),
    "backward": (_change_first("clock", "seconds", [3.0, 2.0, 1.0, 0.0]), "rule R3"),
    "span": (_change_first("operator", "host", [1]), "no start, end"),
    "end": (_change_first("operator", "host", [2, 1]), "rule R1"),
    "big": (_change_first("operator", "host", [0, 10**400]), "rule R1"),
    "phase": (_change_first("operator", "phase", "sideways"), "no phase is called 'sideways'"),
    "phases": (_change_first("operator", "phase", []), "no phase is called"),
    "shape": (_change_first("operator", "in_shapes", [[1.5]]), "no list of shapes"),
    "attrs": (_change_first("operator", "attrs", [1]), "no object, but [1]"),
    "kind": (_change_first("block", "kind", "pocket"), "no kind of memory is called 'pocket'"),
    "bytes": (_change_first("block", "bytes", 2**63), "rule R2"),
    "maker": (_change_first("block", "maker", 99), "rule R4"),
    "owned": (_change_first("block", "owned", 1), "no true or false"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_traces_of_ours(case: str, tmp_path: Path) -> None:
    data = saved(sample_profile())
    change, what = BROKEN[case]
    change(data)
    with pytest.raises(FormatError) as caught:
        load_torch_trace(write_json(tmp_path / "t.json", data))
    assert what in caught.value.what and caught.value.where
