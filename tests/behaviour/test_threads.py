"""Threads: one model called by several, several models trained at once, modes that belong to a thread."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from loops import Net, backward, conv, image, once, whole_numbers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

import tilegrad


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """Run all at once, from one starting line."""
    line = threading.Barrier(len(tasks))

    def start(task: Callable[[], Any]) -> Any:
        line.wait(60)
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result(120) for future in [pool.submit(start, task) for task in tasks]]


def make() -> nn.Module:
    return whole_numbers(Net())


def equal(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_one_model_is_asked_by_many_at_its_first_call() -> None:
    net = make().eval()
    tiled = tilegrad.tile(net, tile=8)

    def ask(seed: int) -> Tensor:
        with torch.no_grad():
            return tiled(image(seed=seed))

    found = together(*(lambda k=k: ask(k) for k in range(4)))
    assert equal(found, [net(image(seed=k)).detach() for k in range(4)])


def test_one_model_is_asked_for_other_sizes_at_once() -> None:
    net = make().eval()
    tiled = tilegrad.tile(net, tile=8)

    def ask(size: int) -> list[Tensor]:
        with torch.no_grad():
            return [tiled(image(1, 2, size + k % 2, 16)) for k in range(4)]

    found = together(*(lambda n=n: ask(n) for n in (8, 12, 16)))
    for size, outs in zip((8, 12, 16), found, strict=True):
        assert equal(outs, [net(image(1, 2, size + k % 2, 16)).detach() for k in range(4)])


def test_one_model_with_gradients_of_inputs() -> None:
    net = make().requires_grad_(False)
    tiled = tilegrad.tile(net, tile=8)

    def ask(run: nn.Module, seed: int) -> Tensor:
        given = image(seed=seed).requires_grad_()
        backward(run(given))
        return given.grad

    found = together(*(lambda k=k: ask(tiled, k) for k in range(3)))
    assert equal(found, [ask(net, k) for k in range(3)])


def test_two_models_train_at_once() -> None:
    nets = [make(), whole_numbers(nn.Sequential(conv(2, 3), nn.ReLU(), nn.MaxPool2d(2), conv(3, 2)))]
    plain = copy.deepcopy(nets)
    tiled = [tilegrad.tile(net, tile=8) for net in nets]

    def train(model: nn.Module) -> None:
        for seed in range(3):
            backward(model(image(seed=seed)))

    together(*(lambda m=m: train(m) for m in tiled))
    for net, other in zip(plain, nets, strict=True):
        train(net)
        assert equal([p.grad for p in other.parameters()], [p.grad for p in net.parameters()])


def test_one_trains_while_another_looks() -> None:
    """Grad mode belongs to a thread: validation without gradients beside a training loop."""
    plain, net = make(), make()
    tiled = tilegrad.tile(net, tile=8)
    wanted = plain(image(seed=9)).detach()

    def look() -> list[Tensor]:
        with torch.no_grad():
            found = [tiled(image(seed=9)) for _ in range(5)]
        assert not any(f.requires_grad for f in found)
        return found

    def train() -> None:
        for seed in range(3):
            backward(tiled(image(seed=seed)))

    found, _ = together(look, train)
    for seed in range(3):
        backward(plain(image(seed=seed)))
    assert equal(found, [wanted] * 5)
    assert equal([p.grad for p in net.parameters()], [p.grad for p in plain.parameters()])


def test_backward_in_another_thread() -> None:
    plain, net = make(), make()
    out = tilegrad.tile(net, tile=8)(image())
    together(lambda: backward(out))
    once(plain)
    assert equal([p.grad for p in net.parameters()], [p.grad for p in plain.parameters()])


def test_autocast_belongs_to_a_thread() -> None:
    tiled = tilegrad.tile(Net().float(), tile=8)

    def ask(enabled: bool) -> torch.dtype:
        kinds = set()
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                kinds.add(tiled(image().float()).dtype)
        assert len(kinds) == 1
        return kinds.pop()

    assert together(lambda: ask(True), lambda: ask(False)) == [torch.bfloat16, torch.float32]


class Watched(Net):
    """Says when it is traced, and then takes its time, as if torch were inside of a kernel's shape function."""

    def __init__(self) -> None:
        super().__init__()
        self.traced = threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, FakeTensor) and x.shape[-1] == 20:
            with in_kernel_invocation_manager(x.fake_mode):
                self.traced.set()
                time.sleep(0.3)
        return super().forward(x)


def test_a_capture_elsewhere_hides_nothing_from_who_asks() -> None:
    """While a module is traced, its parameters say that they lie on no device."""
    net = Watched().float()
    tiled = tilegrad.tile(net, tile=8)
    tiled(image().float())  # the plan without autocast

    def ask() -> torch.dtype:
        assert net.traced.wait(60)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return tiled(image().float()).dtype

    assert together(lambda: tiled(image(1, 2, 16, 20).float()), ask)[1] == torch.bfloat16


def test_a_pool_of_workers() -> None:
    net = make()
    tiled = tilegrad.tile(net, tile=8)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda k: tiled(image(seed=k)).detach(), range(8)))
    assert equal(found, [net(image(seed=k)).detach() for k in range(8)])
