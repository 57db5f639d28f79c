"""Frames around tiles and parts of tiles: as torch's own, to autograd too, and the layout of memory survives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tilegrad.ops.channels import layout_of
from tilegrad.ops.frame import FEW, cropped, framed, unframed

LAYOUTS = [torch.contiguous_format, torch.channels_last]
FRAMES = [(1, 2, 3, 0), (0, 0, 2, 2), (5, 0, 0, 0), (0, 0, 0, 0)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("shape", [(2, 3, 9, 8), (1, 4, 160, 130), (1, 1, 300, 300)])
def test_as_torchs_own(shape: tuple[int, ...], frame: tuple[int, ...], layout: torch.memory_format) -> None:
    x = torch.empty(shape, dtype=torch.float64, memory_format=layout)
    x.copy_(torch.randint(-4, 5, shape))
    wide = framed(x, frame)
    assert torch.equal(wide, F.pad(x, frame))
    assert layout_of(wide) == layout_of(x) == layout
    assert torch.equal(unframed(wide, frame), x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("side", [12, FEW // 64])
def test_the_gradient_of_a_part_lies_as_the_part_does(
    side: int, frame: tuple[int, ...], layout: torch.memory_format
) -> None:
    x = torch.randn(1, 4, side, 21, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    last = x.shape[-1] - frame[1], x.shape[-2] - frame[3]
    theirs = x[..., frame[2] : last[1], frame[0] : last[0]]
    ours = cropped(x, frame)
    assert torch.equal(ours, theirs)
    given = torch.randn_like(ours)
    assert given.is_contiguous(memory_format=layout)
    (mine,) = torch.autograd.grad(ours, x, given)
    assert torch.equal(mine, torch.autograd.grad(theirs, x, given)[0])
    assert mine.is_contiguous(memory_format=layout)


def test_without_gradients_a_part_is_a_view() -> None:
    x = torch.randn(1, 2, 6, 6)
    assert cropped(x, (1, 1, 2, 0)).data_ptr() == x[..., 2:, 1:-1].data_ptr()
