"""Small runs for tests: images on disk, a network, a configuration."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tilegrad.training import Trainer, TrainingConfig, make_config
from tilegrad.training.checkpoint import seed_all

SIZE = 24


def make_images(folder: Path, sizes: list[int], *, masks: bool = False) -> Path:
    """A CSV and its images: class "b" is brighter; in masks, bright pixels are of class 1."""
    draw = np.random.default_rng(0)
    target = "mask" if masks else "label"
    lines = [f"image,{target}"]
    for k, size in enumerate(sizes):
        pixels = draw.integers(0, 128, (size, size, 3), dtype=np.uint8)
        pixels[: size // 2] += np.uint8(100 * (k % 2))
        np.save(folder / f"{k}.npy", pixels)
        if masks:
            np.save(folder / f"m{k}.npy", (pixels[..., 0] > 90).astype(np.uint8))
        lines.append(f"{k}.npy,m{k}.npy" if masks else f"{k}.npy,{'ab'[k % 2]}")
    (folder / "train.csv").write_text("\n".join(lines))
    return folder / "train.csv"


def classifier() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


def segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))


def segmenter_pooled() -> nn.Module:
    """A classifier without norms and noise, so that a batch is the sum of its images."""
    return nn.Sequential(segmenter(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def config(folder: Path, **keys: Any) -> TrainingConfig:
    usual = {"train": str(folder / "train.csv"), "out": str(folder / "run"), "model": "net", "scale": 1 / 255}
    return make_config({key: value for key, value in (usual | keys).items() if value is not None}, "a test")


def trainer(folder: Path, net: nn.Module | None = None, **keys: Any) -> Trainer:
    """Made as the command makes it: seeded, then the network."""
    wanted = config(folder, **keys)
    seed_all(wanted.seed)
    masks = wanted.task == "segmentation"
    return Trainer(wanted, net or (segmenter() if masks else classifier()))


def first_of(made: Trainer) -> int:
    """The number of the image that the first step took."""
    order = list(range(len(made.samples)))
    random.Random(f"{made.config.seed} 0").shuffle(order)
    return int(made.samples[order[0]].image.stem)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(folder) if "loss" in line]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
