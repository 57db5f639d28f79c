"""Whose operator it is: modules and phases, forward, backward, run again, updated, and after exceptions."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tilegrad.ir import Phase
from tilegrad.profile import Profile
from tilegrad.recording.record import record


class Shared(nn.Module):
    """One layer called twice, under its first name; a part that fails on demand; work of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Tanh(), self.first)
        self.last = Picky()

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(self.first(x))
        try:
            x = self.last(x, fail=True)
        except ValueError:
            x = x * 2  # after the exception: our own work again
        return self.last(x)


class Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sigmoid()

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        x = self.deep(x)
        if fail:
            raise ValueError
        return x.exp()


def _found(profile: Profile, phase: Phase) -> list[tuple[str, str]]:
    silent = {"detach", "t", "view", "ones_like", "expand"}
    return [(op.name, op.module) for op in profile.operators if op.phase is phase and op.name not in silent]


def test_modules_forward_and_backward() -> None:
    net, x = Shared(), torch.ones(2, 4)
    with record() as rec:
        net(x).sum().backward()
    assert _found(rec.profile, Phase.FORWARD) == [
        ("addmm", "first"), ("tanh", "inner.0"), ("addmm", "first"), ("sigmoid", "last.deep"), ("mul", ""),
        ("sigmoid", "last.deep"), ("exp", "last"), ("sum", ""),
    ]  # fmt: skip
    assert _found(rec.profile, Phase.BACKWARD) == [
        ("mul", "last"), ("sigmoid_backward", "last.deep"), ("mul", ""), ("mm", "first"), ("mm", "first"),
        ("sum", "first"), ("tanh_backward", "inner.0"), ("mm", "first"), ("sum", "first"), ("add", "first"),
        ("add", "first"),
    ]  # fmt: skip


def test_adding_to_a_gradient_is_the_parameters_module() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4)
    net(x).sum().backward()
    with record() as rec:
        net(x).sum().backward()
    assert ("add_", "0") in _found(rec.profile, Phase.BACKWARD)


def test_a_graph_from_before_has_no_modules() -> None:
    loss = nn.Sequential(nn.Tanh())(torch.ones(2, requires_grad=True)).sum()
    with record() as rec:
        loss.backward()
    assert _found(rec.profile, Phase.BACKWARD) == [("tanh_backward", "")]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_run_again_in_backward(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.b, self.a(x), use_reentrant=reentrant)
            return out

    with record() as rec:
        loss = nn.MSELoss()(Net()(torch.ones(2, 4)), torch.zeros(2, 4))
        loss.backward()
    ops = rec.profile.operators
    again = [(op.name, op.module) for op in ops if op.attrs.get("recompute") and op.name not in {"t", "detach"}]
    assert again == [("addmm", "b.0"), ("tanh", "b.1")]
    assert all(op.phase is Phase.BACKWARD for op in ops if op.attrs.get("recompute"))
    backward = Counter(_found(rec.profile, Phase.BACKWARD))
    assert backward["tanh_backward", "b.1"] == 1
    assert backward["mm", "b.0"] == 2 and backward["mm", "a"] == 1
    made = {b.maker: b.kind.value for b in rec.profile.blocks if b.maker is not None}
    assert [made[at] for at, op in enumerate(ops) if op.attrs.get("recompute") and at in made] == ["activation"] * 2


def test_updates() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    with record() as rec:
        sgd.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        sgd.step()
        torch.ones(1)
    assert _found(rec.profile, Phase.UPDATE) == [("add_", "0")] * 2
    assert rec.profile.operators[-1].phase is Phase.FORWARD


def test_a_closure_is_not_the_update() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4)
    lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> Tensor:
        lbfgs.zero_grad()
        loss: Tensor = net(x).pow(2).sum()
        loss.backward()
        return loss

    with record() as rec:
        lbfgs.step(closure)
    phases = {name: {op.phase for op in rec.profile.operators if op.name == name} for name in ("tanh", "tanh_backward")}
    assert phases == {"tanh": {Phase.FORWARD}, "tanh_backward": {Phase.BACKWARD}}
    assert _found(rec.profile, Phase.UPDATE)


def test_an_update_that_fails_ends_at_the_next_call() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            torch.zeros(1)
            raise ValueError

    net = nn.Tanh()
    broken = Broken([nn.Parameter(torch.ones(1))], lr=0.1)
    with record() as rec:
        with pytest.raises(ValueError):
            broken.step()
        net(torch.ones(1)) * 2
    assert [(op.name, op.phase) for op in rec.profile.operators if op.name in {"zeros", "tanh", "mul"}] == [
        ("zeros", Phase.UPDATE), ("tanh", Phase.FORWARD), ("mul", Phase.FORWARD),
    ]  # fmt: skip


def test_an_optimizer_inside_backward() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    handles = [p.register_post_accumulate_grad_hook(lambda _: sgd.step()) for p in net.parameters()]
    with record() as rec:
        net(torch.ones(2, 4)).sum().backward()
    for handle in handles:
        handle.remove()
    assert {name for name, _ in _found(rec.profile, Phase.UPDATE)} == {"add_"}
    assert ("tanh_backward", "1") in _found(rec.profile, Phase.BACKWARD)


def test_two_outermost_modules_and_an_unregistered_one() -> None:
    hidden = nn.Sigmoid()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = hidden(self.body(x))
            return out

    with record() as rec:
        x = Net()(torch.ones(2, requires_grad=True))
        nn.Sequential(nn.ReLU())(x).sum().backward()
    assert _found(rec.profile, Phase.FORWARD)[1:] == [("tanh", "body.0"), ("sigmoid", ""), ("relu", "0"), ("sum", "")]
    assert [module for _, module in _found(rec.profile, Phase.BACKWARD)] == ["0", "", "body.0"]


def test_backward_of_backward() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.ones(2, 3, requires_grad=True)
    with record() as rec:
        (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()
    assert {op.phase for op in rec.profile.operators} == {Phase.FORWARD, Phase.BACKWARD}
    assert ("tanh_backward", "1") in _found(rec.profile, Phase.BACKWARD)
