"""After a capture, successful or not, the user's module, his generators and his settings are as they were."""

from __future__ import annotations

import logging
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loops import Net, backward, describe, image, original, photo, seed_all, whole_numbers
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import TilegradError


class Watched(Net):
    """A model with lists, dictionaries, tensors, flags and grads that must survive."""

    def __init__(self, act: Callable[[Watched, Tensor], Any] | None = None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4).eval()
        self.items, self.table = [1, torch.ones(2)], {"a": [torch.ones(1)], "b": None}
        self.fixed, self.cache = torch.ones(4, 1, 1, dtype=torch.float64), None
        self.act = act

    def middle(self, y: Tensor) -> Tensor:
        y = self.norm(y) + self.fixed
        if self.act is not None:
            self.act(self, y)
        return y


def stumble(model: Watched, y: Tensor) -> None:
    raise ArithmeticError("half way")


def write_and_stumble(model: Watched, y: Tensor) -> None:
    model.items.append(y)
    model.table["a"].append(y.sum())
    model.table["new"] = y
    model.cache = y
    model.extra = [y]
    model.norm.seen = y
    model.fixed = y.detach()
    model.norm.train()
    raise ArithmeticError("half way")


def branch(model: Watched, y: Tensor) -> None:
    model.items.append(y)
    if y.sum() > 0:
        model.cache = y


def draw(model: Watched, y: Tensor) -> None:
    model.cache = random.random()


ACTS: dict[str, Callable[[Watched, Tensor], Any] | None] = {
    "works": None,
    "stumbles": stumble,
    "writes and stumbles": write_and_stumble,
    "branches": branch,
    "draws": draw,
}


def prepared(act: Callable[[Watched, Tensor], Any] | None) -> tuple[Watched, tilegrad.TiledModule]:
    seed_all()
    net = whole_numbers(Watched(act))
    net.first.weight.grad = torch.ones_like(net.first.weight)
    net.last.weight.requires_grad_(False)
    return net, tilegrad.tile(net, tile=8)


def call(tiled: nn.Module) -> None:
    try:
        with torch.no_grad():
            tiled(image())
    except TilegradError:
        pass


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_the_module_is_as_it_was(act: Callable[[Watched, Tensor], Any] | None) -> None:
    net, tiled = prepared(act)
    before = describe(net)
    items, table, inner, fixed = net.items, net.table, net.table["a"], net.fixed
    parameters, buffers, modules = [*net.parameters()], [*net.buffers()], [*net.modules()]
    call(tiled)
    assert str(describe(net)) == str(before)
    assert net.items is items and net.table is table and net.table["a"] is inner and net.fixed is fixed
    for kept, now in ((parameters, net.parameters()), (buffers, net.buffers()), (modules, net.modules())):
        assert all(a is b for a, b in zip(kept, now, strict=True))


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_generators_are_as_they_were(act: Callable[[Watched, Tensor], Any] | None) -> None:
    _, tiled = prepared(act)
    python, numpy, torchs = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    call(tiled)
    assert random.getstate() == python
    assert np.array_equal(np.random.get_state()[1], numpy)
    assert torch.equal(torch.get_rng_state(), torchs)


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_settings_are_as_they_were(act: Callable[[Watched, Tensor], Any] | None) -> None:
    def settings() -> list[Any]:
        return [
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.compiler.is_compiling(),
            torch.compiler.is_exporting(),
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
            list(warnings.filters),
            sys.getrecursionlimit(),
            sys.gettrace(),
            [logging.getLogger(name).level for name in ("", "torch", "torch.export", "torch._dynamo")],
            torch.Tensor.register_hook,
            torch.Tensor.requires_grad_,
            torch.autograd.Function.apply.__func__,
            random.random.__self__,
            torch.autograd.grad,
            nn.Module.__setattr__,
            nn.Module.__call__,
        ]

    _, tiled = prepared(act)
    call(tiled)  # torch itself may set up things at the first one
    before, threads = settings(), set(threading.enumerate())
    call(tilegrad.tile(original(tiled), tile=4))
    assert settings() == before
    assert not set(threading.enumerate()) - threads  # others may have ended meanwhile


@pytest.mark.parametrize("act", [stumble, write_and_stumble, branch], ids=["stumbles", "writes", "branches"])
def test_the_module_works_once_the_fault_is_gone(act: Callable[[Watched, Tensor], Any]) -> None:
    net, tiled = prepared(act)
    call(tiled)
    call(tiled)
    net.act = None
    net.zero_grad()
    plain = whole_numbers(Watched())
    plain.last.weight.requires_grad_(False)
    wanted, found = backward(plain(image())), backward(tiled(image()))
    assert torch.allclose(found, wanted, rtol=1e-9)
    for p, q in zip(plain.parameters(), net.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None) and (p.grad is None or torch.allclose(p.grad, q.grad, rtol=1e-9))


def test_planning_without_a_call_changes_nothing() -> None:
    class Counts(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen = 0, []
            self.norm = nn.BatchNorm2d(4)

        def middle(self, y: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(y.detach().amax())
            return self.norm(y)

    net = Counts().double()
    tiled = tilegrad.tile(net, tile=8)
    before = str(describe(net))
    tiled.plan_for(photo())
    tiled.plan_for((1, 2, 16, 16))
    assert str(describe(net)) == before
    backward(tiled(photo()))
    assert net.calls == 1 and len(net.seen) == 1 and int(net.norm.num_batches_tracked) == 1


def test_capturing_leaves_the_module_as_it_was() -> None:
    net, _ = prepared(None)
    before = str(describe(net))
    tilegrad.capture(net, (1, 2, 16, 16))
    assert str(describe(net)) == before


def test_state_moves_once_per_call_however_often_it_is_captured() -> None:
    """A new plan is a new capture, which must not count as a call."""

    class Counts(Net):
        calls = 0

        def middle(self, y: Tensor) -> Tensor:
            self.calls += 1
            return y.relu()

    net = Counts().double()
    tiled = tilegrad.tile(net, tile=8)
    for count, size in enumerate((8, 12, 16, 8), 1):
        tiled(image(1, 2, size, size))
        assert net.calls == count


def test_inputs_are_as_they_were() -> None:
    tiled = tilegrad.tile(Net().double(), tile=8)
    given = image().requires_grad_()
    before, version = given.detach().clone(), given._version
    out = tiled(given)
    assert torch.equal(given, before) and given._version == version and given.grad is None and given.is_leaf
    backward(out)
    assert torch.equal(given, before) and given._version == version


def test_public_lists_of_a_u_net_with_deep_supervision() -> None:
    """It keeps its outputs in a list of its own, as a public three-dimensional U-Net does."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList(nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))
            self.heads: list[Any] = [torch.rand(1)] * 3

        def forward(self, x: Tensor) -> Any:
            for k, stage in enumerate(self.stages):
                x = stage(x).tanh()
                self.heads[k] = x
            return torch.stack([*self.heads]) if self.training else x

    seed_all()
    plain, net = Deep().double(), Deep().double()
    net.load_state_dict(plain.state_dict())
    tiled = tilegrad.tile(net, tile=8)
    for _ in range(2):
        wanted, found = backward(plain(photo())), backward(tiled(photo()))
        assert torch.allclose(found, wanted, rtol=1e-9)
        assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(net.heads, plain.heads, strict=True))
    assert torch.allclose(net.eval()(photo()), plain.eval()(photo()), rtol=1e-9)
