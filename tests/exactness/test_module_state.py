"""Hooks, state, copies, conversions, plans and wrappers of a tiled module."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import tilegrad
from tilegrad.testing import assert_same, assert_same_step, integer_module, integer_tensor, run_step

every_mode = pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])


def make_net() -> nn.Module:
    return integer_module(
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3, padding=1)
        )
    )


def image(*shape: int, seed: int = 0) -> Tensor:
    return integer_tensor(shape or (1, 2, 13, 11), seed=seed)


# Hooks


@every_mode
def test_hooks_see_the_whole_gradient_once(mode: str) -> None:
    net = make_net()
    plain, tiled = copy.deepcopy(net), tilegrad.tile(net, tile=4, mode=mode)
    seen: list[tuple[str, Tensor]] = []
    for name, parameter in net.named_parameters():
        parameter.register_hook(lambda grad, name=name: seen.append((name, grad.clone())))
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: seen.append((f"after {name}", p.grad.clone()))
        )
    run_step(plain, [image()])
    run_step(tiled, [image()])
    wanted = {name: p.grad for name, p in plain.named_parameters()}
    assert sorted(name for name, _ in seen) == sorted([*wanted, *(f"after {name}" for name in wanted)])
    assert all(torch.equal(grad, wanted[name.removeprefix("after ")]) for name, grad in seen)


def test_module_hooks_and_retained_gradients() -> None:
    tiled = tilegrad.tile(make_net(), tile=4)
    seen = []
    tiled.register_forward_hook(lambda *_: seen.append("forward"))
    tiled.register_full_backward_hook(lambda *_: seen.append("backward"))
    out = tiled(image().requires_grad_())
    out.retain_grad()
    out.sum().backward()
    assert seen == ["forward", "backward"] and torch.equal(out.grad, torch.ones_like(out))


# State


def test_state_dict_has_the_same_keys() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double()
    tiled = tilegrad.tile(net, tile=4)
    assert list(tiled.state_dict()) == list(net.state_dict())
    other = tilegrad.tile(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double(), tile=5)
    other(image())
    other.load_state_dict(tiled.state_dict())
    plain = run_step(copy.deepcopy(net), [image()])
    assert_same(run_step(other, [image()]), plain, exact=False)
    state = copy.deepcopy(net.state_dict())
    integer_module(net)
    net.load_state_dict(state)  # and what is loaded into the plain module is seen tiled
    assert_same(run_step(tiled, [image()]), plain, exact=False)


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_copies_are_independent(how: str) -> None:
    tiled = tilegrad.tile(make_net(), tile=4, mode="scatter")
    before = run_step(tiled, [image()])
    if how == "deepcopy":
        other = copy.deepcopy(tiled)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(tiled))
    else:
        torch.save(tiled, file := io.BytesIO())
        file.seek(0)
        other = torch.load(file, weights_only=False)
    other.zero_grad()
    with torch.no_grad():
        for parameter in tiled.parameters():
            parameter.zero_()
    assert other.options == tiled.options
    assert_same(run_step(other, [image()]), before)


@pytest.mark.parametrize("early", [True, False])
def test_an_optimizer_made_before_or_after(early: bool) -> None:
    nets = [make_net(), make_net()]
    if early:
        optimizers = [torch.optim.SGD(net.parameters(), lr=1.0) for net in nets]
        runs = [nets[0], tilegrad.tile(nets[1], tile=4)]
    else:
        runs = [nets[0], tilegrad.tile(nets[1], tile=4)]
        optimizers = [torch.optim.SGD(run.parameters(), lr=1.0) for run in runs]
    for run, optimizer in zip(runs, optimizers, strict=True):
        run(image()).sum().backward()
        optimizer.step()
    for a, b in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.equal(a, b)


def test_conversions_of_type() -> None:
    net = make_net().float()
    tiled = tilegrad.tile(net, tile=4)
    assert tiled(image().float()).dtype == torch.float32
    tiled.double()
    assert torch.equal(tiled(image()), net(image())) and tiled(image()).dtype == torch.float64
    assert tiled.to(torch.bfloat16)(image().bfloat16()).dtype == torch.bfloat16


@every_mode
def test_train_and_eval_are_planned_apart(mode: str) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Conv2d(3, 2, 3)).double()
    tiled = tilegrad.tile(net, tile=4, mode=mode)
    tiled(image())
    for _ in range(2):
        assert_same_step(net.eval(), image(), exact=False, tile=4, mode=mode)
        tiled.eval()
        assert not net[1].training
        torch.testing.assert_close(tiled(image()), net(image()), rtol=1e-12, atol=1e-12)
        tiled.train()
        assert net[1].training and not torch.equal(tiled(image()), tiled(image()))
    net[2].eval()  # a part of it
    assert torch.equal(tiled(image()), tiled(image()))


def test_plans_are_kept_by_shape() -> None:
    tiled = tilegrad.tile(make_net(), tile=4)
    plain = make_net()
    for size in (9, 13, 9, 13, 21):
        assert torch.equal(tiled(image(1, 2, size, 8)), plain(image(1, 2, size, 8)))
    assert len(tiled._state.calls) == 3


@pytest.fixture
def one_process(tmp_path: Any) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@every_mode
def test_distributed_data_parallel(mode: str) -> None:
    net = make_net()
    parallel = DistributedDataParallel(tilegrad.tile(net, tile=4, mode=mode))
    plain = copy.deepcopy(net)
    for seed in range(2):
        for run in (plain, parallel):
            run(image(2, 2, 9, 11, seed=seed)).sum().backward()
    for a, b in zip(plain.parameters(), net.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
