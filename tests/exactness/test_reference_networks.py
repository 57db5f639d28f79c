"""The reference networks, narrow and at odd sizes: a step of training equal to plain torch's, in every mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

import tilegrad
from thorough import crossed
from tilegrad.models import NETWORKS, SegmentationLoss, example_shape, unet, vgg16, wavenet1d
from tilegrad.models.layers import DropPath
from tilegrad.models.resnet import BasicBlock
from tilegrad.testing import StepResult, assert_same, assert_same_step, integer_module, integer_tensor, run_step
from tilegrad.testing.exact import size_of

MODES = ("stream", "scatter", "gather")
# Keyword arguments of a small version, an odd size, a tile that does not divide it.
SMALL: dict[str, tuple[dict[str, Any], int, int]] = {
    "vgg16": ({"width": 1 / 16}, 37, 16),
    "vgg16_bn": ({"width": 1 / 16}, 37, 16),
    "darknet19": ({"width": 1 / 16}, 69, 24),
    "resnet18": ({"width": 1 / 16}, 45, 16),
    "resnet34": ({"width": 1 / 16}, 45, 20),
    "resnet50": ({"width": 1 / 16}, 45, 26),
    "unet": ({"width": 1 / 16, "depth": 3}, 29, 10),
    "unet_valid": ({"base": 4, "depth": 2}, 47, 16),
    "densenet121": ({"width": 1 / 8}, 65, 40),
    "convnext_tiny": ({"width": 1 / 24}, 39, 16),
    "mobilenet_v2": ({"width": 1 / 8}, 65, 40),
    "efficientnet_b0": ({"width": 1 / 8}, 65, 40),
    "deeplab": ({"width": 1 / 16}, 37, 16),
    "unet3d": ({"width": 1 / 8, "padding": "same"}, 17, 10),
    "wavenet1d": ({"width": 1 / 16, "layers": 3, "stacks": 2}, 61, 16),
}


def small(name: str, train: bool) -> nn.Module:
    torch.manual_seed(0)
    return lively(NETWORKS[name](classes=3, **SMALL[name][0])).double().train(train)


def lively(net: nn.Module) -> nn.Module:
    """Weights with which gradients reach the first layer, statistics that are not 0 and 1, and no dropout."""
    for module in net.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            for each in (module.weight, module.running_var):
                nn.init.uniform_(each, 0.5, 1.5)
            for each in (module.bias, module.running_mean):
                nn.init.normal_(each, 0, 0.1)
        elif isinstance(weight := getattr(module, "weight", None), Tensor) and weight.dim() > 1:
            nn.init.kaiming_normal_(weight)
        if isinstance(scale := getattr(module, "scale", None), nn.Parameter):  # ConvNeXt's layer scale
            nn.init.ones_(scale)
    return net


def image(name: str, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(example_shape(name, SMALL[name][1]), generator=made, dtype=torch.float64)


def assert_lively(step: StepResult) -> None:
    """A comparison with numbers that are all but zero would say nothing."""
    sizes = sorted(map(size_of, step.gradients.values()))
    assert sizes[len(sizes) // 4] > 1e-4 * sizes[-1]


@pytest.mark.parametrize(("name", "train", "mode"), crossed(SMALL, (True, False), MODES))
def test_a_step_is_plains(name: str, train: bool, mode: str) -> None:
    # float64, a few hundred roundings deep, through norms over as few as nine elements
    options: dict[str, Any] = {"exact": False, "tolerance": 1e-10, "tile": SMALL[name][2], "mode": mode}
    assert_lively(assert_same_step(small(name, train), image(name), **options))


def test_every_network_is_here() -> None:
    assert SMALL.keys() == NETWORKS.keys()


# Integers: no bit may differ


def whole_wavenet() -> nn.Module:
    """A WaveNet whose gates are clamped, not squashed."""
    net = wavenet1d(classes=3, residual=4, skip=4, layers=3, stacks=1)
    for gate in net.gates:
        gate.forward = partial(_clamped, gate.conv)  # type: ignore[method-assign]
    return net


def _clamped(conv: nn.Module, x: Tensor) -> Tensor:
    filtered, gate = conv(x).chunk(2, dim=1)
    return filtered.clamp(-4, 4) * gate.clamp(-1, 2)


EXACT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "vgg16": (lambda: vgg16(width=1 / 16, head=None), (1, 3, 45, 37), 16),
    "unet": (lambda: unet(base=3, depth=2), (2, 1, 19, 26), 7),
    "unet, valid": (lambda: unet("valid", base=3, depth=2), (1, 1, 47, 46), 13),
    "unet, bilinear": (lambda: unet(base=4, depth=1, up="bilinear"), (1, 1, 13, 11), 5),
    "wavenet1d": (whole_wavenet, (2, 1, 61), 9),
}


def few_taps(net: nn.Module, taps: int = 4) -> nn.Module:
    """Whole numbers from -1 to 2, about `taps` of them in each filter: all sums stay far below 2**53."""
    integer_module(net, -1, 2)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter *= torch.rand(parameter.shape, generator=generator) < taps / parameter[0].numel()
    return net


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EXACT)
def test_whole_numbers_are_equal(name: str, mode: str) -> None:
    make, shape, tile = EXACT[name]
    step = assert_same_step(few_taps(make()), integer_tensor(shape), exact=True, tile=tile, mode=mode)
    sizes = [size_of(t) for t in (*step.outputs.values(), *step.gradients.values())]
    assert max(sizes) < 2**45 and sum(size > 0 for size in sizes) > 0.8 * len(sizes)


# Batch norm


@pytest.mark.parametrize("mode", MODES)
def test_running_statistics_are_updated_once(mode: str) -> None:
    net = small("resnet18", train=True)
    plain, tiled = copy.deepcopy(net), tilegrad.tile(copy.deepcopy(net), tile=16, mode=mode)
    for seed in (0, 1):
        wanted, found = run_step(plain, [image("resnet18", seed)]), run_step(tiled, [image("resnet18", seed)])
        assert_same(found, wanted, exact=False, tolerance=1e-10)
    counts = [b for name, b in tiled.named_buffers() if name.endswith("num_batches_tracked")]
    assert counts and all(int(count) == 2 for count in counts)
    tiled.eval()
    before = [b.clone() for b in tiled.buffers()]
    tiled(image("resnet18"))
    assert all(torch.equal(a, b) for a, b in zip(before, tiled.buffers(), strict=True))


def test_statistics_are_updated_without_gradients_too() -> None:
    net = small("resnet18", train=True)
    plain, tiled = copy.deepcopy(net), tilegrad.tile(net, tile=16)
    with torch.no_grad():
        plain(image("resnet18"))
        tiled(image("resnet18"))
    for wanted, found in zip(plain.buffers(), tiled.buffers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), BasicBlock(4, 4), BasicBlock(4, 6, 2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(x).mean((2, 3))), y)


@pytest.mark.parametrize("mode", MODES)
def test_twenty_steps_of_training(mode: str) -> None:
    torch.manual_seed(0)
    net = Residual().double()
    x, y = torch.randn(20, 2, 2, 13, 11, dtype=torch.float64), torch.randint(3, (20, 2))
    plain, other = copy.deepcopy(net), copy.deepcopy(net)
    tiled = tilegrad.tile(other, tile=5, mode=mode)
    losses = {}
    for run, owner in ((plain, plain), (tiled, other)):
        optimizer = torch.optim.SGD(run.parameters(), lr=0.05, momentum=0.9)
        losses[owner] = []
        for image_, target in zip(x, y, strict=True):
            optimizer.zero_grad()
            loss = run(image_, target)
            loss.backward()
            optimizer.step()
            losses[owner].append(float(loss.detach()))
    # rounding grows from step to step: 1e-9 after twenty
    assert losses[other] == pytest.approx(losses[plain], rel=1e-9)
    assert losses[plain][-1] != losses[plain][0]
    for name, wanted in plain.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], wanted, rtol=1e-9, atol=1e-9)


# Stochastic depth


def seeded(net: nn.Module, x: Tensor, seed: int, **options: Any) -> StepResult:
    torch.manual_seed(seed)
    return run_step(tilegrad.tile(copy.deepcopy(net), **options), [x])


@pytest.mark.parametrize(
    ("name", "size", "others"),
    [
        ("convnext_tiny", 39, [{"tile": 30}, {"tile": 16, "mode": "scatter"}]),
        ("efficientnet_b0", 37, [{"tile": 24, "mode": "gather"}]),
    ],
)
def test_stochastic_depth_draws_by_sample(name: str, size: int, others: list[dict[str, Any]]) -> None:
    """Plain draws other masks, so tiles are measured against tiles: any size, mode and recompute, one seed."""
    net = small(name, train=True)
    paths = [module for module in net.modules() if isinstance(module, DropPath)]
    for path in paths:
        path.p = 0.3
    x, tiled = image(name)[..., :size, :size].expand(4, -1, -1, -1), tilegrad.tile(copy.deepcopy(net), tile=16)
    torch.manual_seed(7)
    first = run_step(tiled, [x])
    assert all(t.isfinite().all() for t in (*first.outputs.values(), *first.gradients.values()) if t is not None)
    output = first.outputs["output 0"]
    assert any(not torch.allclose(one, output[0]) for one in output[1:])  # alike, but for their masks
    for options in others:
        assert_same(seeded(net, x, 7, **options), first, exact=False, tolerance=1e-10, note=str(options))
    torch.manual_seed(8)
    with pytest.raises(AssertionError, match="output 0"):
        assert_same(run_step(tiled, [x]), first, exact=False)


def test_stochastic_depth_as_published() -> None:
    torch.manual_seed(0)
    net = NETWORKS["efficientnet_b0"](classes=3, width=1 / 8).double().train()
    x = image("efficientnet_b0")[..., :37, :33].expand(2, -1, -1, -1)
    first = seeded(net, x, 3, tile=20)
    assert_same(seeded(net, x, 3, tile=20), first)
    assert_same(seeded(net, x, 3, tile=14), first, exact=False, tolerance=1e-10)
    assert all(t is not None and t.isfinite().all() for t in first.gradients.values())


# Losses inside


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["unet", "unet_valid"])
def test_a_loss_over_every_pixel(name: str, mode: str) -> None:
    net = SegmentationLoss(small(name, train=True), ignore_index=2)
    mask = torch.randint(3, (1, *image(name).shape[2:]), generator=torch.Generator().manual_seed(0))
    assert_same_step(net, [image(name), mask], exact=False, tile=SMALL[name][2], mode=mode)
