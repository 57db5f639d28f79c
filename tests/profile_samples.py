"""Small traces, snapshots and profiles for tests: torch's forms, made here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from tilegrad.ir import Phase
from tilegrad.profile import Block, BlockKind, Operator, Profile, Span

HOST = {"pid": 4711, "tid": 4711}
ENGINE = {"pid": 4711, "tid": 4800}
MODEL = "/home/me/model.py"
TRIES = 10

Event = dict[str, Any]


def write_json(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def save_trace(path: Path, run: Callable[[], object], **options: bool) -> Path:
    """What torch's profiler records of it. Asked for the stack, it now and then reads the name of a function that is
    gone: then once more."""
    for _ in range(TRIES):
        try:
            with profile(activities=[ProfilerActivity.CPU], acc_events=True, **options) as recorded:
                run()
        except UnicodeDecodeError:
            continue
        recorded.export_chrome_trace(str(path))
        return path
    raise AssertionError(f"no trace in {TRIES} tries")


def save_cpu_trace(path: Path, **options: bool) -> Path:
    """A real trace of one training step."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.features(x).mean((2, 3)))

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(2, 3, 8, 8)

    def step() -> None:
        with record_function("step"):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

    return save_trace(path, step, **options)


def op(name: str, ts: float, dur: float, external: int, where: Event = HOST, **args: Any) -> Event:
    more = {"External id": external, "Record function id": 0, "Ev Idx": external} | args
    return {"ph": "X", "cat": "cpu_op", "name": name, **where, "ts": ts, "dur": dur, "args": more}


def launch(name: str, ts: float, correlation: int, external: int, where: Event = HOST) -> Event:
    args = {"External id": external, "cbid": 211, "correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, **where, "ts": ts, "dur": 3.5, "args": args}


def kernel(name: str, ts: float, dur: float, correlation: int, external: int, stream: int = 7) -> Event:
    args = {"External id": external, "queued": 0, "device": 0, "context": 1, "stream": stream}
    args |= {"correlation": correlation, "registers per thread": 32, "shared memory": 0, "blocks per SM": 0.25}
    args |= {"warps per SM": 1.5, "grid": [27, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 2}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def copied(name: str, ts: float, dur: float, correlation: int, external: int, bytes: int) -> Event:
    args = {"External id": external, "device": 0, "context": 1, "stream": 7, "correlation": correlation}
    args |= {"bytes": bytes, "memory bandwidth (GB/s)": bytes / dur / 1000}
    cat = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def memory(ts: float, bytes: int, address: int, total: int, where: Event = HOST, device: int = 1) -> Event:
    args = {"Total Reserved": 2097152 if device else 0, "Total Allocated": total, "Bytes": bytes}
    args |= {"Device Id": 0 if device else -1, "Device Type": device, "Addr": address, "Ev Idx": 3}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", **where, "ts": ts, "args": args}


def flow(correlation: int, sent: float, done: float) -> list[Event]:
    both = {"id": correlation, "cat": "ac2g", "name": "ac2g"}
    return [{"ph": "s", **HOST, "ts": sent} | both, {"ph": "f", "pid": 0, "tid": 7, "ts": done, "bp": "e"} | both]


def cuda_events() -> list[Event]:
    """A convolution of two kernels, its backward on the engine's thread, an update, a copy; and a kernel of a graph."""
    dims = {"Input Dims": [[2, 3, 8, 8], [4, 3, 3, 3], [], []], "Input type": ["float", "float", "", "ScalarList"]}
    given = {"Concrete Inputs": ["", "", "", "[1, 1]"], "Sequence number": 6, "Fwd thread id": 0}
    module = {"ph": "X", "cat": "python_function", **HOST, "args": {"Python id": 1, "Python parent id": None}}
    backward = "autograd::engine::evaluate_function: ConvolutionBackward0"
    note = {"ph": "X", "cat": "user_annotation", **HOST}
    return [
        {"ph": "M", "name": "process_name", "ts": 1000.0, "pid": 4711, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "ts": 1000.0, **HOST, "args": {"name": "thread 4711 (python)"}},
        {"ph": "M", "name": "thread_name", "ts": 1000.0, "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
        {
            "ph": "X",
            "cat": "overhead",
            "name": "Activity Buffer Request",
            "pid": -1,
            "tid": 0,
            "ts": 1000.0,
            "dur": 1.0,
        },
        note | {"name": "ProfilerStep#3", "ts": 1000.5, "dur": 900.0, "args": {"External id": 1}},
        module | {"name": "nn.Module: Net_0", "ts": 1001.0, "dur": 150.0},
        module | {"name": "nn.Module: Conv2d_0", "ts": 1002.0, "dur": 100.0},
        module | {"name": "torch/nn/modules/conv.py(548): forward", "ts": 1003.0, "dur": 90.0},
        op("aten::conv2d", 1010.0, 80.0, 2, **dims, **given, flops=15552),
        op("aten::cudnn_convolution", 1015.0, 60.0, 3, **dims, flops=15552),
        memory(1016.0, 1152, 0x7F0000000000, 1652),
        memory(1017.0, 4096, 0x7F0000001000, 5748),
        launch("cudaLaunchKernel", 1020.0, 101, 3),
        launch("cudaLaunchKernel", 1030.0, 102, 3),
        memory(1060.0, -4096, 0x7F0000001000, 1652),
        *flow(101, 1020.0, 1030.25),
        kernel("void im2col_kernel<float>(int)", 1030.25, 5.125, 101, 3),
        kernel("sm90_xmma_fprop<float>", 1036.5, 20.75, 102, 3),
        op(backward, 1200.0, 90.0, 4, ENGINE, **{"Sequence number": 6, "Fwd thread id": 1}),
        op("ConvolutionBackward0", 1201.0, 85.0, 5, ENGINE, **{"Sequence number": 6, "Fwd thread id": 1}),
        op("aten::convolution_backward", 1205.0, 70.0, 6, ENGINE),
        memory(1206.0, 432, 0x7F0000002000, 2084, ENGINE),
        launch("cuLaunchKernelEx", 1210.0, 103, 6, ENGINE) | {"cat": "cuda_driver"},
        kernel("sm90_xmma_wgrad<float>", 1220.0, 31.0, 103, 6),
        memory(1270.0, -1152, 0x7F0000000000, 932, ENGINE),
        note | {"name": "Optimizer.step#SGD.step", "ts": 1400.0, "dur": 60.0},
        op(
            "aten::_foreach_add_",
            1410.0,
            30.0,
            8,
            **{"Input Dims": [[[4, 3, 3, 3], [4]]], "Input type": ["TensorList"]},
        ),
        launch("cudaLaunchKernel", 1420.0, 104, 8),
        kernel("multi_tensor_apply_kernel", 1431.0, 3.0, 104, 8, 20),
        memory(1450.0, -500, 0x7F0000003000, 432),
        note | {"name": "copy back", "ts": 1500.0, "dur": 60.0},
        op("aten::copy_", 1505.0, 50.0, 9),
        launch("cudaMemcpyAsync", 1510.0, 105, 9),
        copied("Memcpy DtoH (Device -> Pageable)", 1520.0, 4.0, 105, 9, 1728),
        launch("cudaGraphLaunch", 1600.0, 106, 0),
        kernel("graph_kernel_0", 1610.0, 2.0, 106, 0),
        copied("Memset (Device)", 1615.0, 1.0, 999, 0, 512),
        {
            "ph": "X",
            "cat": "gpu_user_annotation",
            "name": "ProfilerStep#3",
            "pid": 0,
            "tid": 7,
            "ts": 1030.0,
            "dur": 600.0,
        },
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaDeviceSynchronize",
            **HOST,
            "ts": 1700.0,
            "dur": 9.0,
            "args": {},
        },
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": 999.0,
        },
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1800.0},
    ]


def cuda_trace() -> Event:
    device = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "computeMajor": 9, "numSms": 132}
    head = {"schemaVersion": 1, "deviceProperties": [device], "cuda_runtime_version": 12080, "with_flops": 1}
    return head | {"displayTimeUnit": "ms", "baseTimeNanoseconds": 17 * 10**17, "traceEvents": cuda_events()}


def snapshot() -> Event:
    """Two segments; the history begins after one block was allocated, and knows of another only that it is freed."""
    frames = [
        {"filename": "??", "line": 0, "name": "torch::unwind::unwind()"},
        {"filename": "Convolution.cpp", "line": 0, "name": "at::native::convolution(at::Tensor const&)"},
        {"filename": "/site-packages/torch/nn/modules/conv.py", "line": 548, "name": "_conv_forward"},
        {"filename": MODEL, "line": 12, "name": "forward"},
        {"filename": MODEL, "line": 40, "name": "<module>"},
    ]

    def event(action: str, addr: int, size: int, time_us: int, **more: Any) -> Event:
        return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "frames": []} | more

    first = 1_700_000_000_000_000
    history = [
        event("segment_alloc", 0x1000000, 2097152, first),
        event("alloc", 0x1000000, 1000, first + 10, frames=frames),
        event("alloc", 0x1000400, 512, first + 20, frames=frames[:3]),
        event("free_requested", 0x1000000, 1000, first + 30),
        event("free_completed", 0x1000000, 1000, first + 35),
        event("free_completed", 0x2000800, 300, first + 40),
        event("segment_alloc", 0x4000000, 20971520, first + 50),
        event("alloc", 0x4000000, 20000000, first + 51, frames=frames[:2]),
        event("free_completed", 0x4000000, 20000000, first + 60),
        event("segment_free", 0x4000000, 20971520, first + 70),
        {"action": "oom", "size": 1 << 40, "stream": 0, "time_us": first + 80, "device_free": 5, "frames": frames},
        event("snapshot", 0, 0, first + 90),
    ]

    def segment(address: int, blocks: list[Event]) -> Event:
        used = sum(block["size"] for block in blocks if block["state"] != "inactive")
        head = {"device": 0, "address": address, "total_size": 2097152, "allocated_size": used, "active_size": used}
        return head | {"stream": 0, "segment_type": "small", "segment_pool_id": [0, 0], "blocks": blocks}

    def block(address: int, size: int, asked: int, state: str = "active_allocated") -> Event:
        return {"address": address, "size": size, "requested_size": asked, "state": state, "frames": []}

    return {
        "segments": [
            segment(0x1000000, [block(0x1000000, 1024, 0, "inactive"), block(0x1000400, 512, 512)]),
            segment(0x2000000, [block(0x2000000, 2048, 2000), block(0x2000800, 2095104, 0, "inactive")]),
        ],
        "device_traces": [history, []],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
        "external_annotations": [],
    }


def sample_profile() -> Profile:
    """A bit of everything a profile may hold."""
    return Profile(
        'odd "name"\n\0\ud800 \U0001f600',
        "recorded",
        (
            Operator(
                "0",
                "conv</script>",
                "aten::conv2d",
                Span(0.1, 0.30000000000000004, 0.2),
                "main",
                Span(0.25, 1 / 3, 0.3),
                "cuda 0 stream 7",
                flops=2**70,
                bytes=12,
                in_shapes=((2, 3), ()),
                out_shapes=((2, 4),),
                reads=("x", "w"),
                writes=("y",),
                attrs={"stride": [1, 1], "mode": "zeros", "eps": 1e-5, "none": None, "deep": {"a": [True]}},
                module="net.conv",
                phase=Phase.FORWARD,
                kernel="sgemm",
            ),
            Operator("0.1", "conv", "aten::conv2d", device=Span(0.4, 0.4), stream="cuda 0 stream 20"),
            Operator("1", "add", "aten::add", Span(0.5, 0.75), "thread 2", phase=Phase.BACKWARD),
            Operator("2", "nothing timed", "view"),
        ),
        (
            Block("weight", 432, 0, 4, BlockKind.WEIGHT, 0, "cuda 0", None, False),
            Block("y", 1152, 1, 3, BlockKind.ACTIVATION, 2**47, "cuda 0", 0),
            Block("nothing", 0, 2, 2, device="gpu0:0", maker=2),
            Block("after all", 8, 4, 4, device="cpu"),
            Block("empty", 0, 1, 3, device="cpu"),
        ),
        (0.1, 0.2, 0.2, 0.7000000000000001),
        (Operator("9", "dead", "aten::neg"),),
        one_clock=False,
        facts={"note": "é", "n": 3},
        notes=("first", "second\n"),
    )
