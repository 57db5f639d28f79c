"""Norms and their statistics, in all the ways they are set up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import CLOSE, backward, compare, exact_or_refused, original, photo
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import TilegradError

NORMS: dict[str, Callable[[], nn.Module]] = {
    "momentum none": lambda: nn.BatchNorm2d(4, momentum=None),
    "momentum one": lambda: nn.BatchNorm2d(4, momentum=1.0),
    "momentum zero": lambda: nn.BatchNorm2d(4, momentum=0.0),
    "not tracked": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "not affine": lambda: nn.BatchNorm2d(4, affine=False),
    "neither": lambda: nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    "instance": lambda: nn.InstanceNorm2d(4),
    "instance, affine and tracked": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "group": lambda: nn.GroupNorm(2, 4),
    "layer": lambda: nn.GroupNorm(1, 4, affine=False),
    "local response": lambda: nn.LocalResponseNorm(3),
}


def around(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(2, 4, 3), norm(), nn.ReLU(), nn.Conv2d(4, 2, 3)).double()


def trained(model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    found = []
    for seed in range(3):
        optimizer.zero_grad()
        found.append(backward(model(photo(2, 2, 16, 16, seed=seed))))
        optimizer.step()
    found.append(model.eval()(photo(2, 2, 16, 16)).detach())
    found.append(backward(model(photo(1, 2, 16, 16))))
    return [*found, backward(model.train()(photo(2, 2, 12, 16)))]


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_norms_in_training_and_eval(norm: Callable[[], nn.Module]) -> None:
    compare(around(norm), trained, tolerance=CLOSE)


class Shared(nn.Module):
    """One norm for two branches: its statistics are updated twice in a call."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.a(x)) - 2 * self.norm(self.b(x)).relu()


def test_a_norm_shared_by_two_branches() -> None:
    compare(lambda: Shared().double(), trained, tolerance=CLOSE)


def test_a_norm_shared_by_two_branches_with_a_cumulative_average() -> None:
    def make() -> nn.Module:
        net = Shared()
        net.norm.momentum = None
        return net.double()

    compare(make, trained, tolerance=CLOSE)


def test_norms_of_lists_after_pooling() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3)
        ).double()

    def loop(model: nn.Module) -> Any:
        found = [backward(model(photo(4, 2, 16, 16, seed=k))) for k in range(2)]
        return found, model.eval()(photo()).detach()

    compare(make, loop, tolerance=CLOSE)


def test_half_of_the_norms_are_frozen() -> None:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).double()
        net[1].eval().requires_grad_(False)
        return net

    compare(make, lambda m: [backward(m(photo(2, 2, 16, 16, seed=k))) for k in range(2)], tolerance=CLOSE)


def test_statistics_in_eval_are_the_batchs_own() -> None:
    """Test-time adaptation: eval, but the norms use the batch."""

    def loop(model: nn.Module) -> Any:
        trained(model)
        model.eval()
        original(model)[1].train()
        with torch.no_grad():
            return model(photo(2, 2, 16, 16))

    compare(around(lambda: nn.BatchNorm2d(4)), loop, tolerance=CLOSE)


def test_statistics_without_gradients() -> None:
    def loop(model: nn.Module) -> Any:
        with torch.no_grad():
            for seed in range(3):
                model(photo(2, 2, 16, 16, seed=seed))
        return original(model)[1].running_mean, original(model)[1].num_batches_tracked

    compare(around(lambda: nn.BatchNorm2d(4, momentum=None)), loop, tolerance=CLOSE)


def test_a_norm_called_only_sometimes() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.source, self.target = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x: Tensor, domain: str) -> Tensor:
            return (self.source if domain == "source" else self.target)(self.conv(x))

    def loop(model: nn.Module) -> Any:
        return [backward(model(photo(seed=k), d)) for k, d in enumerate(("source", "target", "source", "source"))]

    compare(lambda: Two().double(), loop, tolerance=CLOSE)


def test_synchronized_norms_without_a_process_group() -> None:
    def make() -> nn.Module:
        return nn.SyncBatchNorm.convert_sync_batchnorm(around(lambda: nn.BatchNorm2d(4))())

    def loop(model: nn.Module) -> Any:
        try:
            return trained(model), "trained"
        except TilegradError:
            raise
        except (ValueError, RuntimeError):  # whatever plain says to that on a CPU
            return model.eval()(photo()).detach(), "refused in training"

    try:
        compare(make, loop, tolerance=CLOSE)
    except TilegradError as error:
        assert "SyncBatchNorm" in str(error) or "batch norm" in str(error).lower()


def test_one_value_per_channel() -> None:
    """Plain raises a ValueError, and so do we."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4)).double()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        net(photo())
    with pytest.raises(TilegradError, match="more than 1 value per channel") as error:
        tilegrad.tile(net, tile=8)(photo())
    assert isinstance(error.value, ValueError)


def test_norms_with_whole_numbers_of_batches() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for batch in (1, 3, 2):
            found.append(backward(model(photo(batch, 2, 16, 16))))
            found.append(int(original(model)[1].num_batches_tracked))
        return found

    compare(around(lambda: nn.BatchNorm2d(4, momentum=None)), loop, tolerance=CLOSE)


def test_statistics_are_kept_when_backward_is_not_called() -> None:
    def loop(model: nn.Module) -> Any:
        for seed in range(2):
            model(photo(2, 2, 16, 16, seed=seed))  # its result is dropped
        return backward(model(photo(2, 2, 16, 16))), original(model)[1].running_var

    compare(around(lambda: nn.BatchNorm2d(4)), loop, tolerance=CLOSE)


def test_statistics_read_in_forward() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.norm(self.conv(x))
            return y, (self.norm.running_mean - y.mean((0, 2, 3))).square().sum()

    def loop(model: nn.Module) -> Any:
        found = []
        for seed in range(2):
            y, gap = model(photo(2, 2, 16, 16, seed=seed))
            (y.sum() + gap).backward()
            found.append((y, gap))
        return found

    exact_or_refused(lambda: Reads().double(), loop, tolerance=CLOSE)
