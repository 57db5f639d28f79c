"""Layers whose weights live on space, against their definition and autograd's own derivatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tilegrad.errors import InputError
from tilegrad.models.local_net import LocalNet, evaluate
from tilegrad.nn import LocallyConnected2d, ScalarGain, SpatialLinear
from tilegrad.rects import total, training_step
from tilegrad.region import Box


def defined(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """One product for every place, written out."""
    kh, kw, oh, ow = weight.shape[-4:]
    rows = []
    for i in range(oh):
        row = []
        for j in range(ow):
            window = x[:, :, stride * i : stride * i + kh, stride * j : stride * j + kw]
            row.append(torch.einsum("ncuv,ocuv->no", window, weight[:, 0, 0, :, :, :, i, j]))
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_every_place_has_its_own_kernel(stride: int) -> None:
    torch.manual_seed(0)
    layer = LocallyConnected2d(3, 4, (3, 2), (8, 9), stride=stride, dtype=torch.float64)
    x = torch.randn(2, 3, 8, 9, dtype=torch.float64, requires_grad=True)
    found, wanted = layer(x), defined(x, layer.weight, stride)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-14)
    seed = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad(found, (x, layer.weight), seed), torch.autograd.grad(wanted, (x, layer.weight), seed),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_gradients_are_numerical_ones() -> None:
    torch.manual_seed(0)
    layer = LocallyConnected2d(2, 2, 2, (3, 4), dtype=torch.float64)
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: torch.ops.tilegrad.locally_connected2d(x, w, 1), (x, layer.weight))


@pytest.mark.parametrize("form", ["a*(x+b)", "a*x+b"])
def test_gain(form: str) -> None:
    gain = ScalarGain((3, 4, 5), form, dtype=torch.float64)
    with torch.no_grad():
        gain.a.fill_(2.0)
        gain.b.copy_(torch.arange(60.0).view(1, 3, 4, 5))
    x = torch.ones(2, 3, 4, 5, dtype=torch.float64)
    wanted = 2 * (x + gain.b) if form == "a*(x+b)" else 2 * x + gain.b
    assert torch.equal(gain(x), wanted)


def test_the_classifier_is_a_linear_layer_on_the_flattened_image() -> None:
    torch.manual_seed(0)
    layer = SpatialLinear((3, 4, 5), 7, dtype=torch.float64)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    wanted = F.linear(x.flatten(1), layer.weight.flatten(1))
    torch.testing.assert_close(layer(x), wanted)
    seed = torch.randn_like(wanted)
    for mine, theirs in zip(
        torch.autograd.grad(layer(x), (x, layer.weight), seed), torch.autograd.grad(wanted, (x, layer.weight), seed),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("make", [lambda: LocallyConnected2d(2, 3, 3, (7, 8)), lambda: SpatialLinear((2, 5, 6), 4)])
def test_a_box_is_drawn_as_the_whole_is(make: object) -> None:
    layer = make()  # type: ignore[operator]
    whole = layer.weight.detach()
    box = Box((*Box.full(whole.shape)[:-2], (1, 3), (2, 4)))
    assert torch.equal(layer.draw_box("weight", box, torch.device("cpu")), whole[box.slices])
    assert 0 < whole.abs().max() <= layer.bound("weight")


def test_the_network_of_the_drawing() -> None:
    net = LocalNet(device="meta")
    assert sum(p.numel() for p in net.parameters()) == 293_629_250
    (graph,) = training_step(batch=256, image=(41, 41), channels=1, layers=[(9, 64), (7, 64)], classes=3034)
    assert total(graph)["param_total"] == 293_629_250
    assert total(graph)["flops_step"] == 447_945_375_744
    assert net(torch.empty(256, 1, 41, 41, device="meta")).shape == (256, 3034)


def test_evaluation() -> None:
    logits = torch.tensor([[3.0, 1, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5, 9], [0, 0, 0, 0, 0, 0, 1]])
    found = evaluate(logits, torch.tensor([0, 5, 6]))
    assert (found["right"], found["right_of_five"], found["count"]) == (2, 3, 3)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, torch.tensor([0, 5, 6]), reduction="sum")))


def test_bad_input() -> None:
    with pytest.raises(InputError, match="does not fit"):
        LocallyConnected2d(1, 1, 9, (8, 8))
    with pytest.raises(InputError, match="not a gain"):
        ScalarGain((1, 2, 3), "a+b")
