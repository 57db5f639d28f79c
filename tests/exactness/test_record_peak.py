"""A recording's peak is PeakBytes' to the byte, and recording changes no result: every network, plain and tiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from deep_networks import each
from thorough import crossed
from tilegrad.models import NETWORKS, example_shape
from tilegrad.profile import BlockKind, Profile, check_profile
from tilegrad.recording.record import Recorder, record
from tilegrad.sim.peak import PeakBytes

SIZES = {"unet3d": 16, "wavenet1d": 1200, "unet_valid": 188}


def _network(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    options = {"padding": "same"} if name == "unet3d" else {}
    return NETWORKS[name](width=0.125, **options), torch.randn(example_shape(name, SIZES.get(name, 64)))


def _step(net: nn.Module, run: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)

    def step() -> Tensor:
        optimizer.zero_grad()
        out = run(x)
        out.backward(torch.ones_like(out))
        optimizer.step()
        return out.detach()

    return step


def _results(net: nn.Module, step: Callable[[], Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    out = step()
    return [out, *(p.grad.clone() for p in net.parameters() if p.grad is not None)]


def _summed(profile: Profile) -> int:
    """The peak, by adding up every tick."""
    now = [0] * (profile.ticks + 1)
    for block in profile.blocks:
        if block.owned:
            now[block.start] += block.bytes
            now[block.stop] -= block.bytes
    best = total = 0
    for change in now:
        total += change
        best = max(best, total)
    return best


def _check(net: nn.Module, step: Callable[[], Tensor]) -> Recorder:
    plain = _results(net, step)
    with PeakBytes() as peak, record() as rec:
        found = _results(net, step)
    assert len(plain) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    assert rec.peak_bytes == peak.bytes == _summed(rec.profile)
    check_profile(rec.profile)
    return rec


@pytest.mark.parametrize("name", each(NETWORKS))
def test_plain(name: str) -> None:
    net, x = _network(name)
    step = _step(net, net, x)
    profile = _check(net, step).profile
    with PeakBytes() as alone:
        step()
    with record() as by_itself:
        step()
    assert by_itself.peak_bytes == alone.bytes
    parameters = {n for n, _ in net.named_parameters()}
    weights = {b.name: b for b in profile.blocks if b.kind is BlockKind.WEIGHT}
    assert parameters <= weights.keys()
    assert not any(block.owned or block.start for block in weights.values())
    assert {op.module for op in profile.operators} >= {name.rpartition(".")[0] for name in parameters}
    assert all(op.flops for op in profile.operators if "convolution" in op.type)


@pytest.mark.parametrize("name", crossed(each(NETWORKS)))
def test_tiled(name: str) -> None:
    net, x = _network(name)
    if name in {"mobilenet_v2", "resnet34", "resnet50", "densenet121", "efficientnet_b0"}:
        net.eval()  # each norm in train mode costs a pass over all tiles; others have them too
    tiled = tilegrad.tile(net, tile=SIZES.get(name, 64) // 2, axes="h" if x.ndim == 4 else None)
    profile = _check(net, _step(net, tiled, x)).profile
    convolutions = [op for op in profile.operators if op.name in {"convolution", "convolution_backward"}]
    assert convolutions and all(op.module for op in convolutions)
    assert any(op.attrs.get("recompute") for op in profile.operators)


@pytest.mark.parametrize(("planner", "share"), [("keep", 1.1), ("recompute", 0.8), ("offload", 0.8)])
def test_budgets(planner: str, share: float) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(5)), nn.Tanh()), torch.randn(1, 3, 64, 64)
    with PeakBytes() as plain:
        out = net(x)
        out.backward(torch.ones_like(out))
    there = sum(t.numel() * t.element_size() for t in (x, *net.parameters()))
    tiled = tilegrad.tile(net, budget=int((plain.bytes + there) * share), planner=planner)
    _check(net, _step(net, tiled, x))


def test_a_block_that_is_missing_is_noticed() -> None:
    """Each block that is alive at the peak counts: without any one of them the sum is another."""
    net, x = _network("vgg16")
    with PeakBytes() as peak, record() as rec:
        net(x).sum().backward()
    profile = rec.profile
    tick = profile.facts["peaks"]["cpu"]["tick"]
    alive = [b for b in profile.blocks if b.owned and b.start <= tick < b.stop]
    assert sum(b.bytes for b in alive) == peak.bytes
    for block in alive:
        if block.bytes:
            lacking = replace(profile, blocks=tuple(b for b in profile.blocks if b is not block))
            assert sum(b.bytes for b in lacking.blocks if b.owned and b.start <= tick < b.stop) != peak.bytes
    late = replace(profile, blocks=tuple(replace(b, stop=profile.ticks) for b in profile.blocks))
    assert _summed(late) > peak.bytes
