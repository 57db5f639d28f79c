"""`tilegrad train` on two ranks, each of which reads its part of every image: the losses of one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rank_commands import run_ranks

NETS = """
from torch import nn

def first():
    return nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()

def classifier():
    last = nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    return nn.Sequential(*first(), *last)

def segmenter():
    return nn.Sequential(*first(), nn.Conv2d(4, 2, 3, padding=1))
"""
RUN = """
train = "train.csv"
task = "{task}"
model = "nets.py:{model}"
classes = ["a", "b"]
scale = 0.00392
epochs = 2
validate = 0.4
flips = true
optimizer = "AdamW(lr=0.01)"
checkpoint_steps = 1
"""
TASKS = {"classification": "classifier", "segmentation": "segmenter"}


def make_run(folder: Path, task: str) -> None:
    draw, target = np.random.default_rng(0), "mask" if task == "segmentation" else "label"
    lines = [f"image,{target}"]
    for k, (height, width) in enumerate([(24, 24), (32, 20), (24, 24), (32, 20), (24, 24)]):
        pixels = draw.integers(0, 128, (height, width, 3), dtype=np.uint8) + np.uint8(100 * (k % 2))
        np.save(folder / f"{k}.npy", pixels)
        np.save(folder / f"m{k}.npy", (pixels[..., 0] > 90).astype(np.uint8))
        lines.append(f"{k}.npy,{f'm{k}.npy' if target == 'mask' else 'ab'[k % 2]}")
    (folder / "train.csv").write_text("\n".join(lines))
    (folder / "nets.py").write_text(NETS)
    (folder / "run.toml").write_text(RUN.format(task=task, model=TASKS[task]))


def train(folder: Path, ranks: int, *flags: str) -> list[float]:
    """All losses of a run, those of validation too."""
    mesh = ["--mesh", f"h={ranks}"] if ranks > 1 else []
    run_ranks(folder, ranks, ["train", "run.toml", *mesh, *flags])
    out = folder / flags[flags.index("--out") + 1]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [value for line in lines for key, value in line.items() if key.endswith("loss")]


@pytest.mark.parametrize("task", TASKS)
def test_losses_are_those_of_one_process(task: str, tmp_path: Path) -> None:
    make_run(tmp_path, task)
    alone, together = train(tmp_path, 1, "--out", "alone"), train(tmp_path, 2, "--out", "together")
    assert len(alone) > 6
    assert np.allclose(together, alone, rtol=1e-4)
    if task == "segmentation":  # one process goes on where two ranks stopped
        train(tmp_path, 2, "--out", "part", "--epochs", "1")
        assert np.allclose(train(tmp_path, 1, "--out", "part", "--resume")[-len(alone) :], alone, rtol=1e-4)
