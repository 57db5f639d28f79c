"""Forms of `torch.autograd.Function`: several outputs, any arguments, weights, losses, random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loop_functions import Clipped, Reverse, Rounded, Sign, Slowed, Unhappy
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
    original,
    photo,
    twice,
)
from torch import Tensor, nn
from torch.autograd import Function

import tilegrad


def test_used_twice_with_other_arguments() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = Slowed.apply(self.first(x), 3.0)
            return Slowed.apply(self.last(Slowed.apply(y, 0.5)), 2.0)

    compare(Model, graded)


def test_domain_adversarial_training_with_a_schedule() -> None:
    class Dann(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.task, self.domain = conv(2, 4), conv(4, 2), conv(4, 2)
            self.alpha = 0.0

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            f = self.features(x).relu()
            return self.task(f), self.domain(Reverse.apply(f, self.alpha))

    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-12)
        for step in range(3):
            model.alpha = step / 2
            optimizer.zero_grad()
            task, domain = model(image(seed=step))
            (task.square().sum() - 2 * domain.sum()).backward()
            optimizer.step()
        return task, domain

    compare(Dann, loop, tolerance=CLOSE)


def test_several_outputs() -> None:
    class Split(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.clamp(min=0), x.clamp(max=0)

        @staticmethod
        def backward(ctx: Any, up: Tensor, down: Tensor) -> Tensor:
            return 2 * up - 3 * down

    class Model(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            up, down = Split.apply(self.first(x))
            return self.last(up), down

    def loop(model: nn.Module) -> Any:
        both = [backward(out) for out in model(image())[:1]]
        out, down = model(image(seed=1))
        (out.sum() + 2 * down.sum()).backward()
        return both, out, down

    compare(Model, loop)


def test_outputs_without_a_gradient() -> None:
    class Top(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            values, at = x.max(1, keepdim=True)
            ctx.save_for_backward(at)
            ctx.mark_non_differentiable(at)
            ctx.shape = x.shape
            return values, at

        @staticmethod
        def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
            (at,) = ctx.saved_tensors
            return 2 * grad.new_zeros(ctx.shape).scatter(1, at, grad)

    class Model(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            values, at = Top.apply(self.first(x))
            return self.last(values.expand(-1, 4, -1, -1)), at

    def loop(model: nn.Module) -> Any:
        out, at = model(image())
        return backward(out), at, at.requires_grad

    compare(Model, loop)


def test_one_that_writes_in_place() -> None:
    class Floor(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x > 0)
            ctx.mark_dirty(x)
            return x.clamp_(min=0)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (above,) = ctx.saved_tensors
            return grad * above + 1

    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            y = y * 1
            Floor.apply(y)
            return y

    compare(Model, graded)


def test_arguments_that_are_no_tensors() -> None:
    class Picked(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, how: str, weights: list[int], more: Tensor | None, options: dict) -> Tensor:
            ctx.how, ctx.options = how, options
            return x * sum(weights) + (0 if more is None else more)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
            return grad * ctx.options[ctx.how], None, None, None, None

    class Model(Net):
        how, more = "up", False

        def middle(self, y: Tensor) -> Tensor:
            return Picked.apply(y, self.how, [1, 2], y.detach() if self.more else None, {"up": 2, "down": -3})

    def loop(model: nn.Module) -> Any:
        first = graded(model)
        model.how = "down"
        second = graded(model)
        model.more = True
        return first, second, graded(model)

    compare(Model, loop)


def test_tensors_by_name_and_two_graded_inputs() -> None:
    class Blend(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(a, b, weight)
            return a * weight + b

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            a, _, weight = ctx.saved_tensors
            graded = ctx.needs_input_grad
            return (
                grad * weight * 3 if graded[0] else None,
                grad * 2 if graded[1] else None,
                (grad * a).sum() if graded[2] else None,
            )

    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(Blend.apply(self.first(x), self.first(x.flip(3)).detach(), self.weight))

    def loop(model: nn.Module) -> Any:
        found = [graded(model)]
        model.weight.requires_grad_(False)
        return [*found, graded(model)]

    compare(Model, loop)


def test_a_convolution_of_ones_own() -> None:
    class Own(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            ctx.save_for_backward(x, weight)
            return F.conv2d(x, weight, bias, padding=1)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            x, weight = ctx.saved_tensors
            into = torch.nn.grad.conv2d_input(x.shape, weight, grad, padding=1)
            of = torch.nn.grad.conv2d_weight(x, weight.shape, grad, padding=1)
            return into, 2 * of, grad.sum((0, 2, 3))

    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(Own.apply(x, self.first.weight, self.first.bias).relu())

    compare(Model, graded)


def test_binary_weights() -> None:
    class BinaryConv(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, Sign.apply(self.weight), self.bias, padding=1)

    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-6)
        for seed in range(2):
            optimizer.zero_grad()
            backward(model(image(seed=seed)))
            optimizer.step()
        return model(image())

    compare(lambda: nn.Sequential(BinaryConv(2, 4, 3), nn.ReLU(), BinaryConv(4, 2, 3)), loop)


def test_a_memory_saving_swish() -> None:
    class Swish(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * torch.sigmoid(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            s = torch.sigmoid(x)
            return grad * (s * (1 + x * (1 - s)))

    compare(lambda: between(Swish.apply)().double(), lambda m: backward(m(photo())), tolerance=CLOSE)


def test_a_loss_with_its_own_gradient() -> None:
    class Dice(Function):
        @staticmethod
        def forward(ctx: Any, p: Tensor, t: Tensor) -> Tensor:
            ctx.save_for_backward(p, t)
            return 1 - 2 * (p * t).sum() / (p.sum() + t.sum())

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            p, t = ctx.saved_tensors
            total = p.sum() + t.sum()
            return -2 * grad * (t * total - (p * t).sum()) / total**2, None

    class Model(Net):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return Dice.apply(super().forward(x).sigmoid(), t)

    compare(lambda: Model().double(), lambda m: backward(m(photo(), (photo() > 0).double())), tolerance=CLOSE)


def test_a_gradient_that_may_be_missing() -> None:
    class Both(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Tensor | None:
            if b is None:
                return None if a is None else a * 7
            return b if a is None else a + b

    class Model(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            a, b = Both.apply(self.first(x))
            return self.last(a), b

    def loop(model: nn.Module) -> Any:
        first = backward(model(image())[0])
        second = backward(model(image())[1])
        a, b = model(image())
        (a.sum() + b.sum()).backward()
        return first, second

    exact_or_refused(Model, loop)


def test_nothing_flows_back() -> None:
    class Stop(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:
            return None

    compare(between(Stop.apply), lambda m: backward(m(image())))


def test_random_numbers_are_the_same_in_backward() -> None:
    """Stochastic rounding in forward; the gradient tells which way was taken."""

    class Coin(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            kept = (torch.rand_like(x) < 0.5).double()
            ctx.save_for_backward(kept)
            return x * kept

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (kept,) = ctx.saved_tensors
            return grad * kept

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return Coin.apply(x * self.weight)

    tiled, given = tilegrad.tile(Model(), tile=8), torch.ones(1, 2, 16, 16, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    first = tiled(given)
    first.sum().backward()
    assert torch.equal(first, given.grad) and 0.3 < float(first.detach().mean()) < 0.7
    assert not torch.equal(first, tiled(given))
    torch.manual_seed(3)
    assert torch.equal(first, tiled(given))


def test_backward_is_called_once_for_a_call() -> None:
    calls: list[tuple[int, ...]] = []

    class Noted(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            calls.append(tuple(grad.shape))
            return grad

    def loop(model: nn.Module) -> Any:
        calls.clear()
        twice(model)
        return list(calls), once(model)

    compare(between(Noted.apply), loop)


def test_an_error_in_backward_is_the_users() -> None:
    tiled = tilegrad.tile(between(Unhappy.apply)().double(), tile=8)
    with pytest.raises(ArithmeticError, match="my backward stumbles"):
        backward(tiled(image()))


def test_inside_a_part_of_a_part() -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Reverse.apply(x, 1.0)

    compare(lambda: nn.Sequential(conv(2, 2), nn.Sequential(nn.ReLU(), Layer()), conv(2, 2), Layer()), graded)


def test_with_batch_norm_around() -> None:
    def make() -> nn.Module:
        net = nn.Sequential(conv(2, 4), nn.BatchNorm2d(4), between(Clipped.apply)(), nn.BatchNorm2d(2))
        net[2].first = conv(4, 4)
        return net.double()

    compare(make, lambda m: [backward(m(photo(2, 2, 16, 16, seed=k))) for k in range(2)], tolerance=CLOSE)


def test_the_function_is_looked_up_at_each_call() -> None:
    class Model(Net):
        function = staticmethod(Rounded.apply)

        def middle(self, y: Tensor) -> Tensor:
            return self.function(y)

    def loop(model: nn.Module) -> Any:
        first = graded(model)
        original(model).function = Clipped.apply
        return first, graded(model)

    compare(Model, loop)


def test_a_class_attribute_of_the_function() -> None:
    class Gain(Function):
        factor = 2

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * Gain.factor

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * Gain.factor * 10

    def loop(model: nn.Module) -> Any:
        Gain.factor = 2
        first = graded(model)
        Gain.factor = 3
        return first, graded(model)

    compare(between(Gain.apply), loop)
