"""`no_grad`, `enable_grad`, `inference_mode`, `detach`: inside a model and around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from loops import (
    CLOSE,
    Net,
    backward,
    between,
    compare,
    conv,
    exact_or_refused,
    graded,
    image,
    once,
    photo,
    refused,
    twice,
)
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

# Gradient modes inside


class Backbone(nn.Module):
    """A part runs without gradients, as long as it is frozen."""

    def __init__(self, block: Callable[[], Any]) -> None:
        super().__init__()
        self.backbone, self.head, self.block = Net(), conv(2, 2), block

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with self.block():
            features = self.backbone(x)
        return self.head(features), features


BLOCKS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "set_grad_enabled, off": lambda: torch.set_grad_enabled(False),
    "set_grad_enabled, on": lambda: torch.set_grad_enabled(True),
    "null": nullcontext,
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_blocks_inside_forward(block: Callable[[], Any]) -> None:
    def loop(model: nn.Module) -> Any:
        given = image().requires_grad_()
        out, features = model(given)
        return backward(out), features, given.grad

    compare(lambda: Backbone(block), loop)


def test_inference_mode_inside_forward() -> None:
    def loop(model: nn.Module) -> Any:
        with torch.inference_mode():
            pass
        out, features = model(image())
        return out.detach().clone(), features.clone()

    class Whole(Backbone):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.inference_mode():
                features = self.backbone(x)
                return self.head(features), features

    exact_or_refused(lambda: Whole(nullcontext), loop)


def test_a_method_without_gradients() -> None:
    class Model(Net):
        @torch.no_grad()
        def target(self, y: Tensor) -> Tensor:
            return y.relu() * 2

        def middle(self, y: Tensor) -> Tensor:
            return y * 3 - self.target(y)

    compare(Model, graded)


def test_a_model_without_gradients_by_decorator() -> None:
    class Model(Net):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    def loop(model: nn.Module) -> Any:
        out = model(image().requires_grad_())
        return out, out.requires_grad

    compare(Model, loop)


def test_gradients_again_inside_a_block_without() -> None:
    def act(y: Tensor) -> Tensor:
        with torch.no_grad():
            a = y * 2
            with torch.enable_grad():
                b = y * 3
            a = a + b
        return a + y

    compare(between(act), graded)


def test_a_block_by_an_attribute() -> None:
    class Model(Net):
        frozen = True

        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(not self.frozen and torch.is_grad_enabled()):
                y = self.first(x)
            return self.last(y.relu())

    def loop(model: nn.Module) -> Any:
        found = []
        for frozen in (True, False, True):
            model.frozen = frozen
            model.zero_grad()
            found.append((once(model), [p.grad for p in model.parameters()]))
        return found

    compare(Model, loop)


def test_statistics_move_in_a_block_without_gradients() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), nn.Conv2d(4, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                y = self.norm(x)
            return self.head(y)

    compare(lambda: Model().double(), lambda m: [backward(m(photo(seed=k))) for k in (0, 1)], tolerance=CLOSE)


@pytest.mark.parametrize("stop", [lambda y: y.detach(), lambda y: y.data, lambda y: y.detach().clone()])
def test_a_gradient_that_stops(stop: Callable[[Tensor], Tensor]) -> None:
    compare(between(lambda y: y.relu() * stop(y).clamp(0, 2) + stop(y)), graded)


def test_straight_through_by_detach() -> None:
    compare(between(lambda y: y + (y.sign() - y).detach()), graded)


# Refused inside


def test_requires_grad_in_forward_is_refused() -> None:
    def act(y: Tensor) -> Tensor:
        return y.detach().requires_grad_() * 2 + y

    refused(between(act), once, "requires_grad_")


def test_gradients_taken_in_forward_are_refused() -> None:
    class Energy(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (force,) = torch.autograd.grad(super().forward(x).sum(), x)
            return force * 2 + self.last.bias.sum()

    refused(Energy, lambda m: m(image()).detach(), "autograd.grad|requires_grad_")


def test_backward_in_forward_is_refused() -> None:
    class Inner(Net):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            out.sum().backward(retain_graph=True)
            return out.detach()

    refused(Inner, lambda m: m(image()), "backward")


# Gradient modes outside


def test_no_grad_and_inference_mode_around() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for block in (torch.no_grad, nullcontext, torch.inference_mode, torch.enable_grad):
            with block():
                out = model(image())
                found.append((out.requires_grad, out.is_inference()))
                found.append(out.detach().clone())
        return found, once(model)

    compare(Net, loop)


def test_an_image_made_in_inference_mode() -> None:
    def loop(model: nn.Module) -> Any:
        with torch.inference_mode():
            given = image() * 1
            out = model(given)
        with torch.no_grad():
            return out.clone(), model(given)

    compare(Net, loop)


def test_a_loop_as_a_decorated_function() -> None:
    @torch.no_grad()
    def evaluate(model: nn.Module) -> list[Tensor]:
        return [model(image(seed=k)) for k in range(2)]

    compare(Net, lambda m: (evaluate(m), once(m), evaluate(m)))


@pytest.mark.parametrize("context", ["save_on_cpu", "saved_tensors_hooks"])
def test_under_hooks_for_saved_tensors(context: str) -> None:
    def loop(model: nn.Module) -> Any:
        graph = torch.autograd.graph
        block = graph.save_on_cpu() if context == "save_on_cpu" else graph.saved_tensors_hooks(lambda t: t, lambda t: t)
        with block:
            out = model(image())
        return backward(out)

    compare(Net, loop)


def test_under_a_profiler_and_a_flop_counter() -> None:
    def loop(model: nn.Module) -> Any:
        with FlopCounterMode(display=False):
            first = once(model)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            return first, once(model)

    exact_or_refused(Net, loop)


def test_under_a_default_device() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            with torch.device("cpu"):
                return y + torch.ones(16, dtype=y.dtype)

    def loop(model: nn.Module) -> Any:
        with torch.device("cpu"):
            return twice(model)

    compare(Model, loop)
