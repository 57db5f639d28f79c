"""On a CUDA device: the budget is kept as the allocator counts, and a step that runs out of memory is run again."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.models import resnet18, unet, vgg16

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    gc.collect()
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def layers(norm: bool) -> nn.Module:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(16) if norm else nn.Identity() for _ in range(8)]
    convs = [nn.Conv2d(16, 16, 3, padding=1, bias=not norm) for _ in norms]  # a norm takes a bias away
    return nn.Sequential(*(nn.Sequential(*block, nn.ReLU()) for block in zip(convs, norms, strict=True))).cuda()


def step(net: nn.Module, x: Tensor, given: Tensor | None = None) -> Tensor:
    out: Tensor = net(x)
    out.backward(torch.ones_like(out) if given is None else given)
    return out.detach()


@pytest.mark.parametrize("norm", [False, True])
def test_out_of_memory_is_no_end(norm: bool, caplog: pytest.LogCaptureFixture) -> None:
    plain = layers(norm)
    x = torch.randn(1, 16, 1024, 1024, device="cuda")
    calm, full = (tilegrad.tile(copy.deepcopy(plain), tile=512, cuda_graphs=False) for _ in range(2))
    given = torch.randn_like(x)
    expected = step(plain, x, given)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    step(calm, x, given)
    held = torch.cuda.max_memory_reserved() - before
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved() + 0.6 * held
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    with caplog.at_level(logging.WARNING, "tilegrad"):
        found = step(full, x, given)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("planned again" in record.message for record in caplog.records)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)  # TF32
    for mine, other in zip(full.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-2, atol=1e-2 * float(other.grad.abs().max()))
    for mine, other in zip(full.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("share", [0.25, 0.6])
@pytest.mark.parametrize("make", [lambda: vgg16(head="pool"), lambda: unet(padding="same"), resnet18])
def test_what_the_allocator_holds_is_within_the_budget(make: Callable[[], nn.Module], share: float) -> None:
    torch.manual_seed(0)
    net = make().cuda().bfloat16().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(1, 1 if "UNet" in str(type(net)) else 3, 2048, 2048, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last)
    torch.cuda.reset_peak_memory_stats()
    step(net, x)
    plain = torch.cuda.max_memory_allocated()
    net.zero_grad()
    torch.cuda.empty_cache()
    mine = sum(t.numel() * t.element_size() for t in (x, *net.parameters(), *net.buffers()))
    others = torch.cuda.memory_reserved() - mine  # workspaces of plain's libraries
    budget = int(share * plain)
    tiled = tilegrad.tile(net, budget=budget)
    for _ in range(5):  # looks, plans again, and is recorded
        step(tiled, x)
        net.zero_grad()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step(tiled, x)
        net.zero_grad()
    held, need = torch.cuda.max_memory_reserved() - others, tiled.plan.schedule.predicted["total_bytes"]
    assert held <= budget + (32 << 20), f"{held / budget:.3f} of the budget; {need / budget:.3f} predicted"
