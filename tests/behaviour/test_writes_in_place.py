"""Writes in place: to what is computed, to the input, to weights, to buffers and plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import Net, backward, compare, exact_or_refused, image, once, original, twice
from torch import Tensor, nn


def clear_corner(y: Tensor) -> Tensor:
    y[:, :, :3, 4:] = 0
    return y


def through_a_view(y: Tensor) -> Tensor:
    rows = y[:, :, 2:5]
    y.mul_(2)
    rows += 1
    y[:, 0].neg_()
    return y + rows.sum()


def masked(y: Tensor) -> Tensor:
    y[y > 3] = 3
    return y


def every_second(y: Tensor) -> Tensor:
    y[..., ::2] *= 2
    y[:, [0, 2]] = y[:, [2, 0]]
    return y


def gathered(y: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    for channel in range(y.shape[1]):
        out[:, channel] = y[:, channel] * (channel + 1)
    return out


def into_out(y: Tensor) -> Tensor:
    out = y.detach() * 1
    torch.add(y.detach(), 2, out=out)
    return y + out


def filled(y: Tensor) -> Tensor:
    mask = torch.ones_like(y)
    mask.fill_(2).sub_(1)
    mask[:, 1].zero_()
    return y.masked_fill_(y < -4, -4) * mask


def accumulated(y: Tensor) -> Tensor:
    total = torch.zeros_like(y)
    for shift in (-1, 0, 1):
        total += y.roll(shift, 2)
    return total


def swapped(y: Tensor) -> Tensor:
    y[:, :2], y[:, 2:] = y[:, 2:].clone(), y[:, :2].clone()
    return y


def copied(y: Tensor) -> Tensor:
    canvas = y.new_zeros(y.shape[0], y.shape[1], y.shape[2] + 4, y.shape[3] + 4)
    canvas[:, :, 2:-2, 2:-2].copy_(y)
    return canvas[:, :, 1:-3, 3:-1]


WRITES = {
    w.__name__: w
    for w in (
        clear_corner,
        through_a_view,
        masked,
        every_second,
        gathered,
        into_out,
        filled,
        accumulated,
        swapped,
        copied,
    )
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_to_what_is_computed(write: Callable[[Tensor], Tensor]) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return write(y)

    exact_or_refused(Model, twice)


@pytest.mark.parametrize("write", [clear_corner, through_a_view, every_second, gathered, filled, accumulated])
def test_writes_that_are_right_by_design(write: Callable[[Tensor], Tensor]) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return write(y)

    compare(Model, twice)


# To the input

INPUT_WRITES: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda x: x.mul_(2),
    "slice": lambda x: x.__setitem__((slice(None), 0), 1),
    "relu_": lambda x: torch.relu_(x),
    "augmented": lambda x: x.__isub__(1),
    "copy_": lambda x: x.copy_(x.flip(3)),
    "through a view": lambda x: x[:, 1:, 3:6].neg_(),
    "data": lambda x: x.data.add_(1),
}


@pytest.mark.parametrize("write", INPUT_WRITES.values(), ids=INPUT_WRITES)
def test_writes_to_the_users_image(write: Callable[[Tensor], Any]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            write(x)
            return super().forward(x)

    def loop(model: nn.Module) -> Any:
        given = image()
        return backward(model(given)), given.clone(), backward(model(given)), given

    compare(Model, loop)


def test_writes_to_an_image_that_wants_a_gradient() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            x *= 2
            return super().forward(x)

    def loop(model: nn.Module) -> Any:
        leaf = image().requires_grad_()
        given = leaf * 1
        return backward(model(given)), given, leaf.grad

    exact_or_refused(Model, loop)


def test_writes_to_an_image_in_a_dictionary() -> None:
    class Model(Net):
        def forward(self, batch: dict[str, Any]) -> Tensor:
            batch["image"] = batch["image"] * 2
            batch["out"] = super().forward(batch["image"])
            return batch["out"]

    def loop(model: nn.Module) -> Any:
        batch = {"image": image()}
        return backward(model(batch)), sorted(batch), batch["image"]

    exact_or_refused(Model, loop)


def test_an_image_that_is_read_after_it_was_written() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            before = super().forward(x)
            x.add_(1)
            return before, super().forward(x)

    def loop(model: nn.Module) -> Any:
        given = image()
        a, b = model(given)
        return a.detach(), b.detach(), given

    compare(Model, loop)


# To weights

WEIGHT_WRITES: dict[str, Callable[[nn.Parameter], Any]] = {
    "clamp_": lambda w: w.clamp_(-1, 1),
    "mul_": lambda w: w.mul_(2),
    "copy_": lambda w: w.copy_(w.flip(0)),
    "slice": lambda w: w.__setitem__(0, 1.0),
}


@pytest.mark.parametrize("write", WEIGHT_WRITES.values(), ids=WEIGHT_WRITES)
def test_weights_written_in_forward(write: Callable[[Any], Any]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                write(self.first.weight)
            return super().forward(x)

    compare(Model, twice)


@pytest.mark.parametrize("write", WEIGHT_WRITES.values(), ids=WEIGHT_WRITES)
def test_weights_written_through_data(write: Callable[[Any], Any]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            write(self.first.weight.data)
            return super().forward(x)

    compare(Model, twice)


@pytest.mark.parametrize("what", ["weight", "buffer", "tensor"])
def test_data_that_is_replaced(what: str) -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.ones(4, 1, 1))
            self.fixed = torch.ones(4, 1, 1, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            found = {"weight": self.first.weight, "buffer": self.shift, "tensor": self.fixed}[what]
            found.data = found.data.clamp(-1, 1) * 2
            return self.last(self.first(x) + self.shift + self.fixed)

    exact_or_refused(Model, twice)


def test_weights_written_only_in_training() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.last.bias.data += 1
            return super().forward(x)

    def loop(model: nn.Module) -> Any:
        return once(model), model.eval()(image()).detach(), once(model.train()), model.eval()(image()).detach()

    compare(Model, loop)


def test_weights_written_after_they_were_read() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            self.last.bias.data.add_(1)
            return out

    compare(Model, twice)


# To plain tensors and buffers


@pytest.mark.parametrize("registered", [True, False])
def test_a_tensor_of_the_model_is_written(registered: bool) -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            if registered:
                self.register_buffer("memory", torch.zeros(3, 4))
            else:
                self.memory = torch.zeros(3, 4, dtype=torch.float64)

        def middle(self, y: Tensor) -> Tensor:
            self.memory[1:] = self.memory[:-1].clone()
            self.memory[0] = y.detach().amax((0, 2, 3))
            return y + self.memory.sum(0)[:, None, None]

    compare(Model, lambda m: [once(m) for _ in range(3)])


def test_a_tensor_in_a_list_is_written() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.state = [torch.zeros(4, dtype=torch.float64)]

        def middle(self, y: Tensor) -> Tensor:
            self.state[0] += 1
            return y * self.state[0][:, None, None]

    compare(Model, lambda m: ([once(m) for _ in range(3)], m.state[0]))


TOTAL = torch.zeros((), dtype=torch.float64)


class WritesGlobal(Net):
    def middle(self, y: Tensor) -> Tensor:
        TOTAL.add_(1)
        return y * TOTAL


def test_a_global_tensor_is_written() -> None:
    def loop(model: nn.Module) -> Any:
        TOTAL.zero_()
        return twice(model), TOTAL.clone()

    exact_or_refused(WritesGlobal, loop)


def test_a_view_of_a_buffer_is_written() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(2, 4))

        def middle(self, y: Tensor) -> Tensor:
            row = self.table[1]
            row += 1
            return y + self.table.sum(0)[:, None, None]

    compare(Model, twice)


# To the output, outside


def test_the_output_is_written_by_the_loop() -> None:
    def loop(model: nn.Module) -> Any:
        given = image().requires_grad_()
        out = model(given)
        out *= 2
        out[:, 0] = 0
        torch.relu_(out)
        return backward(out), given.grad

    compare(Net, loop)


def test_the_image_is_overwritten_by_the_next_one() -> None:
    """A buffer for images that the loop fills again and again, after backward."""

    def loop(model: nn.Module) -> Any:
        given, found = torch.empty(1, 2, 16, 16, dtype=torch.float64), []
        for seed in range(3):
            given.copy_(image(seed=seed))
            found.append(backward(model(given)))
        return found

    compare(Net, loop)


def test_an_inplace_activation_after_the_module_that_keeps_its_input() -> None:
    net = lambda: nn.Sequential(Net(), nn.ReLU(inplace=True), Net(), nn.Hardtanh(-9, 9, inplace=True))  # noqa: E731
    compare(net, lambda m: (twice(m), original(m)(image()).detach()))
