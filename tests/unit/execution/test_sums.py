"""Sums in single precision of gradients in half: all that came, once, however they wait."""

from __future__ import annotations

import pytest
import torch

from tilegrad.execution.sums import SMALL, Sums


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_that_came_is_in_the_sum(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    leaves = {
        name: torch.zeros(size, dtype=dtype, requires_grad=True)
        for name, size in {"bias": 7, "scale": 1, "weight": SMALL + 1}.items()
    }
    sums, exact = Sums({}), {name: torch.zeros(leaf.shape, dtype=torch.float64) for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        sums.gather(leaf, name)
    for island in range(9):
        given = {
            name: torch.randn(leaf.shape).to(dtype) for name, leaf in leaves.items() if island != 4 or name != "bias"
        }
        torch.autograd.backward([leaves[name] for name in given], [given[name] for name in given])
        for name, grad in given.items():
            exact[name] += grad.double()
        if island % 3:  # what is not settled between waits, or is added when the next one comes
            sums.settle()
    for name, leaf in leaves.items():
        found = sums.take(name)
        assert found is not None and found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact[name], rtol=1e-5, atol=1e-5)
        assert leaf.grad is None and sums.take(name) is None
