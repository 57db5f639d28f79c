"""Numbers that tell tensors apart."""

from __future__ import annotations

import pytest
import torch

from tilegrad.distributed.digest import digest, digest_sample

DTYPES = [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 70, 71)], ids=str)
def test_one_element_makes_a_difference(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape).to(dtype)
    other = x.clone()
    other.view(-1)[-1] = 1
    assert digest(x) == digest(x.clone()) and digest(x) != digest(other)
    assert digest_sample(x) == digest_sample(x.clone())


def test_the_order_counts_and_the_layout_does_not() -> None:
    x = torch.arange(24.0).reshape(2, 3, 2, 2)
    assert digest(x) == digest(x.contiguous(memory_format=torch.channels_last))
    assert digest(x) != digest(x.flip(0)) and digest_sample(x) != digest_sample(x.flip(0))


def test_nothing_and_a_sample() -> None:
    assert digest(torch.empty(0, 3)) == digest_sample(torch.empty(0, 3))
    x = torch.randn(3, 4, 100, 100)
    assert digest_sample(x) != digest_sample(x + 1)
    assert digest_sample(x) == digest_sample(x.to(memory_format=torch.channels_last))
