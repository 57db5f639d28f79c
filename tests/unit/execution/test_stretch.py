"""Whole nodes in a row, run as one stretch: the same as one by one, and nothing of them is left to be looked up."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import RunError
from tilegrad.execution import executor
from tilegrad.execution.stretch import Stretch, WholeChain, WholeNode
from tilegrad.schedule import Free, Store
from tilegrad.testing import assert_same, integer_module, integer_tensor, run_step
from tilegrad.torch_private import clone_each, copy_each


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any], *layers: nn.Module):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self.layers)


def conv(bias: bool = True) -> nn.Module:
    return nn.Conv2d(2, 2, 3, padding=1, bias=bias)


NETS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: nn.Sequential(conv(), nn.ReLU(), conv(bias=False), nn.LeakyReLU(0.5), nn.MaxPool2d(2)),
    "skip": lambda: Applied(lambda x, a, b: a(x).relu() + b(a(x)), conv(), conv()),
    "norm": lambda: nn.Sequential(conv(), nn.BatchNorm2d(2), nn.ReLU(), conv(), nn.BatchNorm2d(2)),
    "a norm twice": lambda: Applied(lambda x, a, n: n(a(n(x))), conv(), nn.BatchNorm2d(2)),
    "a norm that is read": lambda: Applied(lambda x, n: n(x) + n.weight[:, None, None], nn.BatchNorm2d(2)),
    "a view": lambda: Applied(lambda x, a: a(x).flatten(1).view(2, 2, -1).transpose(1, 2), conv()),
    "made inside": lambda: Applied(lambda x, a: a(x) * torch.ones(6, 5, dtype=x.dtype), conv()),
    "a loss": lambda: Applied(lambda x, a: torch.nn.functional.smooth_l1_loss(a(x), x * 2), conv()),
    "a list": lambda: Applied(lambda x, a: torch.cat([x, a(x), x], 1).chunk(3, 1)[1], conv()),
    "two outputs": lambda: Applied(lambda x, a: (a(x), a(x).relu()), conv()),
    "dropout": lambda: nn.Sequential(conv(), nn.Dropout(0.5), conv()),
}


def one_by_one(steps: Iterable[Any]) -> Iterator[Any]:
    for step in steps:
        yield step.fused if isinstance(step, WholeChain) else step


@pytest.mark.parametrize("name", NETS)
def test_the_same_as_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, image = integer_module(NETS[name]()).train(), integer_tensor((2, 2, 6, 5))
    torch.manual_seed(1)
    found = run_step(tilegrad.tile(copy.deepcopy(net), planner="keep"), [image])
    monkeypatch.setattr(executor, "_in_stretches", one_by_one)
    torch.manual_seed(1)
    assert_same(found, run_step(tilegrad.tile(copy.deepcopy(net), planner="keep"), [image]))
    if name != "dropout":
        assert_same(found, run_step(copy.deepcopy(net), [image]))


def program(net: nn.Module, image: Tensor) -> list[Any]:
    kept = tilegrad.tile(net, planner="keep")
    kept.plan_for(image)
    engine = kept._state.last.engine
    (island,) = engine.schedule.islands.values()
    return list(engine.program(island))


@pytest.mark.parametrize("name", ["chain", "skip", "norm", "a view", "a loss", "a list", "two outputs"])
def test_a_plan_that_keeps_everything_is_one(name: str) -> None:
    first, *rest = program(NETS[name]().double().train(), torch.zeros(2, 2, 6, 5, dtype=torch.float64))
    assert isinstance(first, Stretch)
    assert all(isinstance(step, Store | Free) for step in rest)


@pytest.mark.parametrize("name", ["a norm twice", "dropout"])
def test_what_needs_the_pass_stands_alone(name: str) -> None:
    steps = program(NETS[name]().double().train(), torch.zeros(2, 2, 6, 5, dtype=torch.float64))
    assert any(isinstance(step, WholeNode) for step in steps)


def test_without_gradients_what_is_freed_is_gone() -> None:
    """A long chain holds two maps at a time."""
    net = nn.Sequential(*(conv() for _ in range(8)))
    image = torch.randn(1, 2, 64, 64)
    kept = tilegrad.tile(net, planner="keep", budget="1GiB")
    with torch.no_grad():
        kept(image)
        with tilegrad.testing.PeakBytes() as peak:
            kept(image)
    assert peak.bytes <= 3 * image.numel() * 4


def test_hooks_of_the_caller_do_not_see_what_is_saved() -> None:
    net, image = NETS["norm"]().double().train(), torch.randn(2, 2, 6, 5, dtype=torch.float64)
    kept = tilegrad.tile(net, planner="keep")
    kept.plan_for(image)
    seen: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        out = kept(image)
    out.sum().backward()
    assert not seen


def test_an_output_that_backward_needs_must_stay() -> None:
    kept = tilegrad.tile(nn.Sequential(conv(), nn.Sigmoid()), planner="keep")
    out = kept(torch.randn(1, 2, 6, 5))
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RunError, match="was written to after the forward pass"):
        out.sum().backward()


def test_tensors_are_copied_by_type() -> None:
    sources = [torch.tensor([1.5]), torch.tensor([3]), torch.tensor([2.5]), torch.tensor([0.5], dtype=torch.float64)]
    targets = [torch.zeros(1), torch.zeros(1, dtype=torch.int64), torch.zeros(1), torch.zeros(1)]
    copy_each(targets, sources)
    assert [t.item() for t in targets] == [1.5, 3, 2.5, 0.5]
    copies = clone_each(sources[:1])
    copies[0].add_(1)
    assert (copies[0].item(), sources[0].item()) == (2.5, 1.5)


def test_buffers_wait_for_the_end_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails half way has changed nothing: it can be planned smaller and run again."""
    net = nn.Sequential(conv(), nn.BatchNorm2d(2), conv()).double().train()
    image = torch.randn(2, 2, 6, 5, dtype=torch.float64)
    kept = tilegrad.tile(net, planner="keep")
    kept.plan_for(image)
    before = [buffer.clone() for buffer in net.buffers()]
    run = Stretch.run

    def fail(self: Stretch, inputs: Any) -> Any:
        run(self, inputs)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Stretch, "run", fail)
        with pytest.raises(MemoryError):
            kept(image)
    assert all(torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))
    kept(image)
    assert not torch.equal(before[0], next(net.buffers()))
