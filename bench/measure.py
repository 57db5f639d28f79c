"""What the benches share: a training step, steps in turns, what a step needs, and figures as a file."""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tilegrad.testing import PeakBytes

RESULTS = Path(__file__).parent / "results"
WARM = {"cpu": 1, "cuda": 4}  # steps until times settle: on a GPU some may be recorded first


def step(net: Callable[[Tensor], Tensor], image: Tensor) -> None:
    out = net(image)
    torch.autograd.backward(out, torch.ones_like(out))


def seconds(run: Callable[[], None], device: torch.device) -> float:
    wait(device)
    begin = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - begin


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turns(runs: Sequence[Callable[[], None]], rounds: int, device: torch.device) -> list[float]:
    """The median seconds of each."""
    spent: list[list[float]] = [[] for _ in runs]
    for at in range(rounds + 1):
        for run, found in zip(runs, spent, strict=True):
            took = seconds(run, device)
            if at:  # the first is for warming up
                found.append(took)
    return [statistics.median(found) for found in spent]


class Memory:
    """`with Memory(net, image) as memory: …` then `allocated`: the most at once, what the network and the image hold
    included. On a GPU by the allocator, workspaces of kernels included, unless `storages` are asked for; there
    `reserved` is what the allocator took for it."""

    def __init__(self, net: nn.Module, image: Tensor, *, storages: bool = False):
        device = next(net.parameters()).device  # the image may wait on the host
        here = [t for t in (*net.parameters(), *net.buffers(), image) if t.device == device]
        self.outside = sum(t.numel() * t.element_size() for t in here)
        self.cuda, self._peak = device.type == "cuda", PeakBytes(device, storages=storages)
        self.allocated, self._before = 0, 0
        self.reserved: int | None = None
        net.zero_grad(set_to_none=True)

    def most(self, other: Memory | None) -> Memory:
        """Of two steps: what is allocated in one may be held in the other, where a recording is made in between."""
        if other is not None:
            self.allocated = max(self.allocated, other.allocated)
            self.reserved = None if self.reserved is None else max(self.reserved, other.reserved or 0)
        return self

    def __enter__(self) -> Memory:
        clean()
        if self.cuda:
            self._before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        self._peak.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._peak.__exit__(*error)
        self.allocated = self._peak.bytes + self.outside
        if self.cuda:
            self.reserved = torch.cuda.max_memory_reserved() - self._before + self.outside


def peaks(net: nn.Module, image: Tensor, *, storages: bool = False) -> Memory:
    """Of one step."""
    with Memory(net, image, storages=storages) as memory:
        step(net, image)
    return memory


def idle_bytes(device: torch.device) -> int:
    """What an allocator holds, has not handed out and cannot give back: between tensors of others."""
    if device.type != "cuda":
        return 0
    clean()
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def clean() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def write(path: Path | None, rows: Iterable[Any], device: str) -> None:
    """All figures, with the command and the machine that they are from."""
    if path is None:
        return
    name = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else f"{torch.get_num_threads()} threads"
    words = " ".join([f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    about = {"command": f"python {words}", "torch": torch.__version__, "device": f"{device}, {name}"}
    path.write_text(json.dumps(about | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
