"""From slides on disk to a trained model and a map on disk, with a report: `python examples/demo.py`, or `make demo`.

1. Slides are made: tissue with two marks far apart; the label says whether they are alike (examples/slides.py).
2. What plain PyTorch would need, what three ways to tile cost, and the plan for a budget that is a small part of it.
3. Training with `tilegrad train`; it is killed once, and goes on to the same losses.
4. Proof: on a crop, every gradient is plain PyTorch's.
5. Where are the marks? A small network learns it from masks, and `tilegrad predict` writes the map of a whole slide.

`--large` trains on one slide of 8192² instead (`make demo-large`).
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from slides import CLASSES, TEXTURES, Slide, make_set, write_zarr

import tilegrad
from tilegrad.bounds import MODES, tile_graph
from tilegrad.models import resnet18
from tilegrad.report.tiles import largest_working_set, work
from tilegrad.units import format_bytes, format_seconds

SCALE = 1 / 255
COMMAND = [sys.executable, "-m", "tilegrad"]
PAGE = (
    "<!doctype html><meta charset=utf-8><title>tilegrad demo</title><style>body{{font:16px sans-serif;max-width:60em;\
margin:2em auto}}img{{max-width:48%;margin:.5%}}pre{{background:#f4f4f4;padding:1em;overflow:auto}}</style>{}"
)


class Story:
    """What is printed, and the page that is made of it."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def title(self, text: str) -> None:
        print(f"\n{text}", flush=True)
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def say(self, *lines: str) -> None:
        print("\n".join(f"   {line}" for line in lines), flush=True)
        self.parts.append(f"<pre>{html.escape(chr(10).join(lines))}</pre>")

    def picture(self, pixels: Any, what: str) -> None:
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        data = base64.b64encode(file.getvalue()).decode()
        self.parts.append(f'<img src="data:image/png;base64,{data}" alt="{what}" title="{what}">')

    def save(self, path: Path) -> None:
        path.write_text(PAGE.format("\n".join(self.parts)))


def main() -> None:
    parser = argparse.ArgumentParser(description="From slides on disk to a trained model and a map on disk.")
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--budget", default="64MiB")
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    parser.add_argument("--large", action="store_true", help="train on 8192² and nothing else")
    args = parser.parse_args()
    if args.large:
        large(args.folder)
        return
    shutil.rmtree(args.folder, ignore_errors=True)
    story, began = Story(), time.perf_counter()
    slides = make_slides(story, args.folder, args.size)
    show_plan(story, slides[0][0], args.budget)
    train_killed_and_resumed(story, args.folder, slides, args.budget)
    prove(story, slides[0][0])
    draw_map(story, args.folder, slides[0][0], args.budget)
    story.say(f"{format_seconds(time.perf_counter() - began)}, peak RSS {format_bytes(peak_rss())}")
    story.save(args.folder / "report.html")
    print(f"   {args.folder / 'report.html'}")


def peak_rss() -> int:
    """Of this process and of those it has started, the largest."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def make_slides(story: Story, folder: Path, size: int) -> list[tuple[str, int]]:
    story.title(f"1. Slides of {size}x{size}, as tiled TIFF and zarr")
    found = make_set(folder / "slides", size, 4)
    for path, label in found:
        story.say(f"{path}: the marks are {'alike' if CLASSES[label] == 'same' else 'different'}")
    slide = Slide(size, 0)
    pixels = slide.pixels()
    story.picture(pixels[:: size // 512, :: size // 512], "a slide, made smaller")
    for mark in slide.marks:
        top, left = (min(max(0, at - 32), size - 64) for at in (mark.row, mark.column))
        story.picture(np.kron(pixels[top : top + 64, left : left + 64], np.ones((4, 4, 1), np.uint8)), "a mark")
    return found


def show_plan(story: Story, path: str, budget: str) -> None:
    image = tilegrad.open(path, scale=SCALE)
    net = resnet18(classes=2, width=0.25).eval()  # batch norms with their running statistics
    graph = tilegrad.capture(net, tuple(image.shape))
    story.title("2. What it needs")
    whole = sum(graph.type(n.outputs[0]).bytes for n in graph.nodes)
    lines = [f"{'mode':<10}{'work against untiled':>22}{'largest working set':>22}   of {format_bytes(whole)}"]
    for mode in reversed(MODES):
        tiling = tile_graph(graph, mode, {"h": 8, "w": 8})
        lines.append(f"{mode:<10}{work(tiling):>22.2f}{format_bytes(largest_working_set(tiling)):>22}")
    plain = tilegrad.tile(net, mode="none").plan_for(tuple(image.shape)).schedule.predicted["total_bytes"]
    plan = str(tilegrad.tile(net, budget=budget).plan_for(image)).splitlines()
    story.say(*lines)
    story.say(f"a training step, plain: {format_bytes(plain)} (predicted); in {budget}:", plan[0], "…", *plan[-5:])


def train_killed_and_resumed(story: Story, folder: Path, slides: Sequence[tuple[str, int]], budget: str) -> None:
    story.title("3. tilegrad train, killed in the middle, and resumed")
    rows = [f"{Path(path).relative_to(folder)},{CLASSES[label]}" for path, label in slides]
    (folder / "slides.csv").write_text("\n".join(["image,label", *rows]))
    (folder / "alike.toml").write_text(
        f'train = "slides.csv"\nout = "alike"\nmodel = "resnet18(classes=2, width=0.25)"\nscale = {SCALE}\n'
        f'budget = "{budget}"\nepochs = 2\noptimizer = "SGD(lr=0.0003)"\nflips = true\nmean = 0.7\n'
        "checkpoint_steps = 2\nfrozen_norms = true  # one slide is no batch\n"
    )
    command = [*COMMAND, "train", str(folder / "alike.toml")]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while running.poll() is None and len(losses(folder / "alike")) < 3:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = losses(folder / "alike")
    story.say(f"killed after step {len(before)}; the checkpoint is of step {checkpoint_step(folder / 'alike')}")
    run([*command, "--resume"])
    after = losses(folder / "alike")
    peak = max(line.get("peak_bytes", 0) for line in metrics(folder / "alike"))
    story.say(
        *(f"step {k + 1}: loss {loss:.6f}" + (f"  (before: {before[k]:.6f})" if k < len(before) else "")
          for k, loss in enumerate(after)),
        f"the same to the last bit: {after[: len(before)] == before}; peak of a step {format_bytes(peak)} of {budget}",
    )  # fmt: skip
    if after[: len(before)] != before:
        raise SystemExit("losses differ")


def prove(story: Story, path: str) -> None:
    story.title("4. The same gradients: a training step on a 256x256 crop in double precision, plain against tiled")
    crop = tilegrad.open(path, scale=SCALE, dtype=torch.float64)[..., :256, :256].read()
    torch.manual_seed(0)
    net = resnet18(classes=2, width=0.25).double()
    for mode in MODES:
        found = tilegrad.verify(net, crop, tile=96, mode=mode)
        story.say(f"{mode:<8} {found}")
        if not found.ok:
            raise SystemExit("gradients differ")


def draw_map(story: Story, folder: Path, path: str, budget: str) -> None:
    story.title("5. Where are the marks? Trained on small slides with masks, predicted on a whole one")
    place = folder / "small"
    for kind in ("images", "masks"):
        (place / kind).mkdir(parents=True)
        for seed in range(16):
            write_zarr(Slide(192, 100 + seed), place / kind / f"{seed}.zarr", mask=kind == "masks")
    classes = json.dumps(TEXTURES)
    (folder / "where.toml").write_text(
        f'task = "segmentation"\ntrain = "small"\nout = "where"\nclasses = {classes}\nclass_weights = [1, 8, 8]\n'
        f'model = "unet(in_channels=3, classes=3, depth=2, width=0.125)"\nscale = {SCALE}\nepochs = 8\n'
        'optimizer = "AdamW(lr=0.01)"\nflips = true\nvalidate = 0.25\nbest = "iou"\n'
    )
    said = run([*COMMAND, "train", str(folder / "where.toml")])
    story.say(*said.splitlines()[-3:])
    words = ["--checkpoint", str(folder / "where" / "best.pt"), "--scale", "1/255", "--budget", budget]
    words += ["--argmax", "--dtype", "uint8", "--out", str(folder / "map.zarr")]
    said = run([*COMMAND, "predict", "unet(in_channels=3, classes=3, depth=2, width=0.125)", path, *words])
    story.say(*said.splitlines())
    image, found = tilegrad.open(path, dtype=torch.uint8), tilegrad.open(str(folder / "map.zarr"), dtype=torch.uint8)
    few = image.shape[-1] // 512
    dim = image.read()[0].movedim(0, -1).numpy()[::few, ::few] // 2
    said_there = found.read()[0, 0].numpy()
    for texture, channel in ((1, 0), (2, 2)):
        there = (said_there == texture).reshape(512, few, 512, few).any((1, 3))
        dim[there, channel] = 255
    story.picture(dim, "the map: stripes in rows red, in columns blue")
    truth = Slide(image.shape[-1], 0).mask()
    for k in set(truth[truth > 0].tolist()):
        both, either = ((said_there == k) & (truth == k)).sum(), ((said_there == k) | (truth == k)).sum()
        story.say(f"stripes in {TEXTURES[k]}: intersection over union {both / either:.2f}")


def large(folder: Path) -> None:
    """One slide of 8192², which is never whole in memory, in less than 2 GiB of it."""
    size, budget = 8192, "768MiB"
    (folder / "slides").mkdir(parents=True, exist_ok=True)
    path = folder / "large.zarr"
    if not path.exists():
        write_zarr(Slide(size, 0), path)
    rows = f"image,label\n{path.name},same\n{path.name},same\n"
    (folder / "large.csv").write_text(rows)
    shutil.rmtree(folder / "large", ignore_errors=True)
    words = ["--train", str(folder / "large.csv"), "--classes", json.dumps(CLASSES), "--out", str(folder / "large")]
    words += ["--model", "resnet18(classes=2, width=0.25)", "--scale", str(SCALE), "--budget", budget]
    words += ["--mean", "0.7", "--frozen-norms", "true", "--optimizer", "SGD(lr=0.0003)"]
    began = time.perf_counter()
    run([*COMMAND, "train", *words], TILEGRAD_MALLOC="exact")  # the process is as large as what is alive
    for line in metrics(folder / "large"):
        peak = format_bytes(line["peak_bytes"])
        print(f"step {line['step']}: loss {line['loss']:.6f}, {line['seconds']:.0f} s, peak {peak} of {budget}")
    rss = peak_rss()
    print(f"{size}x{size} in {format_seconds(time.perf_counter() - began)}, peak RSS {format_bytes(rss)}")
    if rss > 2 << 30:
        raise SystemExit("more than 2 GiB")


def run(words: Sequence[str], **settings: str) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=os.environ | settings)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed")
    return done.stdout


def metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(folder) if "loss" in line]


def checkpoint_step(folder: Path) -> int:
    return int(torch.load(folder / "last.pt", weights_only=True)["at"]["step"])


if __name__ == "__main__":
    main()
