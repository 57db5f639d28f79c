"""Operators without a local rule, and parameters that live on space: whole where they must be, and exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad
from tilegrad.testing import assert_same_step, integer_module, integer_tensor

every_mode = pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])


class Between(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.a, self.b, self.function = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3), function
        integer_module(self, -1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x)))


EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "circular padding": lambda x: F.pad(x, (2, 1, 3, 2), mode="circular"),
    "circular along columns": lambda x: F.pad(x, (2, 1, 0, 0), mode="circular"),
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll((3, 2), (2, 3)),
    "rows added to columns": lambda x: x[..., :9, :9] + x[..., :9, :9].mT,
    "transposed": lambda x: x.mT,
    "running sum": lambda x: x.cumsum(-1),
    "sorted": lambda x: x.sort(-1).values,
    "concatenated rows": lambda x: torch.cat([x, x.flip(2)], 2),
    "a row": lambda x: x + x[:, :, 3:4],
    "a picked row": lambda x: x.index_select(2, torch.tensor([3, 0, 5, 5])),
    "matrix product": lambda x: x @ x.mT,
    "flattened": lambda x: (x.flatten(2).cumsum(2)).view(x.shape),
    "running maximum": lambda x: x.cummax(2).values,
    "unfolded": lambda x: F.unfold(x, 2, stride=2).view(1, 8, -1, 5)[:, :2],
    "written by index": lambda x: x.index_add(2, torch.tensor([1, 4]), x[:, :, :2]),
    "kept where positive": lambda x: x * (x > 0),
    "largest of all": lambda x: x - x.amax(),
    "written rows": lambda x: _written(x),
}
CLOSE: dict[str, Callable[[Tensor], Tensor]] = {
    "fft": lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2, s=x.shape[-2:]),
    "softmax along columns": lambda x: x.softmax(-1),
    "attention": lambda x: _attended(x),
    "recurrence": lambda x: torch.rnn_tanh(x.flatten(2).mT, *_cells(x))[0].mT.reshape(x.shape),
    "layer norm of the image": lambda x: F.layer_norm(x, x.shape[1:]),
    "grid sample": lambda x: F.grid_sample(x, x[:, :2].movedim(1, -1).tanh(), align_corners=False),
    "determinant": lambda x: x * torch.linalg.det(x[..., :3, :3] + 5 * torch.eye(3, dtype=x.dtype))[..., None, None],
}


def _written(x: Tensor) -> Tensor:
    made = x.clone()
    made[:, :, 2:4] = made[:, :, 5:7] * 2
    made[..., 1] = 3
    return made


def _cells(x: Tensor) -> tuple[Any, ...]:
    return x.new_zeros(1, 1, 2), [x.new_ones(2, 2), x.new_ones(2, 2)], False, 1, 0.0, True, False, True


def _attended(x: Tensor) -> Tensor:
    q = x.flatten(2).mT
    return (F.scaled_dot_product_attention(q, q, q).mT).reshape(x.shape)


@every_mode
@pytest.mark.parametrize("name", EXACT)
def test_exactly(name: str, mode: str) -> None:
    assert_same_step(Between(EXACT[name]), integer_tensor((1, 2, 11, 10)), tile=4, mode=mode)


@every_mode
@pytest.mark.parametrize("name", CLOSE)
def test_closely(name: str, mode: str) -> None:
    step = assert_same_step(
        Between(CLOSE[name]), integer_tensor((1, 2, 11, 10)) / 8, exact=False, tolerance=1e-11, tile=4, mode=mode
    )
    assert all(bool(t.isfinite().all()) for t in step.outputs.values())


class OnSpace(nn.Module):
    """Parameters and buffers for every pixel, row or column, added and multiplied."""

    def __init__(self, *shape: int):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.map, self.scale = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape[-1:]))
        self.register_buffer("mask", torch.empty(shape))
        integer_module(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv((self.conv(x) + self.map) * self.scale * self.mask)


@every_mode
@pytest.mark.parametrize("shape", [(2, 11, 10), (11, 10), (1, 1, 11, 10), (1, 11, 1), (1, 2, 1, 10), (2, 1, 1)])
def test_parameters_that_live_on_space(shape: tuple[int, ...], mode: str) -> None:
    assert_same_step(OnSpace(*shape), integer_tensor((1, 2, 11, 10)), tile=4, mode=mode)
    assert_same_step(OnSpace(*shape), integer_tensor((3, 2, 11, 10)), tile={"n": 2, "w": 3}, mode=mode)


class LocallyConnected(nn.Module):
    """Every pixel has a filter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 2 * 9, 9, 8))
        integer_module(self)

    def forward(self, x: Tensor) -> Tensor:
        windows = x.unfold(2, 3, 1).unfold(3, 3, 1)  # n c h w 3 3
        windows = windows.permute(0, 1, 4, 5, 2, 3).flatten(1, 3)
        return torch.einsum("nkhw,okhw->nohw", windows, self.weight)


@every_mode
def test_a_filter_for_every_pixel(mode: str) -> None:
    assert_same_step(LocallyConnected(), integer_tensor((2, 2, 11, 10)), tile=4, mode=mode)


@every_mode
@pytest.mark.parametrize("head", ["flatten", "pool", "bins", "max", "token"])
def test_heads(head: str, mode: str) -> None:
    heads: dict[str, Any] = {
        "flatten": lambda: nn.Sequential(nn.Flatten(), nn.Linear(2 * 11 * 10, 3)),
        "pool": lambda: nn.Sequential(nn.AvgPool2d((11, 10)), nn.Flatten(), nn.Linear(2, 3)),
        "bins": lambda: nn.Sequential(nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(12, 3)),
        "max": lambda: nn.Sequential(nn.AdaptiveMaxPool2d((4, 3)), nn.Flatten(), nn.Linear(24, 3)),
        "token": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(110, 4), nn.Flatten(), nn.Linear(8, 3)),
    }
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), heads[head]())
    assert_same_step(net.double(), integer_tensor((2, 2, 11, 10)), exact=False, tolerance=1e-12, tile=4, mode=mode)


def test_what_runs_whole_is_told() -> None:
    net = Between(CLOSE["fft"])
    plan = tilegrad.tile(net, tile=4).plan_for((1, 2, 11, 10))
    assert "whole" in str(plan) and "fft_rfft2" in str(plan)
