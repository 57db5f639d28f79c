"""`torch.autograd.Function` in a model: its own backward counts, whatever the tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loop_functions import FUNCTIONS, Sign
from loops import (
    CLOSE,
    Net,
    backward,
    between,
    compare,
    graded,
    image,
    original,
)
from torch import Tensor, nn

every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@every_function
@pytest.mark.parametrize("tile", [5, 8, 16])
def test_between_convolutions(function: Callable[[Tensor], Tensor], tile: int) -> None:
    compare(between(function), lambda m: (graded(m), graded(m)), tile=tile)


@every_function
def test_first_of_all(function: Callable[[Tensor], Tensor]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(function(x))

    compare(Model, graded)


@every_function
def test_last_of_all(function: Callable[[Tensor], Tensor]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            return function(super().forward(x))

    compare(Model, graded)


@pytest.mark.parametrize("mode", ["scatter", "gather"])
def test_gradient_reversal_in_other_modes(mode: str) -> None:
    compare(between(FUNCTIONS["reversal"]), graded, mode=mode)


@pytest.mark.parametrize("planner", ["segments", "recompute", "tile", "auto"])
def test_gradient_reversal_keeps_its_sign_under_any_budget(planner: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(*(between(FUNCTIONS["reversal"])() for _ in range(6)))

    def loop(model: nn.Module) -> Any:
        found = backward(model(image(1, 2, 32, 32)))
        assert model is original(model) or model.plan.to_json()["mode"] != "none"
        return found

    compare(make, loop, tile=None, budget="320KiB", planner=planner, tolerance=CLOSE)


def test_in_eval_and_without_gradients() -> None:
    def loop(model: nn.Module) -> Any:
        with torch.no_grad():
            quiet = model.eval()(image())
        return quiet, graded(model), graded(model.train())

    compare(between(Sign.apply), loop)
