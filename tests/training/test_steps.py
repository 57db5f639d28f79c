"""What a step computes is what plain PyTorch would: weights, ignored pixels, accumulation, autocast, many sizes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import ModelError
from tilegrad.modules import tiled
from tilegrad.testing import integer_module
from tilegrad.training.objective import Objective
from tilegrad.training.trainer import Trainer

MASKS: dict[str, Any] = {"task": "segmentation", "classes": ["dark", "bright"], "optimizer": "SGD(lr=0.1)"}


def read(folder: Path, name: str) -> Tensor:
    return torch.from_numpy(np.load(folder / f"{name}.npy"))


def image(folder: Path, k: int) -> Tensor:
    return read(folder, str(k)).movedim(-1, 0)[None].float() * (1 / 255)


def only_step(trainer: Trainer) -> list[Tensor]:
    """Gradients of the first step, as the optimizer sees them."""
    found: list[Tensor] = []
    trainer.optimizer.register_step_pre_hook(
        lambda *_: found.extend(p.grad.clone() for p in trainer.objective.net.parameters()) if not found else None
    )
    trainer.run()
    return found


@pytest.mark.parametrize("budget", [None, "30KiB"])
def test_weights_and_ignored_pixels_of_masks(tmp_path: Path, budget: str | None) -> None:
    runs.make_images(tmp_path, [32], masks=True)
    mask = read(tmp_path, "m0")
    mask[3:9] = 255
    np.save(tmp_path / "m0.npy", mask.numpy())
    trainer = runs.trainer(tmp_path, **MASKS, ignore_index=255, class_weights={"bright": 3.0}, budget=budget)
    net = copy.deepcopy(trainer.objective.net)
    found = only_step(trainer)
    loss = F.cross_entropy(net(image(tmp_path, 0)), mask.long()[None], torch.tensor([1.0, 3.0]), ignore_index=255)
    loss.backward()
    assert (str(trainer.tiled.plan).count("plain PyTorch") == 1) == (budget is None)
    assert runs.losses(tmp_path / "run")[0] == pytest.approx(loss.item(), rel=1e-6)  # float32, in another order
    for one, weight in zip(found, net.parameters(), strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(one, weight.grad, rtol=1e-5, atol=1e-7)


def test_balanced_weights_of_labels(tmp_path: Path) -> None:
    runs.make_images(tmp_path, [24] * 3)
    trainer = runs.trainer(tmp_path, net=runs.segmenter_pooled(), class_weights="balanced", batch=3)
    assert trainer.objective.weights is not None
    assert trainer.objective.weights.tolist() == pytest.approx([3 / 4, 3 / 2])
    net = copy.deepcopy(trainer.objective.net)
    trainer.run()
    images, labels = torch.cat([image(tmp_path, k) for k in range(3)]), torch.tensor([0, 1, 0])
    loss = F.cross_entropy(net(images), labels, torch.tensor([3 / 4, 3 / 2]))
    assert runs.losses(tmp_path / "run")[0] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("masks", [False, True])
def test_accumulation_is_one_large_batch(tmp_path: Path, masks: bool) -> None:
    """With weights, and with pixels that do not count, a mean of means would differ. In float64, so that the order of
    sums is all that is left."""
    runs.make_images(tmp_path, [16] * 4, masks=masks)
    if masks:
        for k in range(3):
            mask = read(tmp_path, f"m{k}")
            mask[: 4 * k + 1] = 255
            np.save(tmp_path / f"m{k}.npy", mask.numpy())
    keys: dict[str, Any] = {**MASKS, "ignore_index": 255} if masks else {"optimizer": "SGD(lr=0.1)"}
    gradients = []
    for batch, accumulate in ((4, 1), (1, 4), (2, 2)):
        net = (runs.segmenter() if masks else runs.segmenter_pooled()).double()
        out = str(tmp_path / f"run{batch}")
        trainer = runs.trainer(
            tmp_path, net=net, out=out, batch=batch, accumulate=accumulate, class_weights=[1.0, 4.0], **keys
        )
        gradients.append(only_step(trainer))
    for other in gradients[1:]:
        for one, two in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-15)


def test_sizes_that_differ_are_planned_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.make_images(tmp_path, [24, 32, 24, 32])
    made: list[Any] = []
    real = tiled.Runner

    def counted(*args: Any) -> Any:
        made.append(args)
        return real(*args)

    monkeypatch.setattr(tiled, "Runner", counted)
    trainer = runs.trainer(tmp_path, epochs=3, budget="40KiB")
    trainer.run()
    assert (trainer.at.step, len(made)) == (12, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast(tmp_path: Path, dtype: str) -> None:
    runs.make_images(tmp_path, [24] * 2)
    trainer = runs.trainer(tmp_path, net=runs.segmenter_pooled(), amp=dtype, epochs=2)
    net = copy.deepcopy(trainer.objective.net)
    trainer.run()
    assert trainer.scaler.is_enabled() == (dtype == "float16")
    first = trainer.samples[0] if trainer.at.step else None
    assert first is not None
    order = runs.first_of(trainer)
    with torch.autocast("cpu", getattr(torch, dtype)):
        loss = F.cross_entropy(net(image(tmp_path, order)), torch.tensor([order % 2]))
    assert runs.losses(tmp_path / "run")[0] == pytest.approx(loss.item(), rel=1e-2)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in trainer.objective.net.parameters())


def test_norms_that_are_frozen(tmp_path: Path) -> None:
    runs.make_images(tmp_path, [24] * 2)
    trainer = runs.trainer(tmp_path, frozen_norms=True, epochs=2, validate=0.5)
    trainer.run()
    assert trainer.objective.net[1].num_batches_tracked == 0  # type: ignore[index]


@pytest.mark.parametrize(
    "schedule",
    [
        "StepLR(step_size=1, gamma=0.5)",
        "ReduceLROnPlateau(patience=0)",
        "MultiStepLR(milestones=[1, 2])",
        "OneCycleLR(max_lr=0.1, total_steps=9)",
    ],
)
def test_schedules_go_on_from_checkpoints(tmp_path: Path, schedule: str) -> None:
    """Whatever state they have is read without running anything."""
    runs.make_images(tmp_path, [16] * 2)
    keys = {"schedule": schedule, "validate": 0.5}
    runs.trainer(tmp_path, epochs=2, **keys).run()
    runs.trainer(tmp_path, epochs=4, **keys).run(resume=True)
    runs.trainer(tmp_path, epochs=4, out=str(tmp_path / "whole"), **keys).run()
    rates = [[line["lr"] for line in runs.metrics(tmp_path / name) if "lr" in line] for name in ("run", "whole")]
    assert rates[0] == rates[1] and len(rates[0]) == 4


class TestCounts:
    """Evaluation counts what is right, without the whole output."""

    @pytest.mark.parametrize("budget", [None, 100_000])
    def test_of_masks(self, budget: int | None) -> None:
        torch.manual_seed(0)
        net = integer_module(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)))
        values = (0, 7, 255)
        objective = Objective(net, values, None, 9, masks=True).eval()
        mask = torch.tensor([0, 7, 255, 9])[torch.randint(4, (1, 1, 40, 40))]
        x = torch.randint(-3, 4, (1, 1, 40, 40)).double()
        with torch.no_grad():
            loss, counts = tilegrad.tile(objective, tile=16, budget=budget)(x, mask)
            said, wanted = net(x).argmax(1), mask[:, 0]
        rows = [
            [
                int(((said == k) & (wanted == v)).sum()),
                int(((said == k) & (wanted != 9)).sum()),
                int((wanted == v).sum()),
            ]
            for k, v in enumerate(values)
        ]
        assert counts.T.tolist() == rows
        index = torch.where(wanted == 7, 1, torch.where(wanted == 255, 2, wanted))
        torch.testing.assert_close(loss, F.cross_entropy(net(x), index, ignore_index=9))

    def test_a_model_with_other_classes(self, tmp_path: Path) -> None:
        runs.make_images(tmp_path, [16] * 2)
        with pytest.raises(ModelError, match="there are 2 classes"):
            runs.trainer(tmp_path, net=nn.Sequential(nn.Conv2d(3, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())).run()
