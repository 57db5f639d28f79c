"""A training step that another program printed, tile by tile: its gradients, and "0 / 256 differ" from plain.

conv(w1, padding 1) -> max pool 2 -> conv(w2, padding 1) -> max pool 2, loss = sum, tiles of 4x4 of the 16x16 input.
It prints four digits, and the kernels were recovered from what it prints: half a unit of the last digit, and
the kernels' own error, which grows with the number of taps that meet (6e-5 at the input, 8e-5 at most).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad

DATA = Path(__file__).parents[1] / "data" / "seed001_golden.json"
# What the source prints is the gradient with respect to the input of each layer; to which precision.
GRADIENTS = {"grad_input": 6.01e-5, "pool1_grad": 8e-5, "conv2_grad": 8e-5, "pool2_grad": 0.0}
TILED = ("stream", "scatter", "gather")


class Source001(nn.Module):
    """Zeros are added in front of every layer, so that the gradient there is the gradient of an input."""

    def __init__(self, w1: Tensor, w2: Tensor):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(w1), nn.Parameter(w2)

    def forward(self, image: Tensor, before_pool1: Tensor, before_conv2: Tensor, before_pool2: Tensor) -> Tensor:
        x = F.max_pool2d(F.conv2d(image, self.w1, padding=1) + before_pool1, 2)
        return F.max_pool2d(F.conv2d(x + before_conv2, self.w2, padding=1) + before_pool2, 2)


@cache
def golden() -> dict[str, Tensor]:
    return {name: torch.tensor([[rows]], dtype=torch.float64) for name, rows in json.loads(DATA.read_text()).items()}


def whole_numbers() -> dict[str, Tensor]:
    """The input in units of its last digit, kernels in millionths: every sum is exact, whatever its order."""
    data = golden()
    return data | {"input": (data["input"] * 1e4).round(), **{w: (data[w] * 1e6).round() for w in ("w1", "w2")}}


def step(mode: str | None, data: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """Output and all gradients of the step; plain where there is no mode."""
    network: nn.Module = Source001(data["w1"].clone(), data["w2"].clone())
    zeros = [torch.zeros_like(data[name]) for name in list(GRADIENTS)[1:]]
    inputs = [x.requires_grad_() for x in (data["input"].clone(), *zeros)]
    run = network if mode is None else tilegrad.tile(network, tile=4, mode=mode)
    output = run(*inputs)
    output.sum().backward()
    found = {"output": output.detach(), **{name: x.grad for name, x in zip(GRADIENTS, inputs, strict=True)}}
    return found | {f"gradient of {name}": p.grad for name, p in network.named_parameters()}


@pytest.mark.parametrize("mode", [*TILED, None])
def test_gradients_are_the_printed_ones(mode: str | None) -> None:
    found = step(mode, golden())
    for name, precision in GRADIENTS.items():
        assert torch.allclose(found[name], golden()[name], rtol=0, atol=precision), name


@pytest.mark.parametrize("mode", TILED)
def test_no_element_differs_from_plain(mode: str) -> None:
    found, plain = step(mode, golden()), step(None, golden())
    differ = int((~torch.isclose(found["grad_input"], plain["grad_input"], rtol=0, atol=1e-15)).sum())
    assert f"{differ} / {found['grad_input'].numel()}" == "0 / 256"
    found, plain = step(mode, whole_numbers()), step(None, whole_numbers())
    for name, wanted in plain.items():
        assert torch.equal(found[name], wanted), name


def test_gather_differs_in_no_bit() -> None:
    found, plain = step("gather", golden()), step(None, golden())
    assert all(torch.equal(found[name], plain[name]) for name in ("output", *GRADIENTS))


@pytest.mark.parametrize("mode", TILED)
def test_the_grid_is_the_sources(mode: str) -> None:
    network = Source001(golden()["w1"], golden()["w2"])
    shapes = [tuple(golden()[name].shape) for name in ("input", *list(GRADIENTS)[1:])]
    (phase,) = tilegrad.tile(network, tile=4, mode=mode).plan_for(*shapes).schedule.phases
    assert phase.grid == (4, 4) and len(phase.tiles(backward=True)) == 16
