"""How long, and how much memory, reading a large trace takes: prints JSON.

    python bench/import_traces.py --operators 200000          torch trace: operators, kernels, memory; loaded
    python bench/import_traces.py --operators 200000 --own    the same, exported as our own trace and loaded again

The trace is written by one process and read by a fresh one, whose peak memory is told.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilegrad.importers.torch_trace import load_torch_trace
from tilegrad.report.chrome_trace import save_chrome_trace

TYPES = ("aten::conv2d", "aten::batch_norm", "aten::relu", "aten::add", "aten::max_pool2d")


def events(operators: int) -> Iterator[dict[str, Any]]:
    """Each operator has one inside it, a launch with its flow, a kernel, and memory that the next but nine frees."""
    host: dict[str, Any] = {"pid": 4711, "tid": 4711}
    for at in range(operators):
        ts, kind = 1e9 + 20.0 * at, TYPES[at % len(TYPES)]
        dims = {"Input Dims": [[8, 64, 56, 56], [64, 64, 3, 3], []], "Input type": ["float", "float", "Scalar"]}
        for deep, name in enumerate((kind, f"{kind}_inner")):
            args = {"External id": 2 * at + deep + 1, "Sequence number": at, "Fwd thread id": 0, "Ev Idx": at} | dims
            yield {
                "ph": "X",
                "cat": "cpu_op",
                "name": name,
                **host,
                "ts": ts + deep,
                "dur": 18.0 - 2 * deep,
                "args": args,
            }
        link = {"External id": 2 * at + 2, "correlation": at + 7}
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host, "ts": ts + 5, "dur": 3.5}
        yield call | {"args": {"cbid": 211} | link}
        yield {"ph": "s", "id": at + 7, **host, "ts": ts + 5, "cat": "ac2g", "name": "ac2g"}
        kernel = {"ph": "X", "cat": "kernel", "name": f"void {kind[6:]}_kernel<float>(float*, int)", "pid": 0, "tid": 7}
        shape = {"grid": [1024, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 0}
        yield kernel | {"ts": ts + 12, "dur": 9.75, "args": {"device": 0, "context": 1, "stream": 7} | link | shape}
        yield {"ph": "f", "id": at + 7, "pid": 0, "tid": 7, "ts": ts + 12, "cat": "ac2g", "name": "ac2g", "bp": "e"}
        for late, sign in ((0, 1), (9, -1)):
            if at >= late:
                args = {"Addr": 2**40 + 4096 * (at - late), "Bytes": sign * 4096, "Device Type": 1, "Device Id": 0}
                memory = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", **host}
                total = {"Total Allocated": 4096 * (min(at, 8) + (sign > 0)), "Total Reserved": 2**21, "Ev Idx": at}
                yield memory | {"ts": ts + 3 + late / 10, "args": args | total}


def write(path: Path, operators: int) -> None:
    with open(path, "w") as file:
        file.write('{\n"schemaVersion": 1,\n"deviceProperties": [],\n"traceEvents": [\n')
        for place, event in enumerate(events(operators)):
            file.write((",\n  " if place else "  ") + json.dumps(event, indent=1))
        file.write("\n]}\n")


def read(path: Path) -> dict[str, Any]:
    began = time.perf_counter()
    profile = load_torch_trace(path)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    counts = {"operators": len(profile.operators), "blocks": len(profile.blocks), "ticks": profile.ticks}
    return {"file_bytes": os.path.getsize(path), "load_s": round(seconds, 2), "peak_rss_bytes": peak} | counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=200_000)
    parser.add_argument("--own", action="store_true", help="export the profile, and load that")
    parser.add_argument("--read", type=Path, help="only load this file")
    parser.add_argument("--save", type=Path, help="with --read: only load that file, and export it here")
    options = parser.parse_args()
    if options.save:
        profile, began = load_torch_trace(options.read), time.perf_counter()
        save_chrome_trace(profile, options.save)
        print(json.dumps({"save_s": round(time.perf_counter() - began, 2)}))
    elif options.read:
        print(json.dumps(read(options.read)))
    else:
        print(json.dumps(measure(options.operators, options.own), indent=2))


def measure(operators: int, own: bool) -> dict[str, Any]:
    """Every step in a process of its own: a child inherits its parent's peak of memory."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, exported = Path(folder) / "trace.json", Path(folder) / "own.json"
        write(path, operators)
        if own:
            found |= run("--read", str(path), "--save", str(exported))
        return found | run("--read", str(exported if own else path))


def run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    main()
