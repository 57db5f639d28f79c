"""A step that runs out of memory is planned smaller and run again: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import copy
import logging
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tilegrad
from tilegrad.testing import PeakBytes, integer_module, integer_tensor

IMAGE = (1, 2, 64, 48)


class Full(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A machine that holds no more than so many bytes beyond what was there, from a given moment on."""

    def __init__(self, limit: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit, self.count, self.times = limit, PeakBytes(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if self.count.now > self.limit:
            self.times += 1
            raise torch.OutOfMemoryError("no more memory")
        return found


def make_net(*, norm: bool = True) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (2, 8, 8, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), *([nn.BatchNorm2d(8)] if norm else []), nn.ReLU()]
    return integer_module(nn.Sequential(*layers, nn.Conv2d(8, 1, 3, padding=1)))


def run(net: nn.Module, x: Tensor, forward: int | None, backward: int | None, seed: int = 0) -> tuple[Tensor, int]:
    """A step with so much memory, forward and backward."""
    torch.manual_seed(seed)
    ran_out = 0
    out = None
    for limit, job in ((forward, "forward"), (backward, "backward")):
        mode = Full(limit if limit is not None else 1 << 60)
        with mode.count, mode:
            if job == "forward":
                out = net(x)
            else:
                assert out is not None
                out.square().sum().backward()
        ran_out += mode.times
    assert out is not None
    return out.detach(), ran_out


def needs(net: nn.Module, x: Tensor) -> tuple[int, int]:
    """The most that the two halves of a step hold beyond what was there."""
    found = []
    net = copy.deepcopy(net)
    with PeakBytes() as peak:
        out = net(x)
    found.append(peak.bytes)
    with PeakBytes() as peak:
        out.square().sum().backward()
    return found[0], peak.bytes


@pytest.mark.parametrize("half", ["forward", "backward"])
@pytest.mark.parametrize("norm", [False, True])
def test_the_step_is_run_again_in_less(half: str, norm: bool, caplog: pytest.LogCaptureFixture) -> None:
    plain = make_net(norm=norm)
    x = integer_tensor(IMAGE)
    tiled = tilegrad.tile(copy.deepcopy(plain), tile=32)
    forward, backward = needs(tiled, x)
    limits = (int(0.9 * forward), None) if half == "forward" else (None, int(0.9 * backward))
    expected = plain(x)
    expected.square().sum().backward()
    with caplog.at_level(logging.WARNING, "tilegrad"):
        found, ran_out = run(tiled, x, *limits)
    assert ran_out >= 1
    assert any("planned again" in record.message for record in caplog.records)
    if norm:  # statistics are sums in another order
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    else:
        assert torch.equal(found, expected)
    for mine, other in zip(tiled.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-7, atol=1e-7)
    for mine, other in zip(tiled.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


class Tight(AbstractContextManager[None]):
    """An allocator that is held to so many bytes, as `Reserved` does on a GPU, until that is widened or lifted."""

    def __init__(self, limit: int, wider: int):
        self.limit, self.wider, self.lifted, self.times = limit, wider, False, 0

    def begin(self, tensors: object, predicted: int) -> AbstractContextManager[None] | None:
        return None if self.lifted else self

    def __enter__(self) -> None:
        self.mode = Full(self.limit)
        self.mode.count.__enter__()
        self.mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.mode.__exit__(*error)
        self.mode.count.__exit__(*error)
        self.times += self.mode.times

    def widen(self, limit: object) -> bool:
        before, self.limit = self.limit, self.wider
        return self.wider > before

    def end(self, *step: object) -> None: ...

    def lesson(self, schedule: object) -> None: ...

    def lift(self) -> None:
        self.lifted = True


@pytest.mark.parametrize(("share", "wider"), [(0.9, 1.0), (0.9, 0.9), (0.0, 0.0)])  # as it is; a smaller plan; none
def test_an_allocator_that_is_held_to_a_limit(share: float, wider: float) -> None:
    plain = make_net(norm=False)
    x = integer_tensor(IMAGE)
    tiled = tilegrad.tile(copy.deepcopy(plain), tile=32)
    forward, _ = needs(tiled, x)
    tight = Tight(int(share * forward), int(wider * forward))
    before = tiled.plan_for(x).schedule
    tiled._state.last.reserved = tight
    expected = plain(x)
    expected.square().sum().backward()
    found = tiled(x)
    assert tight.times >= 1
    assert tight.lifted == (wider == 0.0)
    assert (tiled._state.last.schedule is before) == (wider == 1.0)
    tight.lifted = True  # backward may take what it needs
    found.square().sum().backward()
    assert torch.equal(found, expected)
    for mine, other in zip(tiled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = make_net(norm=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(F.dropout(x, 0.5))
        return out


def test_what_was_drawn_is_drawn_again() -> None:
    net = Drops().double()
    x = integer_tensor(IMAGE)
    calm, full = (tilegrad.tile(copy.deepcopy(net), tile=32) for _ in range(2))
    _, backward = needs(full, x)
    run(calm, x, None, None, seed=3)
    _, ran_out = run(full, x, None, int(0.9 * backward), seed=3)
    assert ran_out >= 1
    for mine, other in zip(full.parameters(), calm.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-12, atol=1e-12)


class Remembers(nn.Module):
    """Its output depends on a buffer that it writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net(norm=False)
        self.register_buffer("seen", torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x) * self.seen
        self.seen.add_(1)
        return out


def test_what_depends_on_a_buffer_that_was_written_to_is_not_run_again() -> None:
    net = Remembers().double()
    x = integer_tensor(IMAGE)
    tiled = tilegrad.tile(net, tile=32)
    _, backward = needs(tiled, x)
    with pytest.raises(torch.OutOfMemoryError):
        run(tiled, x, None, int(0.9 * backward))


def test_where_nothing_smaller_is_found_the_error_is_the_allocators() -> None:
    tiled = tilegrad.tile(make_net(norm=False), tile=32)
    x = integer_tensor(IMAGE)
    with pytest.raises(torch.OutOfMemoryError, match="no more memory"):
        run(tiled, x, 1000, None)
