"""Python's and NumPy's random numbers, clocks, copies and errors in forward."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loops import Net, compare, exact_or_refused, image, once, refused, twice
from torch import Tensor, nn

# Random numbers of Python and NumPy

DRAWS: dict[str, Callable[[], float]] = {
    "random.random": random.random,
    "random.randint": lambda: random.randint(1, 9),
    "random.choice": lambda: random.choice([1, 2, 3]),
    "numpy.random.rand": lambda: float(np.random.rand()),
    "numpy.random.randint": lambda: int(np.random.randint(1, 9)),
    "numpy generator": lambda: float(np.random.default_rng().random()),
}


@pytest.mark.parametrize("draw", list(DRAWS.values())[:5], ids=list(DRAWS)[:5])
def test_random_numbers_of_python_and_numpy_are_refused(draw: Callable[[], float]) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y.relu() * draw()

    refused(Model, twice, "random")


def test_a_layer_dropped_by_a_coin_of_python_is_refused() -> None:
    class LayerDrop(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y if self.training and random.random() < 0.5 else y.relu()

    refused(LayerDrop, twice, "random")


def test_a_coin_of_python_that_is_not_thrown_in_eval() -> None:
    class LayerDrop(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y if self.training and random.random() < 0.5 else y.relu()

    compare(lambda: LayerDrop().eval(), twice)


def test_a_generator_of_numpy_on_the_module() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(0)

        def middle(self, y: Tensor) -> Tensor:
            return y.relu() * int(self.rng.integers(1, 9))

    exact_or_refused(Model, lambda m: [once(m) for _ in range(3)])


def test_a_generator_of_python_on_the_module() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.rng = random.Random(0)

        def middle(self, y: Tensor) -> Tensor:
            return y.relu() * self.rng.randint(1, 9)

    exact_or_refused(Model, lambda m: [once(m) for _ in range(3)])


# Other Python


def test_a_clock_in_forward() -> None:
    class Timed(Net):
        def middle(self, y: Tensor) -> Tensor:
            begin = time.perf_counter()
            y = y.relu()
            self.took = time.perf_counter() - begin
            return y

    def loop(model: nn.Module) -> Any:
        found = twice(model)
        assert model.took >= 0
        del model.took
        return found

    exact_or_refused(Timed, loop)


def test_a_copy_of_a_layer_in_forward() -> None:
    class Copied(Net):
        def middle(self, y: Tensor) -> Tensor:
            still = copy.deepcopy(self.last)
            return y * still(y.detach()).amax().detach()

    exact_or_refused(Copied, twice)


def test_the_norm_of_a_weight_through_data() -> None:
    class Scaled(Net):
        def forward(self, x: Tensor) -> Tensor:
            weight = self.first.weight / self.first.weight.data.abs().amax()
            return self.last(F.conv2d(x, weight, padding=1))

    def loop(model: nn.Module) -> Any:
        first = once(model)
        with torch.no_grad():
            model.first.weight.mul_(4)
        return first, once(model)

    compare(Scaled, loop)


def test_a_fall_back_after_an_error() -> None:
    class Tries(Net):
        def middle(self, y: Tensor) -> Tensor:
            try:
                return y.view(3, -1, 16, 16)
            except RuntimeError:
                return y.relu()

    compare(Tries, twice)


def test_a_list_of_losses_that_the_loop_empties() -> None:
    class Collects(Net):
        def __init__(self) -> None:
            super().__init__()
            self.losses: list[Tensor] = []

        def middle(self, y: Tensor) -> Tensor:
            if self.training:
                self.losses.append(y.square().sum())
            return y.relu()

        def pop(self) -> Tensor:
            total = sum(self.losses)
            self.losses = []
            return total

    def loop(model: nn.Module) -> Any:
        found = []
        for seed in range(3):
            out = model(image(seed=seed)).sum() + model(image(seed=seed + 5)).sum()
            loss = out + model.pop()
            loss.backward()
            found.append(loss.detach())
        return found, len(model.eval().losses)

    compare(Collects, loop)
