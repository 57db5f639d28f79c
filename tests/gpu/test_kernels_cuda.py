"""On a CUDA device: kernels of cuDNN give what their nodes give, and are no further from float64 than plain is."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.models import resnet18
from tilegrad.ops.conv import channel_sums

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def single_precision_is_single(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that differ between plain and tiles may differ in whether they take TF32 units."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "2-D": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.ReLU()), (64, 48)),
    "stride": (lambda: nn.Sequential(nn.Conv2d(8, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 8, 1)), (65, 47)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3, groups=4, bias=False), nn.ReLU()), (40, 40)),
    "dilated": (lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.ReLU(), nn.MaxPool2d(2)), (64, 64)),
    "3-D": (lambda: nn.Sequential(nn.Conv3d(8, 8, 3, padding=1), nn.ReLU()), (16, 24, 20)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(8, 8, 2, 2), nn.ReLU(), nn.Conv2d(8, 8, 3)), (37, 41)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()), (64, 48)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3, bias=False), nn.GroupNorm(4, 16), nn.ReLU()), (64, 48)),
    "norm 3-D": (lambda: nn.Sequential(nn.Conv3d(8, 8, 3, bias=False), nn.BatchNorm3d(8), nn.ReLU()), (16, 24, 20)),
    "alone": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 8, 3)), (64, 48)),
}


def gradients(run: nn.Module, owner: nn.Module, x: Tensor) -> list[Tensor]:
    owner.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    out = run(x)
    out.backward(torch.linspace(-1, 1, out.numel(), device=x.device).view_as(out).to(out.dtype))
    return [out.detach(), x.grad, *(p.grad for p in owner.parameters())]  # type: ignore[list-item]


def gap(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


def check(net: nn.Module, x: Tensor, tile: int, floor: float) -> None:
    exact = gradients(double := copy.deepcopy(net).double(), double, x.double())
    plain = gap(gradients(net, net, x), exact)
    tiled = gap(gradients(tilegrad.tile(net, tile=tile, cuda_graphs=False), net, x), exact)
    assert all(ours <= 1.5 * theirs + floor for ours, theirs in zip(tiled, plain, strict=True)), (tiled, plain)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_as_accurate_as_plain(case: str, dtype: torch.dtype, last: bool) -> None:
    torch.manual_seed(0)
    make, size = CASES[case]
    layout = (torch.channels_last if len(size) == 2 else torch.channels_last_3d) if last else torch.contiguous_format
    x = torch.randn(2, 8, *size, device="cuda").to(dtype).to(memory_format=layout)
    net = make().cuda().to(dtype).to(memory_format=layout)  # type: ignore[call-overload]
    check(net, x, 20, 1e-5 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_norms_are_as_accurate_as_plain(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = resnet18(width=0.25, classes=4).cuda()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(2, 3, 64, 64, device="cuda"))
    net = net.eval().to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(1, 3, 128, 96, device="cuda").to(dtype).to(memory_format=torch.channels_last)
    check(net, x, 40, 1e-5 if dtype == torch.float32 else 1e-2)


def test_sums_of_channels_that_lie_together() -> None:
    grad = torch.randint(-4, 5, (2, 6, 33, 17), device="cuda").double().to(memory_format=torch.channels_last)
    assert torch.equal(channel_sums(grad), grad.sum((0, 2, 3)))
