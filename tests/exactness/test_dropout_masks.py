"""Dropout draws by place: the same mask for any tiling, mode and recompute, from torch's own seed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.testing import StepResult, assert_same, integer_module, integer_tensor, run_step

TILINGS: list[dict[str, Any]] = [
    {"tile": tile, "mode": mode, "halos": halos}
    for mode, tile, halos in [
        ("stream", 3, "device"), ("stream", 5, "disk"), ("stream", {"w": 4}, "host"), ("stream", 100, "device"),
        ("scatter", 4, "device"), ("gather", 4, "device"), ("gather", {"n": 1, "h": 6}, "device"),
    ]
]  # fmt: skip


def make_net(kind: type[nn.Module] = nn.Dropout, p: float = 0.5) -> nn.Module:
    return integer_module(
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), kind(p), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2), kind(p))
    )


def seeded(net: nn.Module, seed: int, **options: Any) -> StepResult:
    torch.manual_seed(seed)
    return run_step(tilegrad.tile(copy.deepcopy(net), **options), [integer_tensor((2, 2, 13, 11))])


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_any_tiling_draws_the_same(kind: type[nn.Module]) -> None:
    net = make_net(kind)
    exact = kind in (
        nn.Dropout,
        nn.Dropout2d,
    )  # of one half: doubled or gone. The others scale by what is no power of 2
    first = seeded(net, 7, **TILINGS[0])
    for options in TILINGS[1:]:
        assert_same(seeded(net, 7, **options), first, exact=exact, tolerance=1e-12, note=str(options))


def test_every_call_draws_anew_and_seeds_repeat() -> None:
    tiled = tilegrad.tile(make_net(), tile=4)
    x = integer_tensor((1, 2, 13, 11))
    torch.manual_seed(3)
    first, second = tiled(x), tiled(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(tiled(x), first) and torch.equal(tiled(x), second)


def test_layers_and_samples_draw_apart() -> None:
    twice = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    out = tilegrad.tile(twice, tile=16)(torch.ones(2, 1, 64, 64))
    # if both layers had one mask, half would be left, four times as large
    assert abs(float((out > 0).float().mean()) - 0.25) < 0.03
    assert not torch.equal(out[0], out[1])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_statistics(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1, 4, 128, 128, requires_grad=True)
    out = tilegrad.tile(nn.Sequential(nn.Dropout(p), nn.Identity()), tile=48)(x)
    kept = out != 0
    deviation = (p * (1 - p) / out.numel()) ** 0.5
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * deviation
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())  # recomputed with the very same mask


def test_off_in_evaluation() -> None:
    net = make_net().eval()
    x = integer_tensor((1, 2, 13, 11))
    assert torch.equal(tilegrad.tile(net, tile=4)(x), net(x))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_all_and_nothing(p: float) -> None:
    net = make_net(p=p)
    x = integer_tensor((1, 2, 13, 11))
    assert_same(run_step(tilegrad.tile(copy.deepcopy(net), tile=4), [x]), run_step(copy.deepcopy(net), [x]))


def test_the_global_stream_moves_on_by_one_draw_only() -> None:
    def after(tile: int) -> Tensor:
        torch.manual_seed(5)
        tilegrad.tile(make_net(), tile=tile)(integer_tensor((1, 2, 13, 11)))
        return torch.rand(3)

    assert torch.equal(after(3), after(100))
