"""On a CUDA device: kernels of cuDNN give what their nodes give, and are no further from float64 than plain is."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad
from tilegrad.kernels.triton import works_on
from tilegrad.models import resnet18
from tilegrad.ops.conv import channel_sums

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def single_precision_is_single(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that differ between plain and tiles may differ in whether they take TF32 units."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def depthwise(channels: int, size: int | tuple[int, int], **options: object) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, size, groups=channels, **options)  # type: ignore[arg-type]


class Pixels(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.look = depthwise(channels, 7, padding=3)
        self.mix = nn.Sequential(
            nn.LayerNorm(channels), nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
        )
        self.scale = nn.Parameter(torch.linspace(-1, 1, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.scale * self.mix(self.look(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


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
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(8, 40, 1), depthwise(40, 7, padding=3), depthwise(40, 3)), (37, 50)),
    "depthwise dilated": (lambda: nn.Sequential(depthwise(8, 3, padding=2, dilation=2), nn.ReLU()), (31, 29)),
    "depthwise oblong": (lambda: nn.Sequential(depthwise(8, (1, 9), padding=(0, 4)), depthwise(8, (5, 2))), (21, 44)),
    "pixels": (lambda: nn.Sequential(Pixels(8), Pixels(8)), (40, 33)),
    "pools": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2)), (62, 50)),
    "few classes": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 3, 1, bias=False)), (40, 48)),
    "few, biased": (lambda: nn.Sequential(nn.Conv2d(8, 40, 1), nn.GELU(), nn.Conv2d(40, 2, 1)), (37, 50)),
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])  # what our kernel is for
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("window", [(2, 2), (3, 2, 1), (3, 1, 1), (2, 3), (3, 2, 1, 2), (5, 2, 2)])
def test_pools_are_torchs(window: tuple[int, ...], layout: torch.memory_format, dtype: torch.dtype) -> None:
    """Of whole numbers, of which several of a window are the largest, and some are none. As torch does it on a CPU: of
    windows without any number its kernel for channels that lie together gives the gradient to another element."""
    image = torch.randint(-3, 4, (2, 12, 61, 50), device="cuda").to(dtype).contiguous(memory_format=layout)
    image[0, 0, 3:6, 4:7], image[1, 1, 20:29, 5:40] = torch.nan, -torch.inf
    net = nn.MaxPool2d(*window)
    runs = [net, *(tilegrad.tile(net, cuda_graphs=False, **how) for how in ({"tile": {"h": 16}}, {"planner": "keep"}))]
    found = []
    for run, like in zip(runs, (image.cpu().double(), image, image), strict=True):
        x = like.clone().requires_grad_()
        out = run(x)
        out.backward((torch.arange(out.numel()).remainder(7) - 3).to(x).view_as(out))
        assert x.grad is not None and out.is_cuda == x.is_cuda
        found.append((out.detach().cpu().double(), x.grad.cpu().double()))
    for ours in found[1:]:
        for one, other in zip(ours, found[0], strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "kernel", "pads", "dilation"),
    [
        ((1, 40, 9, 20), (7, 7), (3, 3, 0, 3), (1, 1)),
        ((2, 96, 33, 70), (7, 7), (3, 3, 3, 3), (1, 1)),
        ((1, 70, 6, 19), (3, 5), (0, 0, 2, 1), (2, 1)),
        ((1, 4, 17, 8), (5, 5), (0, 2, 3, 2), (3, 2)),
        ((1, 33, 5, 5), (1, 1), (0, 0, 0, 0), (1, 1)),
    ],
    ids=str,
)
def test_depthwise_convolutions_are_exact(
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    pads: tuple[int, int, int, int],  # above, below, left, right
    dilation: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    """Of small integers, whose sums half precision can hold."""
    from tilegrad.kernels.triton.depthwise import convolve, of_image, of_weight

    torch.manual_seed(0)
    above, below, left, right = pads
    x, weight, bias = (
        torch.randint(-1, 2, size, device="cuda").double().requires_grad_()
        for size in (shape, (shape[1], 1, *kernel), shape[1:2])
    )
    exact = F.conv2d(F.pad(x, (left, right, above, below)), weight, bias, dilation=dilation, groups=shape[1])
    grad = torch.randint(-1, 2, exact.shape, device="cuda").double()
    exact.backward(grad)
    low = [t.detach().to(dtype) for t in (x, weight, bias)]
    image, back = (t.to(dtype).to(memory_format=torch.channels_last) for t in (low[0], grad))
    how = (above, left), dilation
    assert torch.equal(convolve(image, low[1], low[2], exact.shape[2:], *how).double(), exact)
    assert torch.equal(of_image(back, low[1], shape[2:], *how).double(), x.grad)
    assert torch.equal(of_weight(back, image, kernel, *how).double(), weight.grad)


def test_they_run_here() -> None:
    """Where Triton cannot build its kernels torch's are taken, and the tests above would show nothing."""
    assert works_on(torch.device("cuda"))
