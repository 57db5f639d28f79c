"""Plans of whole nodes: in half precision what is predicted is what is held; a draw is in the way of no gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.models import convnext_tiny, vgg16
from tilegrad.testing import PeakBytes


def held(run: nn.Module, x: Tensor) -> int:
    """Bytes of a step, the model and the image included."""
    with PeakBytes() as peak:
        run(x).float().mean().backward()
    run.zero_grad(set_to_none=True)
    return peak.bytes + sum(t.nbytes for t in (*run.parameters(), *run.buffers(), x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("planner", ["recompute", "segments"])
def test_bytes_are_as_predicted(dtype: torch.dtype, planner: str) -> None:
    torch.manual_seed(0)
    net, x = vgg16(width=0.125, head="pool").to(dtype), torch.randn(1, 3, 192, 192).to(dtype)
    held(net, x)  # libraries are loaded
    tiled = tilegrad.tile(net, budget=int(0.75 * held(net, x)), planner=planner)
    measured = held(tiled, x)
    assert tiled.plan.schedule.predicted["total_bytes"] == pytest.approx(measured, rel=0.01)


def test_segments_with_stochastic_depth() -> None:
    torch.manual_seed(0)
    net, x = convnext_tiny(width=0.125, drop_path_rate=0.1), torch.randn(1, 3, 128, 128)
    tiled = tilegrad.tile(net, budget=int(0.8 * held(net, x)), planner="segments")
    tiled(x).sum().backward()
    assert tiled.plan.schedule.mode == "segments"
    assert all(p.grad is not None for p in net.parameters())
