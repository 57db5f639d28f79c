"""Operators on tensors without data, looked up: the same as asking torch again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tilegrad.sim.blanks import run_blank

aten = torch.ops.aten


def blank(*shape: int, **options: Any) -> Tensor:
    return torch.empty(shape, device="meta", **options)


def last(*shape: int) -> Tensor:
    return blank(*shape).to(memory_format=torch.channels_last)


X = blank(2, 3, 4, 5)
CALLS: dict[str, tuple[Callable[..., Any], list[Any], dict[str, Any]]] = {
    "equal shapes": (aten.add.Tensor, [X, X], {}),
    "broadcast": (aten.mul.Tensor, [X, blank(3, 1, 1)], {}),
    "another type": (aten.mul.Tensor, [X, blank(2, 3, 4, 5, dtype=torch.float64)], {}),
    "an integer": (aten.mul.Tensor, [blank(4, dtype=torch.int64), 2], {}),
    "a float": (aten.mul.Tensor, [blank(4, dtype=torch.int64), 2.0], {}),
    "a truth": (aten.add.Tensor, [blank(4, dtype=torch.bool), True], {}),
    "strides": (aten.relu.default, [last(2, 3, 4, 5)], {}),
    "mixed strides": (aten.add.Tensor, [last(2, 3, 4, 5), X], {}),
    "a list": (aten.cat.default, [[X, X, last(2, 3, 4, 5)], 1], {}),
    "several results": (aten.max_pool2d_with_indices.default, [X, [2, 2]], {}),
    "results that are not there": (
        aten.convolution_backward.default,
        [blank(2, 4, 4, 5), X, blank(4, 3, 1, 1), [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]],
        {},
    ),
    "a keyword": (aten.sum.dim_IntList, [X, [1]], {"dtype": torch.float64}),
    "another keyword": (aten.sum.dim_IntList, [X, [1]], {}),
    "nothing in it": (aten.add.Tensor, [blank(0, 3), blank(0, 3)], {}),
}


def look(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.shape, result.stride(), result.dtype, result.device, result.untyped_storage().nbytes()
    return [look(item) for item in result] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", CALLS)
def test_asked_twice_is_asked_once(name: str) -> None:
    function, args, kwargs = CALLS[name]
    wanted = look(function(*args, **kwargs))
    for _ in range(3):
        assert look(run_blank(function, args, kwargs)) == wanted


def test_a_view_is_a_view() -> None:
    for _ in range(2):
        found = run_blank(aten.view.default, [X, [6, 20]], {})
        assert found.untyped_storage()._cdata == X.untyped_storage()._cdata


def test_what_is_written_to_is_the_argument() -> None:
    for _ in range(2):
        assert run_blank(aten.add_.Tensor, [X, X], {}) is X


def test_data_is_computed() -> None:
    x = torch.arange(3.0)
    for _ in range(2):
        assert run_blank(aten.mul.Tensor, [x, 2.0], {}).tolist() == [0.0, 2.0, 4.0]


def test_results_are_new_each_time() -> None:
    first, second = (run_blank(aten.neg.default, [X], {}) for _ in range(2))
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_integers_become_the_default_type() -> None:
    whole = blank(4, dtype=torch.int64)
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            assert run_blank(aten.mul.Tensor, [whole, 2.5], {}).dtype is dtype
    finally:
        torch.set_default_dtype(before)
