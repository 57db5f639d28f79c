"""A module under a plan behaves like a module: gradients that are None stay None, sums of gradients, several calls in
flight, precision, training loops. And a pass leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from step_plans import SEVERAL, Choose, Graphs, Stepped, both
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import BudgetError, TilegradError
from tilegrad.planners import plan_keep
from tilegrad.testing import PeakBytes, assert_same, integer_module, integer_tensor, run_step

IMAGE = integer_tensor((2, 4, 6, 6))
HOW = ("fused", "apart")
PLANS = dict(zip(("keep", "random", "reruns", "moves", "more"), SEVERAL, strict=True))
WAYS = {f"{name}-{how}": way for name, plan in PLANS.items() for how, way in zip(HOW, both(plan), strict=True)}
every_plan = pytest.mark.parametrize("choose", WAYS.values(), ids=WAYS)


class Net(nn.Module):
    """Two convolutions and a norm; what comes out is up to `ends`."""

    def __init__(self, ends: Callable[..., Any] | None = None, dropout: float = 0.0):
        super().__init__()
        self.first, self.norm, self.last = conv(), nn.BatchNorm2d(4), conv()
        self.ends, self.dropout = ends, dropout

    def forward(self, x: Tensor, *more: Any, **named: Any) -> Any:
        if self.ends is not None:
            return self.ends(self, x, *more, **named)
        return self.last(F.dropout(self.norm(self.first(x)).relu(), self.dropout))


def conv() -> nn.Module:
    return nn.Conv2d(4, 4, 3, padding=1)


def pair(net: nn.Module, choose: Choose) -> tuple[nn.Module, nn.Module]:
    return copy.deepcopy(net), Stepped(copy.deepcopy(net), choose)


def gradients(net: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}


def assert_equal(found: dict[str, Tensor | None], wanted: dict[str, Tensor | None]) -> None:
    assert found.keys() == wanted.keys()
    for name, grad in wanted.items():
        other = found[name]
        if grad is None or other is None:
            assert grad is other, name
        else:
            torch.testing.assert_close(other, grad, rtol=1e-10, atol=1e-10, equal_nan=True, msg=name)


# Gradients in and out


@every_plan
@pytest.mark.parametrize("used", [[0], [1], [2], [0, 1], [0, 2], [1, 2]])
def test_what_no_loss_uses_gets_no_gradient(used: list[int], choose: Choose) -> None:
    """None, not zero: and zero times the logarithm's infinite slope would be no number at all."""
    net = integer_module(Net(lambda m, x: (m.first(x), m.last(x), m.first(x).relu().log())))
    found = []
    for module in pair(net, choose):
        x = IMAGE.clone().requires_grad_()
        made = module(x)
        torch.stack([(made[i] * integer_tensor(made[i].shape, seed=3)).sum() for i in used]).sum().backward()
        found.append({"x": x.grad, **gradients(module)})
    assert_equal(found[1], found[0])
    assert any(grad is None for grad in found[0].values())


@every_plan
def test_gradients_add_up_over_steps(choose: Choose) -> None:
    """Two parameters whose gradients come from one memory must not end up in one."""
    net = Net(lambda m, x: (x + m.map, m.flat.view(2, 4, 6, 6) + m.map))
    net.map, net.flat = nn.Parameter(IMAGE.clone()), nn.Parameter(integer_tensor((8, 36)))
    found = []
    for module in pair(net.double(), choose):
        x = IMAGE.clone().requires_grad_()
        for step in range(3):
            made = module(x)
            torch.autograd.backward(made, [integer_tensor(m.shape, seed=step + at) for at, m in enumerate(made)])
        found.append({"x": x.grad, **gradients(module)})
    assert_equal(found[1], found[0])


@every_plan
def test_a_part_of_the_gradients(choose: Choose) -> None:
    found = []
    for module in pair(Net().double(), choose):
        x = IMAGE.clone().requires_grad_()
        grads = torch.autograd.grad(module(x).square().sum(), [x, module.last.weight])
        found.append(dict(zip("ab", grads, strict=True)))
    assert_equal(found[1], found[0])


@every_plan
def test_inputs_by_name_and_inputs_made_before(choose: Choose) -> None:
    net = integer_module(Net(lambda m, x, scale, *, shift: m.last(m.first(x).relu()) * scale + shift))
    found = []
    for module in pair(net, choose):
        w = integer_tensor((2, 4, 6, 6), seed=4).requires_grad_()
        module(w * 2, 3, shift=w[:1]).backward(IMAGE)
        found.append({"w": w.grad, **gradients(module)})
    assert_equal(found[1], found[0])


# Calls in flight


@every_plan
def test_two_calls_then_two_backwards(choose: Choose) -> None:
    found = []
    for module in pair(Net().double(), choose):
        first, second = module(IMAGE), module(IMAGE * 2 + 1)
        first.square().sum().backward()
        second.pow(3).sum().backward()
        found.append(gradients(module) | {name: b.double() for name, b in module.named_buffers()})
    assert_equal(found[1], found[0])


@every_plan
def test_backward_twice(choose: Choose) -> None:
    loss = Stepped(Net().double(), choose)(IMAGE).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(TilegradError, match="a second time through the same tiled call"):
        loss.backward()


@every_plan
def test_a_parameter_written_between(choose: Choose) -> None:
    module = Stepped(Net().double(), choose)
    loss = module(IMAGE).sum()
    with torch.no_grad():
        module.last.weight.add_(1)
    with pytest.raises(TilegradError, match="was written to after the forward pass"):
        loss.backward()


@every_plan
@pytest.mark.parametrize("at", [0, 1])
def test_an_output_written_between(at: int, choose: Choose) -> None:
    """Backward reads the first output; the second lies in its memory."""
    module = Stepped(Net(lambda m, x: (lambda y: (y, y.view(2, -1)))(m.first(x).relu())).double(), choose)
    made = module(IMAGE)
    with torch.no_grad():
        made[at].mul_(2)
    with pytest.raises(TilegradError, match=r"was written to after the forward pass.*\n.*and outputs"):
        made[0].sum().backward()


@every_plan
def test_an_output_that_may_be_written(choose: Choose) -> None:
    net = Net(lambda m, x: (m.first(x), m.first(x).flatten(1))).double()
    found = []
    for module in pair(net, choose):
        a, b = module(IMAGE)
        (a.mul_(2).sum() + b.add_(1).square().sum()).backward()
        found.append(gradients(module))
    assert_equal(found[1], found[0])


# Precision and chance


@every_plan
def test_autocast(choose: Choose) -> None:
    """The same kernels in the same order: equal, though there is rounding. (For a parameter that is used twice torch
    adds up gradients of its one copy in half precision, we those of two in single.)"""
    torch.manual_seed(0)
    net, found = Net(lambda m, x: m.last(m.norm(m.first(x)).relu() + x.softmax(1)).log_softmax(1)), []
    for module in pair(net, choose):
        with torch.autocast("cpu", torch.bfloat16):
            made = module(IMAGE.float())
        made.float().square().mean().backward()
        found.append(gradients(module) | dict(module.named_buffers()) | {"out": made.detach()})
    for name, wanted in found[0].items():
        assert torch.equal(found[1][name], wanted) and found[1][name].dtype == wanted.dtype, name


@every_plan
def test_half_precision(choose: Choose) -> None:
    torch.manual_seed(0)
    found = []
    for module in pair(Net().bfloat16(), choose):
        module(IMAGE.bfloat16()).float().square().mean().backward()
        found.append(gradients(module))
    for name, wanted in found[0].items():
        assert wanted is not None and torch.equal(found[1][name], wanted), name


def test_masks_are_the_same_under_any_plan() -> None:
    net, graphs = Net(dropout=0.4).double(), Graphs()
    steps = []
    for choose in SEVERAL:
        for way in both(choose):
            torch.manual_seed(3)
            steps.append(run_step(Stepped(copy.deepcopy(net), way, graphs), [IMAGE]))
    for step in steps[1:]:
        assert_same(step, steps[0], exact=True)
    torch.manual_seed(4)
    other = run_step(Stepped(copy.deepcopy(net), plan_keep, graphs), [IMAGE])
    assert not torch.equal(other.outputs["output 0"], steps[0].outputs["output 0"])


# Nothing is left behind


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@every_plan
@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("how", ["trained", "partly", "abandoned", "failed"])
def test_all_memory_is_given_back(how: str, choose: Choose) -> None:
    def ends(m: nn.Module, x: Tensor) -> Any:
        y = m.first(x)
        return y, m.last(m.norm(y).relu()).flatten(1), y.view(2, -1), x

    module = Stepped(Net(ends).double(), choose)
    module.runner(IMAGE.clone().requires_grad_())
    with PeakBytes() as peak:
        assert peak._mode is not None
        x = IMAGE.clone().requires_grad_()
        made = module(x)
        seen = [weakref.ref(t.untyped_storage()) for t in made[:3]]
        if how == "trained":
            torch.autograd.backward(made, [torch.ones_like(t) for t in made])
        elif how == "partly":
            made[1].sum().backward()
        elif how == "failed":
            with torch.no_grad():
                module.last.weight.add_(0)
            with pytest.raises(TilegradError):
                made[1].sum().backward()
        module.zero_grad(set_to_none=True)
        del made, x
        left = peak._mode.now
    assert left == 0
    assert not any(ref() is not None for ref in seen)


@pytest.mark.parametrize("choose", both(plan_keep), ids=HOW)
@pytest.mark.usefixtures("_no_collector")
def test_activations_are_gone_after_backward(choose: Choose) -> None:
    """Even while the output is held, of what backward needed nothing is."""
    module = Stepped(Net().double(), choose)
    module.runner(IMAGE)
    with PeakBytes() as peak:
        assert peak._mode is not None
        made = module(IMAGE)
        held = peak._mode.now
        made.sum().backward()
        module.zero_grad(set_to_none=True)
        assert peak._mode.now < held - 2 * made.numel() * 8
        assert peak._mode.now <= made.numel() * 8 + 64


# Through `tilegrad.tile`


class Deep(nn.Module):
    """Activations that outweigh parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4 if k else 1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for k in range(5)
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        for at, part in enumerate(self.parts):
            x = x + part(x) if at else part(x)
        scores = self.head(x.mean((2, 3)))
        return scores if y is None else F.cross_entropy(scores, y)


def planned(planner: str, share: float = 0.6) -> tuple[nn.Module, tilegrad.modules.tiled.TiledModule, Tensor]:
    torch.manual_seed(0)
    plain, x = Deep().double(), torch.randn(2, 1, 40, 40, dtype=torch.float64)
    whole = tilegrad.tile(copy.deepcopy(plain), mode="none").plan_for(x).schedule.predicted["total_bytes"]
    other = tilegrad.tile(copy.deepcopy(plain), budget=int(share * whole), planner=planner)
    assert other.plan_for(x).schedule.mode == planner
    return plain, other, x


@pytest.mark.parametrize("planner", ["segments", "recompute", "offload"])
def test_three_steps_of_training(planner: str) -> None:
    plain, other, x = planned(planner)
    for module in (plain, other):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            module(x + step).square().mean().backward()
            optimizer.step()
    for name, wanted in plain.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], wanted, rtol=1e-9, atol=1e-10, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(other(x), plain(x), rtol=1e-8, atol=1e-9)
    plain.eval(), other.eval()
    torch.testing.assert_close(other(x), plain(x), rtol=1e-8, atol=1e-9)


def test_copies_and_states() -> None:
    plain, other, x = planned("recompute")
    again = copy.deepcopy(other)
    plain.load_state_dict(again.state_dict())
    for module in (plain, again):
        module(x).square().mean().backward()
    assert_equal(gradients(again), gradients(plain))
    assert all(p.grad is None for p in other.parameters())


def test_a_budget_that_nothing_fits() -> None:
    plain, _, x = planned("recompute")
    with pytest.raises(BudgetError, match="the smallest plan found needs"):
        tilegrad.tile(plain, budget="20KiB", planner="recompute")(x)
