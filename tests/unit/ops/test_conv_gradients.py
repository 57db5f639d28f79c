"""Gradients of convolutions that are made otherwise than torch makes them: the same numbers."""

from __future__ import annotations

import pytest
import torch

from tilegrad.ops.conv import _of_few, has_few


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("made", [2, 5, 7])
def test_of_few_channels_as_if_there_were_more(made: int, layout: torch.memory_format) -> None:
    """Whichever way the gradient lies."""
    x = torch.randint(-4, 5, (2, 12, 9, 7)).double().contiguous(memory_format=torch.channels_last)
    weight = torch.randint(-4, 5, (made, 12, 1, 1)).double()
    grad = torch.randint(-4, 5, (2, made, 9, 7)).double().contiguous(memory_format=layout)
    how = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    wanted, *_ = torch.ops.aten.convolution_backward(grad, x, weight, None, *how, [True, False, False])
    assert torch.equal(_of_few(grad, x, weight, how), wanted)


def test_which_are_few() -> None:
    def weight(made: int, size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(made, 64, size, size, dtype=dtype)

    assert has_few(weight(2, 1)) and has_few(weight(7, 1, torch.float16))
    assert not any(map(has_few, (weight(1, 1), weight(8, 1), weight(2, 3), weight(2, 1, torch.float32))))
