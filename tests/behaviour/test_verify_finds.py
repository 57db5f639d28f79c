"""`tilegrad.verify` compares twice, with another seed and another input: what was baked in shows."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import Net, describe, image, photo, whole_numbers
from torch import Tensor, nn
from torch.autograd import Function

import tilegrad
from tilegrad.errors import TilegradError

TICKS = itertools.count(1)
SEEN: list[int] = []


class Ticks(Net):
    def middle(self, y: Tensor) -> Tensor:
        return y * next(TICKS)


class Remembers(Net):
    def middle(self, y: Tensor) -> Tensor:
        SEEN.append(1)
        return y * len(SEEN)


class ReadsClock(Net):
    def middle(self, y: Tensor) -> Tensor:
        return y * int.from_bytes(os.urandom(4), "little")


class ReadsAddress(Net):
    def middle(self, y: Tensor) -> Tensor:
        return y * len(os.listdir("/proc/self/fd")) + next(TICKS)


HIDDEN: dict[str, Callable[[], nn.Module]] = {
    "a global iterator": Ticks,
    "a global list": Remembers,
    "the system's random numbers": ReadsClock,
    "files and counters": ReadsAddress,
}


@pytest.mark.parametrize("make", HIDDEN.values(), ids=HIDDEN)
def test_what_is_baked_in_is_found_or_refused(make: Callable[[], nn.Module]) -> None:
    try:
        result = tilegrad.verify(whole_numbers(make()), image(), tile=8)
    except TilegradError as error:
        assert error.where and error.hint
    else:
        assert not result.ok and result.differ > 0


def test_a_function_that_is_not_as_local_as_it_was_declared() -> None:
    @tilegrad.ops.local
    class Centred(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x - x.amax()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return Centred.apply(y)

    result = tilegrad.verify(whole_numbers(Model()), image(), tile=8)
    assert not result.ok


class Keeps(Net):
    """State of every kind that is right by design."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.seen, self.norm = 0, [], nn.BatchNorm2d(4)

    def middle(self, y: Tensor) -> Tensor:
        self.step += 1
        self.aux = y.square().mean()
        self.seen.append(y.detach().amax())
        return self.norm(y).relu() * self.step


class Straight(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Binary(Net):
    def middle(self, y: Tensor) -> Tensor:
        return Straight.apply(y)


SOUND: dict[str, Callable[[], nn.Module]] = {
    "plain": Net,
    "state": Keeps,
    "custom function": Binary,
    "dropout": lambda: nn.Sequential(Net(), nn.Dropout(0.5)),
}


@pytest.mark.parametrize("make", SOUND.values(), ids=SOUND)
def test_sound_models_pass(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    result = tilegrad.verify(make().double(), photo(), tile=8)
    assert result.ok, str(result)


def test_the_module_is_not_touched() -> None:
    net = Keeps().double()
    before = str(describe(net))
    tilegrad.verify(net, photo(), tile=8)
    assert str(describe(net)) == before


def test_the_input_is_not_touched() -> None:
    given = photo().requires_grad_()
    before = given.detach().clone()
    tilegrad.verify(Net().double(), given, tile=8)
    assert torch.equal(given, before) and given.grad is None


def test_a_wrong_input_is_an_error() -> None:
    with pytest.raises(TilegradError):
        tilegrad.verify(Net().double(), photo(1, 3, 16, 16), tile=8)
