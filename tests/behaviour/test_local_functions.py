"""Functions that are declared local run in tiles; operators of `torch.library` and scripted functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import (
    Net,
    between,
    compare,
    exact_or_refused,
    graded,
)
from torch import Tensor
from torch.autograd import Function

import tilegrad

# Declared local: in tiles


def local_sign() -> Callable[[Tensor], Tensor]:
    @tilegrad.ops.local
    class LocalSign(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sign()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * (x.abs() <= 9) * 2

    return LocalSign.apply


@pytest.mark.parametrize("tile", [5, 8, 16])
def test_declared_local(tile: int) -> None:
    compare(between(local_sign()), lambda m: (graded(m), graded(m)), tile=tile)


def test_declared_local_with_a_number_and_a_second_image() -> None:
    @tilegrad.ops.local
    class Mix(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor, weight: float) -> Tensor:
            ctx.weight = weight
            return a - weight * b

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
            return grad.clamp(-5, 5), 3 * ctx.weight * grad, None

    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.last(Mix.apply(y, y.relu(), 2.0))

    compare(Model, graded)
    compare(Model, graded, tile=5, mode="scatter")


# Operators of torch.library


def cube(name: str, fake: bool = True) -> Callable[[Tensor], Tensor]:
    @torch.library.custom_op(f"behaviour::{name}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 3)

    def keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def back(ctx: Any, grad: Tensor) -> Tensor:
        return 5 * grad * ctx.saved_tensors[0].sign()

    op.register_autograd(back, setup_context=keep)
    if fake:
        op.register_fake(torch.empty_like)
    return op


def test_a_custom_operator_of_torch_library() -> None:
    compare(between(cube("cube")), graded)


def test_a_custom_operator_without_a_fake() -> None:
    exact_or_refused(between(cube("blind_cube", fake=False)), graded)


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_function() -> None:
    @torch.jit.script
    def bent(x: Tensor) -> Tensor:
        return x.clamp(min=0.0) * 2 - x

    exact_or_refused(between(bent), graded)
