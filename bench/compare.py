"""Plain, checkpointed and tiled training of one network on the same work, alternating: time and peak as ratios.

python bench/compare.py --size 2048 --tile 256 --width 0.25
python bench/compare.py --device cuda --dtype bfloat16 --channels-last --size 8192 --tile 512 --axes h
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

import tilegrad
from nets import channels_last
from tilegrad.models import NETWORKS, vgg16
from tilegrad.testing import PeakBytes
from tilegrad.units import format_bytes

Step = Callable[[], None]


def main() -> int:
    args = _parse()
    torch.manual_seed(0)
    if args.threads:
        torch.set_num_threads(args.threads)
    net, x = _build(args)
    ways = _ways(args, net, x)
    rows = _measure(args, net, x, ways)
    report = {"arguments": vars(args) | {"out": None}, "torch": torch.__version__, "rows": rows}
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1))
    _print(rows, args)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", choices=("vgg16-features", *NETWORKS), default="vgg16-features")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tile", type=int, nargs="+", default=[256])
    parser.add_argument("--axes", default=None)
    parser.add_argument("--halos", default="device")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--ways", default="plain,checkpoint,stream,scatter,gather")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", help="write all figures as JSON")
    return parser.parse_args()


def _build(args: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    make = (lambda: vgg16(width=args.width, head=None)) if args.network == "vgg16-features" else None
    net = make() if make else NETWORKS[args.network](width=args.width)
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    dtype = getattr(torch, args.dtype)
    net = net.to(args.device, dtype)
    net = channels_last(net) if args.channels_last else net
    x = torch.randn(args.batch, 3, args.size, args.size, dtype=dtype, device=args.device)
    return net, x.to(memory_format=layout)


def _ways(args: argparse.Namespace, net: nn.Module, x: Tensor) -> dict[str, Callable[[Tensor], Any]]:
    ways: dict[str, Callable[[Tensor], Any]] = {}
    for name in args.ways.split(","):
        if name == "plain":
            ways["plain"] = net
        elif name == "checkpoint":
            blocks = _blocks(net)
            segments = max(2, round(len(blocks) ** 0.5))
            ways["checkpoint"] = partial(_in_segments, blocks, segments)
        else:
            for size in args.tile:
                ways[f"{name} {size}"] = tilegrad.tile(net, tile=size, mode=name, axes=args.axes, halos=args.halos)
    return ways


def _in_segments(blocks: nn.Sequential, segments: int, x: Tensor) -> Any:
    return checkpoint_sequential(blocks, segments, x, use_reentrant=False)  # type: ignore[no-untyped-call]


def _blocks(net: nn.Module) -> nn.Sequential:
    """Layers grouped so that no segment begins with an in-place activation."""
    groups: list[list[nn.Module]] = []
    for layer in net.features:  # type: ignore[union-attr]
        if isinstance(layer, nn.ReLU) and groups:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return nn.Sequential(*(nn.Sequential(*group) for group in groups))


def _measure(args: argparse.Namespace, net: nn.Module, x: Tensor, ways: dict[str, Any]) -> list[dict[str, Any]]:
    times: dict[str, dict[str, list[float]]] = {name: {"train": [], "infer": []} for name in ways}
    peaks: dict[str, int] = {}
    failed: dict[str, str] = {}
    for turn in range(args.rounds + 1):
        for name, run in ways.items():
            if name in failed:
                continue
            try:
                train, infer = _one(args, net, x, run, peaks if not turn else None, name)
            except torch.OutOfMemoryError as error:
                failed[name] = str(error).splitlines()[0]
                continue
            if turn:  # the first turn plans, warms up and counts bytes
                times[name]["train"].append(train)
                times[name]["infer"].append(infer)
    gone = sum(p.numel() * p.element_size() for p in net.parameters())
    rows = []
    for name in ways:
        row: dict[str, Any] = {"way": name, "error": failed.get(name)}
        if name not in failed:
            row |= {f"{k}_s": statistics.median(v) for k, v in times[name].items()}
            row["peak_bytes"] = peaks[name] - gone  # beyond parameters, their gradients and the input
        rows.append(row)
    base = rows[0]
    for row in rows:
        if row["error"] is None and base["error"] is None:
            row |= {f"{k}_ratio": row[f"{k}_s"] / base[f"{k}_s"] for k in ("train", "infer")}
            row["peak_ratio"] = row["peak_bytes"] / base["peak_bytes"]
    return rows


def _one(
    args: argparse.Namespace, net: nn.Module, x: Tensor, run: Any, peaks: dict[str, int] | None, name: str
) -> tuple[float, float]:
    def step() -> None:
        net.zero_grad(set_to_none=True)
        out = run(x)
        out.backward(torch.ones_like(out) / out.numel())

    def infer() -> None:
        with torch.inference_mode():
            run(x)

    if peaks is not None:
        step()
        net.zero_grad(set_to_none=True)
        with PeakBytes(args.device) as peak:
            step()
        peaks[name] = peak.bytes
    return _clock(step, args.device), _clock(infer, args.device)


def _clock(work: Step, device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _print(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    print(f"{args.network} x{args.width} {args.size}x{args.size} {args.dtype} on {args.device}")
    print(f"{'way':<16}{'train s':>10}{'ratio':>8}{'infer s':>10}{'ratio':>8}{'peak':>12}{'ratio':>8}")
    for row in rows:
        if row["error"]:
            print(f"{row['way']:<16}{row['error'][:60]}")
            continue
        ratios = [f"{row.get(f'{k}_ratio', 0):.3f}" for k in ("train", "infer", "peak")]
        peak = format_bytes(row["peak_bytes"])
        times = (row["train_s"], row["infer_s"])
        print(f"{row['way']:<16}{times[0]:>10.3f}{ratios[0]:>8}{times[1]:>10.3f}{ratios[1]:>8}{peak:>12}{ratios[2]:>8}")


if __name__ == "__main__":
    sys.exit(main())
