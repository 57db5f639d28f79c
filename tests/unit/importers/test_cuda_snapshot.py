"""CUDA memory snapshots into profiles; pickles are refused with the line that writes JSON."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profile_samples import snapshot, write_json
from tilegrad.errors import FormatError
from tilegrad.importers import load_profile
from tilegrad.importers.cuda_snapshot import load_cuda_snapshot, sniff_cuda_snapshot, sniff_pickle
from tilegrad.profile import Profile


@pytest.fixture
def load(tmp_path: Path) -> Callable[[Any], Profile]:
    return lambda data: load_cuda_snapshot(write_json(tmp_path / "s.json", data))


def history(*events: dict[str, Any]) -> dict[str, Any]:
    return {"segments": [], "device_traces": [list(events)]}


def test_blocks(load: Callable[[Any], Profile]) -> None:
    profile = load(snapshot())
    assert [(b.name, b.bytes, b.start, b.stop, b.address) for b in profile.blocks] == [
        ("memory 0", 300, 0, 4, 0x2000800),  # freed, but never seen allocated
        ("memory 1", 2000, 0, 7, 0x2000000),  # in a segment, but never seen allocated
        ("model.py:12 forward", 1000, 1, 3, 0x1000000),  # until the free is completed
        ("conv.py:548 _conv_forward", 512, 2, 7, 0x1000400),
        ("at::native::convolution(at::Tensor const&)", 20000000, 5, 6, 0x4000000),
    ]
    assert profile.clock == (0.0, 1e-05, 2e-05, 3.5e-05, 4e-05, 5.1e-05, 6e-05)
    assert {b.device for b in profile.blocks} == {"cuda 0"} and profile.operators == ()
    assert profile.format == "cuda memory snapshot"


def test_facts(load: Callable[[Any], Profile]) -> None:
    profile = load(snapshot())
    assert profile.facts["devices"] == {
        "cuda 0": {
            "reserved_bytes": 2 * 2097152,
            "reserved_peak_bytes": 2 * 2097152 + 20971520,
            "allocated_bytes": 2560,
            "free_bytes": 2 * 2097152 - 2560,
            "largest_free_bytes": 2095104,
            "segments": 2,
            "fragmentation": 1 - 2560 / (2 * 2097152),
        }
    }
    assert profile.facts["out_of_memory"] == 1
    assert profile.notes == ("out of memory on cuda 0: 1099511627776 bytes were asked for",)
    assert profile.facts["allocator_settings"]["max_split_size"] == -1


def test_devices_share_a_clock(load: Callable[[Any], Profile]) -> None:
    events = [[{"action": "alloc", "addr": 8, "size": 4, "time_us": at}] for at in (20, 10)]
    profile = load({"segments": [], "device_traces": events})
    assert [(b.device, b.start) for b in profile.blocks] == [("cuda 1", 1), ("cuda 0", 2)]
    assert profile.clock == (0.0, 0.0, 1e-05)


def test_events_without_time_and_addresses_taken(load: Callable[[Any], Profile]) -> None:
    one = {"action": "alloc", "addr": 8, "size": 4}
    profile = load(history(one | {"time_us": 5}, one, one | {"action": "free_completed", "time_us": 9}))
    assert [(b.start, b.stop) for b in profile.blocks] == [(1, 2), (2, 3)]
    assert len(profile.notes) == 2


def test_blocks_without_addresses_lie_in_a_row(load: Callable[[Any], Profile]) -> None:
    blocks = [{"size": 512, "state": "inactive"}, {"size": 256, "state": "active_allocated"}]
    profile = load({"segments": [{"address": 4096, "total_size": 1024, "blocks": blocks}], "device_traces": []})
    assert [(b.address, b.bytes, b.start, b.stop) for b in profile.blocks] == [(4608, 256, 0, 1)]


def test_many_ooms_are_counted(load: Callable[[Any], Profile]) -> None:
    oom = {"action": "oom", "size": 5, "time_us": 1}
    profile = load(history(*[oom] * 20, {"action": "alloc", "addr": 1, "size": 1, "time_us": 2}))
    assert len(profile.notes) == 9 and profile.notes[-1] == "12 more times out of memory"


BROKEN: dict[str, tuple[Any, str, str]] = {
    "event": (history(3), "an object", "(device_traces.0.0)"),  # type: ignore[arg-type]
    "action": (history({"addr": 1}), "no action", "(device_traces.0.0.action)"),
    "size": (history({"action": "alloc", "addr": 1, "size": 2**63}), "no whole number", ".size)"),
    "addr": (history({"action": "alloc", "addr": -1, "size": 1}), "no whole number", ".addr)"),
    "time": (history({"action": "alloc", "addr": 1, "size": 1, "time_us": 1.5}), "no time", ".time_us)"),
    "frames": (history({"action": "alloc", "addr": 1, "size": 1, "frames": 7}), "no array", ".frames)"),
    "segment": ({"segments": [None]}, "an object", "(segments.0)"),
    "total": ({"segments": [{}]}, "but None", "(segments.0.total_size)"),
    "block": ({"segments": [{"total_size": 1, "blocks": [1]}]}, "an object", "(segments.0.blocks.0)"),
    "traces": ({"device_traces": [{}]}, "an array", "(device_traces.0)"),
    "empty": ({"segments": [], "device_traces": []}, "no memory", "s.json"),
    "other": ({"traceEvents": []}, "no 'segments'", "s.json:1:20"),
    "array": ([], "an object", "s.json:1:1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken(case: str, load: Callable[[Any], Profile]) -> None:
    data, what, where = BROKEN[case]
    with pytest.raises(FormatError) as caught:
        load(data)
    assert what in caught.value.what and caught.value.where is not None and caught.value.where.endswith(where)


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize("packed", [False, True])
def test_pickles_are_refused(packed: bool, tmp_path: Path) -> None:
    data = pickle.dumps({"segments": [], "device_traces": [], "x": _Bomb()})
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(FormatError, match="a pickle, which could run any code") as caught:
        load_profile(path)
    assert caught.value.where == "snapshot.pickle"
    assert caught.value.hint is not None and "json.dump(torch.cuda.memory._snapshot()," in caught.value.hint


def test_sniff() -> None:
    assert sniff_cuda_snapshot(b' {\n "segments" : [') and sniff_cuda_snapshot(b'{"device_traces":[[')
    for other in (b"", b'{"segments": 3', b'{"traceEvents": [', b"[]"):
        assert not sniff_cuda_snapshot(other)
    assert all(sniff_pickle(pickle.dumps({}, protocol)) for protocol in (2, 3, 4, 5))
    for other in (b"", b"\x80", b"{}", b"\x80\x80", b"\x1f\x8b"):
        assert not sniff_pickle(other)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        load_cuda_snapshot(tmp_path / "none.json")
