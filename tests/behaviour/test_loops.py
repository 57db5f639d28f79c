"""The comparison itself: a difference, a trace or an unclear refusal must not pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import Net, compare, exact_or_refused, image, once, refused, twice
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import tilegrad
from tilegrad.errors import CaptureError, TilegradError


def tiled_as(monkeypatch: pytest.MonkeyPatch, forward: Callable[..., Any]) -> None:
    """A tiled module that does something else."""
    monkeypatch.setattr(tilegrad.TiledModule, "forward", forward)


def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.module.forward(*args, **kwargs)


def test_the_same_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    tiled_as(monkeypatch, plain)
    compare(Net, twice)
    exact_or_refused(Net, twice)


def leave_a_fake(self: Any, x: Tensor) -> Tensor:
    with FakeTensorMode():
        self.module.seen = torch.ones(1)
    return plain(self, x)


WRONG: dict[str, Callable[..., Any]] = {
    "output": lambda self, x: plain(self, x) + 0 * x.sum() + 1e-12,
    "gradient": lambda self, x: (y := plain(self, x)) + (2 * y - (2 * y).detach()),
    "no gradient": lambda self, x: plain(self, x).detach(),
    "type": lambda self, x: plain(self, x).float(),
    "attribute": lambda self, x: (setattr(self.module, "seen", 1), plain(self, x))[1],
    "flag": lambda self, x: (self.module.first.eval(), plain(self, x))[1],
    "fake": leave_a_fake,
}


@pytest.mark.parametrize("forward", WRONG.values(), ids=WRONG)
def test_a_difference_is_found(forward: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tiled_as(monkeypatch, forward)
    for check in (compare, exact_or_refused):
        with pytest.raises((AssertionError, RuntimeError)) as error:
            check(Net, once)
        assert not isinstance(error.value, TilegradError)


def refuse(where: str | None, hint: str | None, trace: bool = False) -> Callable[..., Any]:
    def forward(self: Any, x: Tensor) -> Any:
        if trace:
            self.module.seen = 1
        raise CaptureError("the model does what we cannot", where=where, hint=hint)

    return forward


def test_a_clear_refusal_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    tiled_as(monkeypatch, refuse("test_loops.py:7", "something else"))
    exact_or_refused(Net, once)
    refused(Net, once, "what we cannot")
    with pytest.raises(AssertionError, match="is not in"):
        refused(Net, once, "other words")


UNCLEAR: dict[str, Callable[..., Any]] = {
    "no place": refuse(None, "something else"),
    "no way out": refuse("test_loops.py:7", None),
    "a line of torch": refuse("/torch/nn/modules/module.py:7", "something else"),
    "traces": refuse("test_loops.py:7", "something else", trace=True),
}


@pytest.mark.parametrize("forward", UNCLEAR.values(), ids=UNCLEAR)
def test_an_unclear_refusal_is_found(forward: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tiled_as(monkeypatch, forward)
    with pytest.raises(AssertionError):
        exact_or_refused(Net, once)
    with pytest.raises(AssertionError):
        refused(Net, once, "what we cannot")


def test_a_refusal_that_comes_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def forward(self: Any, x: Tensor) -> Any:
        calls.append(1)
        return plain(self, x) if len(calls) == 1 else refuse("test_loops.py:7", "something else")(self, x)

    tiled_as(monkeypatch, forward)
    with pytest.raises(AssertionError, match="only after 1 calls"):
        exact_or_refused(Net, twice)


def test_a_loop_that_compares_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0

    tiled_as(monkeypatch, plain)
    with pytest.raises(AssertionError, match="nothing but zeros"):
        compare(Zero, lambda m: m(image()))
