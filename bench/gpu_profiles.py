"""Real profiles from a GPU: a training step under torch.profiler and the CUDA memory recorder, read back by us.

    python bench/gpu_profiles.py OUT_FOLDER

Writes trace.json.gz and snapshot.json, and prints what `tilegrad analyze` says of each, and of our own recording.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import tilegrad
from tilegrad.analysis import analyze
from tilegrad.models import resnet18


def main() -> None:
    out = Path(sys.argv[1])
    net, x = resnet18(classes=10, width=0.5).cuda(), torch.randn(4, 3, 256, 256, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True, profile_memory=True, with_modules=True) as prof:
        step()
        torch.cuda.synchronize()
    prof.export_chrome_trace(str(out / "trace.json.gz"))
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    step()
    torch.cuda.synchronize()
    (out / "snapshot.json").write_text(json.dumps(torch.cuda.memory._snapshot(), default=str))
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with tilegrad.record("recorded") as rec:
        step()
    peak = torch.cuda.max_memory_allocated() - before
    tilegrad.save_chrome_trace(rec.profile, out / "recorded.json.gz")
    for found in (
        tilegrad.load_profile(out / "trace.json.gz"),
        tilegrad.load_profile(out / "snapshot.json"),
        rec.profile,
    ):
        analysis = analyze(found)
        figures = {
            "format": found.format,
            "operators": len(found.operators),
            "blocks": len(found.blocks),
            "device": None if analysis.device is None else analysis.device.to_json(),
            "peaks": {device: memory.owned.peak_bytes for device, memory in analysis.memory.items()},
            "types": {group.key: round(group.rates.kernel_s * 1e6, 1) for group in analysis.types[:6]},
            "notes": list(found.notes),
        }
        print(json.dumps(figures))
    print(json.dumps({"allocator_peak_bytes": peak, "recorded_peak_bytes": rec.peak_bytes}))


if __name__ == "__main__":
    main()
