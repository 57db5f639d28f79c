"""Recording on a CUDA device: device times, the thread of backward, and the allocator's own peak."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tilegrad
from tilegrad.ir import Phase
from tilegrad.models import resnet18, vgg16
from tilegrad.profile import Profile, check_profile
from tilegrad.recording.record import record
from tilegrad.sim.peak import PeakBytes

pytestmark = pytest.mark.gpu

ROUND = 512  # the allocator's


def _rounded_peak(profile: Profile) -> int:
    now = [0] * (profile.ticks + 1)
    for block in profile.blocks:
        if block.owned and block.device == "cuda:0":
            size = -(-block.bytes // ROUND) * ROUND
            now[block.start] += size
            now[block.stop] -= size
    best = total = 0
    for change in now:
        total += change
        best = max(best, total)
    return best


def _step(run: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = run(x)
    out.backward(torch.ones_like(out))
    return out.detach()


def test_without_workspaces_the_peak_is_the_allocators() -> None:
    net = nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.AvgPool2d(2), nn.Tanh(), nn.Sigmoid()).cuda()
    x = torch.randn(1, 3, 133, 97, device="cuda", requires_grad=True)  # under 1 MiB, which the allocator always cuts
    _step(net, x)
    x.grad = None
    with PeakBytes("cuda") as peak, record() as rec:
        _step(net, x)
    check_profile(rec.profile)
    assert rec.peak_bytes <= peak.bytes
    assert _rounded_peak(rec.profile) == peak.bytes


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("make", [resnet18, vgg16])
def test_workspaces_come_on_top(make: object, tiled: bool) -> None:
    options = {"head": "pool"} if make is vgg16 else {}
    net = make(width=0.25, classes=4, **options).cuda()  # type: ignore[operator]
    run = tilegrad.tile(net, tile=96) if tiled else net
    x = torch.randn(1, 3, 192, 192, device="cuda")
    _step(run, x)
    net.zero_grad(set_to_none=True)
    gc.collect()  # what the first step left must not be freed in the second
    with PeakBytes("cuda") as peak, record() as rec:
        _step(run, x)
    check_profile(rec.profile)
    assert 0 < rec.peak_bytes <= _rounded_peak(rec.profile) <= peak.bytes
    assert rec.peak_bytes == rec.peaks["cuda:0"]


def test_device_times() -> None:
    net, x = vgg16(width=0.5, head="pool", classes=4).cuda(), torch.randn(1, 3, 256, 256, device="cuda")
    _step(net, x)
    with record() as rec:
        _step(net, x)
    profile = rec.profile
    check_profile(profile)
    timed = [op for op in profile.operators if op.device is not None]
    assert {op.name for op in timed} >= {"convolution", "convolution_backward", "relu_", "max_pool2d_with_indices"}
    assert all(op.device is not None for op in profile.operators if op.in_shapes)
    spans = [op.device for op in timed if op.device is not None]
    slack = 1e-3  # host and device clocks are brought together by one event
    assert -slack <= min(s.start_s for s in spans)
    assert max(s.end_s for s in spans) <= profile.clock[-1] + slack
    assert sum(s.total_s for s in spans) <= profile.clock[-1] + slack
    assert sum(s.total_s for s in spans) > 0
    assert len({op.stream for op in timed}) == 1 and timed[0].stream.startswith("cuda:0")


def test_backward_runs_in_a_thread_of_its_own_and_knows_its_modules() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)).cuda()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    with record() as rec:
        for _ in range(2):
            sgd.zero_grad()
            _step(net, torch.randn(1, 3, 32, 32, device="cuda"))
            sgd.step()
    ops = rec.profile.operators
    modules = [op.module for op in ops if op.name == "convolution_backward"]
    assert modules == ["3", "0"] * 2
    assert [op.module for op in ops if op.name == "convolution"] == ["0", "3"] * 2
    forward, backward = ({op.thread for op in ops if op.phase is p} for p in (Phase.FORWARD, Phase.BACKWARD))
    assert not forward & backward
    assert any(op.phase is Phase.UPDATE for op in ops)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.b, self.a(x), use_reentrant=reentrant)
            return out

    net = Net().cuda()
    with record() as rec:
        for _ in range(2):
            _step(net, torch.ones(2, 4, device="cuda"))
    ops = rec.profile.operators
    again = [op.module for op in ops if op.attrs.get("recompute") and op.name in {"addmm", "tanh"}]
    assert again == ["b.0", "b.1"] * 2
    assert [op.module for op in ops if op.name == "tanh_backward"] == ["b.1"] * 2
    assert [op.module for op in ops if op.name == "mm"] == ["b.0", "b.0", "a"] * 2


def test_results_are_the_same() -> None:
    torch.manual_seed(0)
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        net, x = resnet18(width=0.25, classes=4).cuda(), torch.randn(1, 3, 96, 96, device="cuda")
        other = copy.deepcopy(net)
        plain = _step(net, x)
        with record():
            recorded = _step(other, x)
    finally:
        torch.backends.cudnn.deterministic = before
    assert torch.equal(plain, recorded)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)  # some kernels add in any order


def test_two_devices_of_memory_and_two_streams() -> None:
    x = torch.randn(1000)
    with record() as rec:
        y = x.cuda()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y * 2
        torch.cuda.current_stream().wait_stream(side)
        back = z.cpu()
    check_profile(rec.profile)
    assert set(rec.peaks) == {"cpu", "cuda:0"} and rec.peaks["cpu"] == 4000 and rec.peaks["cuda:0"] == 8000
    assert rec.peak_bytes == 8000
    assert len({op.stream for op in rec.profile.operators if op.stream}) == 2
    assert torch.equal(back, x * 2)


def test_nothing_of_cuda_is_touched_on_the_cpu() -> None:
    with record() as rec:
        torch.ones(3) + 1
    assert all(op.device is None for op in rec.profile.operators)
