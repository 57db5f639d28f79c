"""Peak bytes: counted on CPU, predicted without data, kept under a budget."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tilegrad
from deep_networks import each
from thorough import crossed
from tilegrad.errors import BudgetError
from tilegrad.models import NETWORKS, example_shape, resnet18, vgg16
from tilegrad.sim.peak import PeakBytes
from tilegrad.sim.plain import plain_bytes


def test_storages_are_counted_once_and_until_they_die() -> None:
    x = torch.zeros(1000)
    with PeakBytes() as peak:
        a = x + 1
        b = a[10:]  # a view costs nothing
        del a
        c = torch.ones(500)
        del b
        d = c.double()
        del c, d
    assert peak.bytes == 4000 + 2000 or peak.bytes == 2000 + 4000


def test_autograd_is_counted() -> None:
    x = torch.zeros(1000, requires_grad=True)
    with PeakBytes() as peak:
        (x.exp() * 2).sum().backward()
    assert peak.bytes >= 3 * 4000  # exp's result is kept, and its gradient and x's are made


def _measured(net: nn.Module, run: nn.Module, x: torch.Tensor) -> int:
    net.zero_grad(set_to_none=True)
    with PeakBytes() as peak:
        out = run(x)
        out.backward(torch.ones_like(out))
    return peak.bytes + sum(t.numel() * t.element_size() for t in (x, *net.parameters(), *net.buffers()))


def _network(name: str) -> tuple[nn.Module, torch.Tensor, int]:
    options = {"padding": "same"} if name == "unet3d" else {}
    net = NETWORKS[name](width=0.125, **options)
    # densenet121: the statistics of its 121 norms, which no prediction counts, are two percent of a step on 128
    size = {"unet3d": 24, "wavenet1d": 4000, "unet_valid": 220, "densenet121": 192}.get(name, 128)
    return net, torch.randn(example_shape(name, size)), size


@pytest.mark.parametrize(("name", "mode"), crossed(each(NETWORKS), ("stream", "scatter")))
def test_the_predicted_peak_is_the_measured_one(name: str, mode: str) -> None:
    net, x, size = _network(name)
    tiled = tilegrad.tile(net, tile=size // 3, mode=mode)
    predicted = tiled.plan_for(x).schedule.predicted["total_bytes"]
    measured = _measured(net, tiled, x)
    assert 0.98 * measured <= predicted <= 1.12 * measured


@pytest.mark.parametrize("name", each(NETWORKS))
def test_so_is_that_of_plain(name: str) -> None:
    net, x, _ = _network(name)
    assert _measured(net, net, x) == pytest.approx(
        tilegrad.tile(net, mode="none").plan_for(x).schedule.predicted["total_bytes"], rel=0.02
    )


@pytest.mark.parametrize(("make", "halos"), [(vgg16, "device"), (resnet18, "disk")])
def test_a_budget_is_kept(make: Callable[..., nn.Module], halos: str) -> None:
    net = make(width=0.125, classes=4, **({"head": "pool"} if make is vgg16 else {}))
    x = torch.randn(1, 3, 320, 320)
    plain = _measured(net, net, x)
    for share in (0.7, 0.5):
        budget = int(plain * share)
        tiled = tilegrad.tile(net, budget=budget, halos=halos, mode="stream")
        tiled.plan_for(x)
        assert _measured(net, tiled, x) <= budget
        assert tiled.plan.schedule.mode == "stream"


def test_enough_budget_is_plain_pytorch() -> None:
    tiled = tilegrad.tile(resnet18(width=0.125), budget="8GiB")
    assert "plain PyTorch" in str(tiled.plan_for((1, 3, 64, 64)))


def test_too_small_a_budget_says_what_would_do() -> None:
    net = vgg16(width=0.125, head="pool")
    with pytest.raises(BudgetError, match=r"the smallest plan found needs .*MiB") as error:
        tilegrad.tile(net, budget="1MiB").plan_for((1, 3, 256, 256))
    assert "backward" in str(error.value) or "forward" in str(error.value)
    wanted = str(error.value).split('budget="')[1].split('"')[0]
    tilegrad.tile(net, budget=wanted).plan_for((1, 3, 256, 256))


def test_vgg16_at_2048_needs_a_small_part_of_plain() -> None:
    """Full width, tiles of 256: at most 8 % of plain's peak and 3 % in halos; on disk the peak does not grow."""
    with torch.device("meta"):
        net = vgg16(head="pool")
    parameters = sum(p.numel() * 4 for p in net.parameters())
    plain = plain_bytes(net, ((1, 3, 2048, 2048),), {}, train=True) - parameters
    found = tilegrad.tile(net, tile=256).plan_for((1, 3, 2048, 2048)).schedule.predicted
    assert found["peak_bytes"] <= 0.08 * plain
    assert found["halo_bytes"] <= 0.03 * plain
    on_disk = [
        tilegrad.tile(net, tile=256, halos="disk").plan_for((1, 3, n, n)).schedule.predicted["peak_bytes"]
        for n in (1024, 4096)
    ]
    assert on_disk[1] <= 1.1 * on_disk[0]


def test_a_loss_inside_the_model_leaves_no_map_whole() -> None:
    """A dense predictor with its mask as second input: nothing of the image's size is ever allocated."""
    from tilegrad.models import SegmentationLoss, unet

    net = SegmentationLoss(unet(width=0.125, in_channels=1, depth=2))
    image, mask = torch.randn(1, 1, 256, 256), torch.randint(0, 2, (1, 256, 256))
    tiled = tilegrad.tile(net, tile=32)
    tiled.plan_for(image, mask)
    largest = _largest_tensor(lambda: tiled(image, mask).backward())
    assert largest < 256 * 256 * 4


def _largest_tensor(work: object) -> int:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        bytes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result._base is None and not func.is_view:
                self.bytes = max(self.bytes, result.numel() * result.element_size())
            return result

    with Largest() as mode:
        work()  # type: ignore[operator]
    return mode.bytes
