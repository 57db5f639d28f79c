"""What recording costs: the same training step plain and recorded, alternating in one process, as a ratio of medians.

python bench/record.py
python bench/record.py --networks resnet18 --size 224 --tile 112 --rounds 7 --out record.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tilegrad
from tilegrad.models import NETWORKS, example_shape
from tilegrad.recording.record import Recorder, record

Step = Callable[[], None]


def main() -> int:
    args = _parse()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    rows = [_measure(args, name, way) for name in args.networks.split(",") for way in args.ways.split(",")]
    report = {"arguments": vars(args), "torch": torch.__version__, "rows": rows}
    text = json.dumps(report, indent=1)
    if args.out:
        Path(args.out).write_text(text)
    print(text)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", default="resnet18,vgg16", help="names, with commas")
    parser.add_argument("--ways", default="plain,tiled")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--tile", type=int, default=112)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", help="write the JSON here too")
    return parser.parse_args()


def _measure(args: argparse.Namespace, name: str, way: str) -> dict[str, Any]:
    net = NETWORKS[name](width=args.width).to(args.device)
    x = torch.randn(example_shape(name, args.size), device=args.device)
    run = tilegrad.tile(net, tile=args.tile) if way == "tiled" else net
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        run(x).sum().backward()
        optimizer.step()

    step()  # plans, and warms up
    kept: list[Recorder] = []

    def recorded() -> None:
        with record() as rec:
            step()
        kept[:] = [rec]

    recorded()
    seconds: dict[str, list[float]] = {"plain": [], "recorded": []}
    for _ in range(args.rounds):
        for label, work in (("plain", step), ("recorded", recorded)):
            kept.clear()  # the recording before
            seconds[label].append(_timed(work, args.device))
    profile_s = _timed(lambda: kept[0].profile, args.device)
    operators = len(kept[0].profile.operators)
    medians = {label: statistics.median(values) for label, values in seconds.items()}
    return {
        "network": name,
        "way": way,
        "plain_s": medians["plain"],
        "recorded_s": medians["recorded"],
        "ratio": medians["recorded"] / medians["plain"],
        "ratio_of_fastest": min(seconds["recorded"]) / min(seconds["plain"]),
        "profile_s": profile_s,
        "operators": operators,
        "us_per_operator": 1e6 * (medians["recorded"] - medians["plain"]) / operators,
        "peak_bytes": kept[0].peak_bytes,
    }


def _timed(work: Callable[[], Any], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - begin


if __name__ == "__main__":
    raise SystemExit(main())
