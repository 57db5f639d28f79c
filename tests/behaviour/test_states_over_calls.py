"""Hidden states, memories and running averages, which the next call reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from loops import CLOSE, Net, backward, compare, exact_or_refused, image, once
from torch import Tensor, nn


class Recurrent(Net):
    def __init__(self, detach: bool = True) -> None:
        super().__init__()
        self.h: Tensor | None = None
        self.detach = detach

    def reset(self) -> None:
        self.h = None

    def middle(self, y: Tensor) -> Tensor:
        h = y.clamp(-2, 2) if self.h is None else (y + self.h).clamp(-3, 3)
        self.h = h.detach() if self.detach else h
        return h


def test_a_hidden_state_that_is_detached() -> None:
    def loop(model: nn.Module) -> Any:
        found = [backward(model(image(seed=seed))) for seed in range(3)]
        model.reset()
        return found, once(model), model.h

    compare(Recurrent, loop)


def test_a_hidden_state_through_time() -> None:
    def loop(model: nn.Module) -> Any:
        total = sum(model(image(seed=seed)).sum() for seed in range(3))
        total.backward()
        return total

    compare(lambda: Recurrent(detach=False), loop)


def test_a_hidden_state_set_by_the_loop() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for seed in range(3):
            model.h = image(1, 4, 16, 16, seed=seed)
            found.append(once(model))
        return found

    compare(Recurrent, loop)


def test_a_memory_bank() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.bank: list[Tensor] = []

        def middle(self, y: Tensor) -> Tensor:
            out = y + sum(self.bank) if self.bank else y
            self.bank = [*self.bank, y.detach().amax((2, 3), keepdim=True)][-2:]
            return out

    compare(Model, lambda m: [once(m) for _ in range(4)])


BUFFER_WRITES: dict[str, Callable[[nn.Module, Tensor], None]] = {
    "assigned": lambda m, y: setattr(m, "running", 0.5 * m.running + y),
    "in place": lambda m, y: m.running.mul_(0.5).add_(y),
    "copied": lambda m, y: m.running.copy_(0.5 * m.running + y),
    "data in place": lambda m, y: m.running.data.mul_(0.5).add_(y),
    "lerp": lambda m, y: m.running.lerp_(y, 0.5),
    "slice": lambda m, y: m.running[:2].__iadd__(y[:2]),
    "item": lambda m, y: m.running.__setitem__(slice(1, 3), y[1:3]),
}


@pytest.mark.parametrize("write", BUFFER_WRITES.values(), ids=BUFFER_WRITES)
def test_a_running_average(write: Callable[[nn.Module, Tensor], None]) -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running", torch.zeros(4))

        def middle(self, y: Tensor) -> Tensor:
            if self.training:
                write(self, y.detach().amax((0, 2, 3)))
            return y - self.running[:, None, None]

    def loop(model: nn.Module) -> Any:
        return [once(model) for _ in range(3)], model.eval()(image())

    compare(Model, loop)


@pytest.mark.parametrize("write", BUFFER_WRITES.values(), ids=BUFFER_WRITES)
def test_a_running_average_that_is_no_buffer(write: Callable[[nn.Module, Tensor], None]) -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.running = torch.zeros(4, dtype=torch.float64)

        def middle(self, y: Tensor) -> Tensor:
            write(self, y.detach().amax((0, 2, 3)))
            return y - self.running[:, None, None]

    compare(Model, lambda m: [once(m) for _ in range(3)])


def test_a_queue_of_keys_with_a_pointer() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("queue", torch.zeros(4, 6))
            self.pointer = 0

        def middle(self, y: Tensor) -> Tensor:
            score = y + self.queue.sum(1)[:, None, None]
            self.queue[:, self.pointer] = y.detach().amax((0, 2, 3))
            self.pointer = (self.pointer + 1) % 6
            return score

    compare(Model, lambda m: [once(m) for _ in range(3)])


def test_a_queue_whose_pointer_is_a_buffer() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("queue", torch.zeros(4, 6))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        def middle(self, y: Tensor) -> Tensor:
            at = int(self.pointer)
            self.queue[:, at] = y.detach().amax((0, 2, 3))
            self.pointer[0] = (at + 1) % 6
            return y + self.queue.sum(1)[:, None, None]

    exact_or_refused(Model, lambda m: [once(m) for _ in range(3)])


def test_a_teacher_that_follows_in_forward() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = Net(), Net().requires_grad_(False)

        @torch.no_grad()
        def follow(self) -> None:
            for s, t in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                t.mul_(0.5).add_(s, alpha=0.5)

        def forward(self, x: Tensor) -> Tensor:
            self.follow()
            with torch.no_grad():
                target = self.teacher(x)
            return (self.student(x) - target).square().sum()

    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.student.parameters(), lr=1e-6)
        found = []
        for seed in range(2):
            optimizer.zero_grad()
            found.append(backward(model(image(seed=seed))))
            optimizer.step()
        return found

    compare(Model, loop, tolerance=CLOSE)


@dataclass
class Meter:
    total: float = 0.0
    seen: list[Any] = field(default_factory=list)


def test_a_meter_that_counts_pixels() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.meter = Meter()

        def middle(self, y: Tensor) -> Tensor:
            self.meter.total += y.numel()
            self.meter.seen.append(y.shape[-1])
            return y.relu()

    compare(Model, lambda m: [backward(m(image(1, 2, 16, w))) for w in (16, 12, 16)])
