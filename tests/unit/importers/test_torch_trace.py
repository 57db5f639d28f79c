"""Traces of torch.profiler into profiles: real ones of the CPU, hand-made ones of CUDA, odd and broken ones."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profile_samples import (
    ENGINE,
    HOST,
    Event,
    cuda_events,
    cuda_trace,
    kernel,
    launch,
    memory,
    op,
    save_cpu_trace,
    write_json,
)
from tilegrad.errors import FormatError
from tilegrad.importers.torch_trace import load_torch_trace, sniff_torch_trace
from tilegrad.ir import Phase
from tilegrad.profile import BlockKind, Profile, Span

FULL = {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_modules": True, "with_flops": True}


@pytest.fixture
def load(tmp_path: Path) -> Callable[[Any], Profile]:
    return lambda data: load_torch_trace(write_json(tmp_path / "trace.json", data))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_cpu_trace(tmp_path_factory.mktemp("traces") / "full.json", **FULL)


def trace(*events: Event) -> Event:
    return {"schemaVersion": 1, "traceEvents": list(events)}


def error_of(load: Callable[[Any], Profile], data: Any) -> FormatError:
    with pytest.raises(FormatError) as caught:
        load(data)
    assert caught.value.where
    return caught.value


# ------------------------------------------------------------------------------------------------- real traces


def test_a_real_trace(full: Path) -> None:
    profile = load_torch_trace(full)
    types = [op.type for op in profile.operators]
    assert types[:5] == ["aten::conv2d", "aten::relu", "aten::mean", "aten::linear", "aten::sum"]
    conv = profile.operators[0]
    assert conv.in_shapes == ((2, 3, 8, 8), (4, 3, 3, 3), (4,))
    assert conv.attrs["types"] == ["float", "float", "float"]
    assert conv.module == "Net_0.Sequential_0.Conv2d_0" and conv.phase is Phase.FORWARD
    assert conv.host is not None and conv.device is None and 0 < conv.host.total_s < 60
    backward = profile.operators[types.index("aten::convolution_backward")]
    assert backward.phase is Phase.BACKWARD and backward.module == conv.module  # by sequence number
    assert {op.phase for op in profile.operators if op.type == "aten::add_"} == {Phase.UPDATE}
    assert not any("Backward0" in t or t.startswith("autograd::engine") for t in types)
    starts = [op.host.start_s for op in profile.operators if op.host]
    assert starts == sorted(starts) and starts[0] >= 0
    assert profile.format == "torch trace" and profile.name == "full.json" and profile.notes == ()
    assert profile.facts["with_flops"] == 1


def test_memory_of_a_real_trace(full: Path) -> None:
    profile = load_torch_trace(full)
    made = [block for block in profile.blocks if block.maker == 0]
    (out,) = [block for block in made if block.kind is BlockKind.ACTIVATION]
    assert out.bytes == 2 * 4 * 6 * 6 * 4 and out.device == "cpu" and out.name.startswith("aten::conv2d ")
    assert all(block.kind is BlockKind.WORKSPACE for block in made if block is not out)
    live, most = 0, 0
    for tick in range(profile.ticks):
        live += sum(b.bytes for b in profile.blocks if b.start == tick) - sum(
            b.bytes for b in profile.blocks if b.stop == tick
        )
        most = max(most, live)
    assert most == profile.facts["allocated_peak_bytes"]["cpu"]


@pytest.mark.parametrize("option", [*FULL, None])
def test_real_traces_with_one_option(option: str | None, tmp_path: Path) -> None:
    profile = load_torch_trace(save_cpu_trace(tmp_path / "t.json.gz", **({option: True} if option else {})))
    assert profile.operators[0].type == "aten::conv2d"
    assert bool(profile.blocks) == (option == "profile_memory")
    assert bool(profile.operators[0].in_shapes) == (option in ("record_shapes", "with_flops"))
    assert profile.operators[0].module == ("Net_0.Sequential_0.Conv2d_0" if option == "with_stack" else "step")


# ------------------------------------------------------------------------------------------------- CUDA


def test_kernels_belong_to_operators(load: Callable[[Any], Profile]) -> None:
    profile = load(cuda_trace())
    found = {op.id: op for op in profile.operators}
    assert list(found) == ["0", "0.1", "1", "2", "3", "4", "5"]
    conv, more = found["0"], found["0.1"]
    assert conv.type == more.type == "aten::conv2d"
    assert (conv.host, conv.thread) == (Span(9.5e-06, 8.95e-05), "thread 4711 (python)")
    assert (conv.device, conv.stream) == (Span(2.975e-05, 3.4875e-05), "cuda 0 stream 7")
    assert conv.kernel == "void im2col_kernel<float>(int)" and more.kernel == "sm90_xmma_fprop<float>"
    assert more.host is None and more.flops is None and more.in_shapes == () and more.thread == ""
    assert conv.flops == 15552  # those inside are the same again
    assert conv.attrs == {
        "types": ["float", "float"],
        "inputs": ["", "", "", "[1, 1]"],
        "grid": [27, 1, 1],
        "block": [128, 1, 1],
    }
    assert [op.phase for op in profile.operators] == [
        Phase.FORWARD,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.UPDATE,
        Phase.FORWARD,
        None,
        None,
    ]
    assert found["1"].module == "Net_0.Conv2d_0" and found["1"].thread == "thread 4800"
    assert found["2"].in_shapes == ((4, 3, 3, 3), (4,)) and found["2"].stream == "cuda 0 stream 20"
    assert found["3"].bytes == 1728 and found["3"].module == "copy back"
    assert (found["4"].type, found["4"].name, found["4"].host) == ("kernel", "graph_kernel_0", None)
    assert (found["5"].type, found["5"].bytes) == ("memset", 512)
    assert profile.one_clock and profile.notes == ()


def test_memory_of_cuda(load: Callable[[Any], Profile]) -> None:
    profile = load(cuda_trace())
    found = {block.name: block for block in profile.blocks}
    assert profile.clock == (0.0, 1.55e-05, 1.65e-05, 5.95e-05, 0.0002055, 0.0002695, 0.0004495)
    before, out, scratch = found["before 0"], found["aten::conv2d 0"], found["aten::conv2d 1"]
    assert (before.bytes, before.start, before.stop, before.maker) == (500, 0, 6, None)
    assert (out.kind, out.start, out.stop, out.maker) == (BlockKind.ACTIVATION, 1, 5, 0)
    assert (scratch.kind, scratch.start, scratch.stop) == (BlockKind.WORKSPACE, 2, 3)
    assert found["aten::convolution_backward 0"].kind is BlockKind.GRADIENT
    assert found["aten::convolution_backward 0"].stop == profile.ticks
    assert found["aten::convolution_backward 0"].maker == 2  # place, not id
    assert {block.device for block in profile.blocks} == {"cuda 0"}
    assert profile.facts["reserved_peak_bytes"] == {"cuda 0": 2097152}


def test_what_was_allocated_before_is_one_block(load: Callable[[Any], Profile]) -> None:
    profile = load(trace(memory(10, 100, 8, 1100), memory(20, -300, 16, 800), memory(30, 5, 24, 5, device=0)))
    assert {(b.name, b.bytes, b.start, b.stop, b.device) for b in profile.blocks} == {
        ("allocated before the trace", 700, 0, 4, "cuda 0"),
        ("before 0", 300, 0, 2, "cuda 0"),
        ("memory 0", 100, 1, 4, "cuda 0"),
        ("memory 1", 5, 3, 4, "cpu"),
    }


def test_missed_frees_and_allocations(load: Callable[[Any], Profile]) -> None:
    profile = load(trace(memory(1, 10, 8, 10), memory(2, 20, 8, 20), memory(3, -20, 8, 0), memory(4, -20, 8, 0)))
    assert [(b.bytes, b.start, b.stop) for b in profile.blocks] == [(10, 1, 2), (20, 2, 3), (20, 3, 4)]
    assert len(profile.notes) == 2 and "freed twice" in profile.notes[1]


def test_external_id_tells_where_no_launch_is_seen(load: Callable[[Any], Profile]) -> None:
    inner = op("aten::inner", 11, 5, 22)
    profile = load(trace(op("aten::outer", 10, 9, 21), inner, kernel("k", 30, 2, 500, 22), kernel("l", 33, 2, 501, 77)))
    assert [(o.id, o.type, o.kernel) for o in profile.operators] == [("0", "aten::outer", "k"), ("1", "kernel", "l")]


def test_duplicate_correlations_are_noted(load: Callable[[Any], Profile]) -> None:
    ops = [op("aten::a", 10, 9, 1), op("aten::b", 20, 9, 2)]
    profile = load(trace(*ops, launch("x", 11, 7, 1), launch("x", 21, 7, 2), kernel("k", 30, 1, 7, 0)))
    assert profile.operators[0].kernel == "k" and profile.operators[1].device is None
    assert profile.notes == ("1 launches with the correlation id of another: the first counts",)


def test_flops_of_the_outermost_that_tell(load: Callable[[Any], Profile]) -> None:
    inner = [
        op("aten::addmm", 11, 4, 2, flops=6),
        op("aten::mm", 12, 1, 3, flops=5),
        op("aten::add", 16, 1, 4, flops=2.0),
    ]
    assert load(trace(op("aten::linear", 10, 9, 1), *inner)).operators[0].flops == 8


# ------------------------------------------------------------------------------------------------- forms and nesting


def test_the_bare_form_and_any_order(load: Callable[[Any], Profile]) -> None:
    whole = load(cuda_trace())
    bare = load(cuda_events())
    assert bare.operators == whole.operators and bare.blocks == whole.blocks
    assert load(list(reversed(cuda_events()))).operators == whole.operators
    assert load({"traceEvents": cuda_events(), "schemaVersion": 1}).blocks == whole.blocks


def test_unbalanced_nesting_is_clipped(load: Callable[[Any], Profile]) -> None:
    """The inner one outlasts its operator: what comes after the operator is not inside."""
    profile = load(trace(op("aten::a", 10, 10, 1), op("aten::inner", 15, 10, 2), op("aten::b", 22, 2, 3)))
    assert [o.type for o in profile.operators] == ["aten::a", "aten::b"]


def test_neighbours_are_not_inside(load: Callable[[Any], Profile]) -> None:
    """0.1 + 0.2 is more than 0.3: times are whole nanoseconds."""
    profile = load(trace(op("aten::a", 100.1, 0.2, 1), op("aten::b", 100.3, 0.2, 2)))
    assert [o.type for o in profile.operators] == ["aten::a", "aten::b"]
    assert profile.operators[1].host == Span(2e-7, 4e-7)


def test_what_is_no_operator(load: Callable[[Any], Profile]) -> None:
    names = ["detach", "autograd::engine::evaluate_function: X", "aten::x"]
    profile = load(trace(*(op(name, 10.0 * at, 5, at + 1) for at, name in enumerate(names))))
    assert [o.type for o in profile.operators] == ["aten::x"]


def test_phases_and_annotations(load: Callable[[Any], Profile]) -> None:
    note = {"ph": "X", "cat": "user_annotation", **HOST}
    profile = load(
        trace(
            note | {"name": "enumerate(DataLoader)#_Iter.__next__", "ts": 0, "dur": 10},
            op("aten::stack", 1, 2, 1),
            note | {"name": "outer", "ts": 20, "dur": 50},
            note | {"name": "inner", "ts": 30, "dur": 20},
            op("aten::a", 31, 2, 2),
            note | {"name": "Optimizer.zero_grad#SGD.zero_grad", "ts": 55, "dur": 10},
            op("aten::zero_", 56, 2, 3),
        )
    )
    assert [(o.phase, o.module) for o in profile.operators] == [
        (None, ""),
        (Phase.FORWARD, "outer.inner"),
        (Phase.UPDATE, "outer"),
    ]


def test_threads_have_names_of_their_own(load: Callable[[Any], Profile]) -> None:
    events = [op("aten::a", 1, 1, 1), op("aten::b", 3, 1, 2, ENGINE), op("aten::c", 5, 1, 3, {"pid": 9, "tid": "x"})]
    names = [{"ph": "M", "name": "thread_name", **where, "args": {"name": "t"}} for where in (HOST, ENGINE)]
    assert [o.thread for o in load(trace(*events[:2], *names)).operators] == ["t", "t #2"]
    threads = [o.thread for o in load(trace(*events)).operators]
    assert threads == ["process 4711 thread 4711", "process 4711 thread 4800", "process 9 thread x"]


def test_sniff(full: Path) -> None:
    assert sniff_torch_trace(full.read_bytes()[:4096])
    assert sniff_torch_trace(b'\xef\xbb\xbf \n{"traceEvents" : [')
    assert sniff_torch_trace(b'{"displayTimeUnit":"ms","schemaVersion": 1, "deviceProperties": [' + b"x" * 4000)
    assert sniff_torch_trace(b'[\n{"name": "x", "ph": "X"')
    for other in (b"", b"{", b"[1, 2]", b'{"profiler": {}}', b'{"segments": []}', b"graph x", b"\x80\x04", b"[[{]]"):
        assert not sniff_torch_trace(other)


def test_progress_is_told(full: Path) -> None:
    told: list[tuple[int, int]] = []
    load_torch_trace(full, lambda done, total: told.append((done, total)))
    assert told and told[-1][0] == told[-1][1] == full.stat().st_size


# ------------------------------------------------------------------------------------------------- odd and broken


def test_durations_that_are_none_count_as_nothing(load: Callable[[Any], Profile]) -> None:
    bare = op("aten::b", 30, 1, 2)
    del bare["dur"]
    profile = load(trace(op("aten::a", 10, -1, 1), bare, op("aten::c", 40, 2, 3, **{"Input Dims": ["?", [1], -3]})))
    assert [o.host for o in profile.operators] == [Span(0.0, 0.0), Span(2e-5, 2e-5), Span(3e-5, 3.2e-5)]
    assert profile.notes == (
        "1 events of less than no duration, which counts as 0",
        "1 events with no duration, which counts as 0",
        "2 shapes that cannot be read, and are left out",
    )
    assert profile.operators[2].in_shapes == ((1,),)


BROKEN: dict[str, tuple[list[Any], str, str]] = {
    "an event that is none": ([3], "must be an object", "(traceEvents.0)"),
    "no time": ([op("aten::a", 0, 1, 1) | {"ts": None}], "no time in microseconds, but nothing", "(traceEvents.0.ts)"),
    "a text for a time": ([op("aten::a", 0, 1, 1) | {"dur": "1"}], "but '1'", "(traceEvents.0.dur)"),
    "endless": ([op("aten::a", 1e300, 1, 1)], "a time beyond all", "(traceEvents.0.ts)"),
    "true": ([op("aten::a", 0, 1, 1) | {"ts": True}], "but True", ".ts)"),
    "no name": ([op("aten::a", 0, 1, 1) | {"name": 5}], "no text", ".name)"),
    "args": ([op("aten::a", 0, 1, 1) | {"args": []}], "no object", ".args)"),
    "a list for a thread": ([op("aten::a", 0, 1, 1) | {"tid": [1]}], "no process and thread", ".pid)"),
    "flops": ([op("aten::a", 0, 1, 1, flops=-1)], "no whole number", ".args.flops)"),
    "external": ([op("aten::a", 0, 1, 1, **{"External id": "x"})], "no whole number", ".args.External id)"),
    "huge": ([memory(1, 2**63, 8, 0)], "no whole number", ".args.Bytes)"),
    "address": ([memory(1, 8, -1, 0)], "no whole number", ".args.Addr)"),
    "no bytes": ([{**memory(1, 8, 1, 0), "args": {"Addr": 1}}], "but nothing", ".args.Bytes)"),
    "stream": ([{**kernel("k", 1, 1, 1, 1), "args": {"stream": {}}}], "no stream", ".args.stream)"),
    "correlation": ([launch("l", 1, 2**70, 1)], "no whole number", ".args.correlation)"),
    "nothing": ([], "no events", "trace.json"),
    "nothing of use": ([{"ph": "M"}], "no operator, kernel or memory", "trace.json"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_events(case: str, load: Callable[[Any], Profile]) -> None:
    events, what, where = BROKEN[case]
    error = error_of(load, trace(*events))
    assert what in error.what and error.where is not None and error.where.endswith(where)


def test_the_place_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [\n{"ph": "M"},\n  {"ph": "X", "cat": "cpu_op", "name": "aten::a", "ts": 1e999}]}')
    with pytest.raises(FormatError) as caught:
        load_torch_trace(path)
    assert caught.value.where == "t.json:3:3 (traceEvents.1.ts)"


@pytest.mark.parametrize("data", [{}, {"a": 1}, 3, "x", None, [[]], {"traceEvents": {}}, {"traceEvents": None}])
def test_what_is_no_trace(data: Any, load: Callable[[Any], Profile]) -> None:
    error_of(load, data)


def test_packed_and_cut(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(cuda_trace()).encode())
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    assert len(load_torch_trace(path).operators) == 7
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(FormatError):
        load_torch_trace(path)


def test_unknown_events_do_not_matter(load: Callable[[Any], Profile]) -> None:
    odd = [{}, {"ph": 3}, {"ph": "X"}, {"ph": "X", "cat": ["cpu_op"]}, {"ph": "B", "name": "x", "ts": "?"}]
    assert load(trace(*odd, *copy.deepcopy(cuda_events()))).operators == load(cuda_trace()).operators
