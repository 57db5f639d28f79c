"""Recorded steps give what plain PyTorch gives, whatever happens between them, or the step runs without."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import TilegradError
from tilegrad.execution import Pass

pytestmark = pytest.mark.gpu
SIZE = (2, 3, 48, 40)


def small(norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)]
    return nn.Sequential(*layers).cuda().double()


def image() -> Tensor:
    return torch.randn(SIZE, device="cuda", dtype=torch.float64)


def pair(net: nn.Module, **options: object) -> tuple[nn.Module, tilegrad.TiledModule]:
    return net, tilegrad.tile(copy.deepcopy(net), tile=16, cuda_graphs=True, **options)  # type: ignore[call-overload]


def same(plain: nn.Module, tiled: nn.Module) -> None:
    for a, b in zip(plain.parameters(), tiled.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-9, atol=1e-9)
    for c, d in zip(plain.buffers(), tiled.buffers(), strict=True):
        torch.testing.assert_close(d, c, rtol=1e-9, atol=1e-9)


def is_recorded(tiled: tilegrad.TiledModule) -> bool:
    recorded = tiled._state.last.recorded
    return recorded is not None and recorded.recording is not None


@pytest.mark.parametrize("train", [True, False])
def test_a_training_loop(train: bool) -> None:
    plain, tiled = pair(small().train(train))
    optimizers = [torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9) for net in (plain, tiled)]
    for _ in range(6):
        x = image()
        for net, optimizer in zip((plain, tiled), optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
        same(plain, tiled)
        for optimizer in optimizers:
            optimizer.step()
    assert is_recorded(tiled)


def test_two_forwards_before_one_backward() -> None:
    plain, tiled = pair(small())
    for _ in range(5):
        x, y = image(), image()
        for net in (plain, tiled):
            first, second = net(x), net(y)
            (first.square().sum() + second.sum()).backward()
        same(plain, tiled)
    assert is_recorded(tiled)


def test_gradients_are_added_up_and_outputs_stay_as_they_were() -> None:
    plain, tiled = pair(small(norm=False))
    kept = []
    for _ in range(5):
        x = image()
        for net in (plain, tiled):
            out = net(x)
            out.square().mean().backward()
            kept.append(out.detach())
        same(plain, tiled)
    for mine, other in zip(kept[::2], kept[1::2], strict=True):
        torch.testing.assert_close(other, mine, rtol=1e-9, atol=1e-9)


def test_evaluation_in_between_shares_the_memory() -> None:
    plain, tiled = pair(small())
    outputs: list[Tensor] = []
    for _ in range(6):
        x = image()
        for net in (plain, tiled):
            net.train()
            loss = net(x).square().mean()
            net.eval()
            with torch.no_grad():
                seen = net(x)
            loss.backward()
            outputs.append(seen)
        same(plain, tiled)
    for mine, other in zip(outputs[::2], outputs[1::2], strict=True):
        torch.testing.assert_close(other, mine, rtol=1e-9, atol=1e-9)


def test_parameters_that_move_are_recorded_again_and_then_no_more(caplog: pytest.LogCaptureFixture) -> None:
    plain, tiled = pair(small())
    with caplog.at_level(logging.INFO, "tilegrad"):
        for _ in range(9):
            for net in (plain, tiled):
                for p in net.parameters():
                    p.data = p.data.clone()
            x = image()
            for net in (plain, tiled):
                net.zero_grad()
                net(x).square().mean().backward()
            same(plain, tiled)
    assert sum("not recorded" in record.message for record in caplog.records) == 1


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x).relu()
        return x, self.second(x)


def test_other_outputs_have_gradients_than_when_it_was_recorded() -> None:
    torch.manual_seed(0)
    plain, tiled = pair(Two().cuda().double())
    losses: list[Callable[[tuple[Tensor, Tensor]], Tensor]] = [lambda o: o[0].sum() + o[1].square().sum()] * 4
    losses += [lambda o: o[1].square().sum(), lambda o: o[0].sum(), lambda o: o[0].sum() + o[1].square().sum()]
    for loss in losses:
        x = image()
        for net in (plain, tiled):
            net.zero_grad()
            loss(net(x)).backward()
        same(plain, tiled)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.conv(x), 0.5, self.training)


def test_what_is_drawn_is_new_every_step_and_the_same_as_without_a_recording() -> None:
    torch.manual_seed(0)
    net = Dropping().cuda().double()
    recorded, slow = (tilegrad.tile(copy.deepcopy(net), tile=16, cuda_graphs=graphs) for graphs in (True, False))
    x, seen = image(), []
    for step in range(6):
        found = []
        for tiled in (recorded, slow):
            torch.manual_seed(step)
            tiled.zero_grad()
            out = tiled(x)
            out.square().sum().backward()
            found.append((out.detach(), tiled.module.conv.weight.grad))
        assert torch.equal(found[0][0], found[1][0])
        torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-12, atol=1e-12)
        seen.append(found[0][0])
    assert is_recorded(recorded)
    assert all(not torch.equal(a, b) for a, b in pairwise(seen))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad * 2


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return Twice.apply(self.conv(x)).relu()  # type: ignore[no-untyped-call]


def test_a_function_of_the_user_is_not_recorded() -> None:
    torch.manual_seed(0)
    plain, tiled = pair(Mine().cuda().double())
    for _ in range(4):
        x = image()
        for net in (plain, tiled):
            net.zero_grad()
            net(x).square().mean().backward()
        same(plain, tiled)
    assert not is_recorded(tiled)


def test_inside_of_somebody_elses_recording() -> None:
    plain, tiled = pair(small(norm=False))
    x = image()
    for _ in range(4):
        tiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        tiled(x)
        with torch.cuda.graph(graph):
            out = tiled(x)
    graph.replay()
    torch.testing.assert_close(out, plain(x), rtol=1e-9, atol=1e-9)


def test_a_weight_changed_between_forward_and_backward_is_refused() -> None:
    _, tiled = pair(small())
    for _ in range(4):
        loss = tiled(image()).sum()
        loss.backward()
    loss = tiled(image()).sum()
    with torch.no_grad():
        tiled.module[0].weight.add_(1)
    with pytest.raises(TilegradError, match="was written to"):
        loss.backward()


def test_shapes_that_change_and_an_input_that_needs_a_gradient() -> None:
    plain, tiled = pair(small(norm=False))
    for k in range(8):
        x = torch.randn(1, 3, 40 + 8 * (k % 2), 40, device="cuda", dtype=torch.float64)
        grads = []
        for net in (plain, tiled):
            net.zero_grad()
            mine = x.clone().requires_grad_()
            net(mine).square().mean().backward()
            grads.append(mine.grad)
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-9, atol=1e-9)
        same(plain, tiled)
    assert is_recorded(tiled)


def test_what_is_recorded_is_counted_in_the_budget() -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(12))).cuda()
    x = torch.randn(1, 16, 1024, 1024, device="cuda")
    budget = 640 * 2**20
    tiled = tilegrad.tile(net, budget=budget, cuda_graphs=True)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved() - x.numel() * 4
    for _ in range(5):
        net.zero_grad()
        tiled(x).mean().backward()
    assert is_recorded(tiled)
    assert torch.cuda.memory_reserved() - before <= 1.15 * budget


def test_a_recording_that_fails_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Random numbers, memory and later recordings are as if it had never begun; the step itself is run without."""
    forward = Pass.forward

    def failing(run: Pass) -> object:
        kept = torch.empty(1 << 28, device="cuda") if torch.cuda.is_current_stream_capturing() else None
        found = forward(run)
        if kept is not None:
            torch.cuda.synchronize()  # nobody may wait in a recording
        return found

    monkeypatch.setattr(Pass, "forward", failing)
    plain, tiled = pair(small())
    x = image()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with caplog.at_level(logging.INFO, "tilegrad"):
        for _ in range(4):
            for net in (plain, tiled):
                net.zero_grad()
                net(x).square().mean().backward()
            same(plain, tiled)
    assert any("not recorded" in record.message for record in caplog.records)
    assert torch.randn(3, device="cuda").isfinite().all()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 128 << 20
    monkeypatch.undo()
    plain, tiled = pair(small())
    for _ in range(4):
        for net in (plain, tiled):
            net.zero_grad()
            net(x).square().mean().backward()
        same(plain, tiled)
    assert is_recorded(tiled)


def test_memory_that_outlives_its_recording_is_no_hindrance_to_the_next() -> None:
    plain, tiled = pair(small())
    kept: list[Tensor] = []
    for _ in range(8):
        x = image()
        for net in (plain, tiled):
            net.zero_grad()
            net(x).square().mean().backward()
        same(plain, tiled)
        recorded = tiled._state.last.recorded
        if recorded is not None and recorded.recording is not None:
            kept += recorded.recording.outputs
            recorded.recording = None
            gc.collect()
    assert len(kept) >= 3
    assert torch.randn(3, device="cuda").isfinite().all()
