"""A tiled module behaves like the module it wraps: inputs, outputs, gradients, any number of calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import tilegrad
from tilegrad.testing import assert_same, assert_same_step, integer_module, integer_tensor, run_step

MODES = ("stream", "scatter", "gather")
every_mode = pytest.mark.parametrize("mode", MODES)


def make_net() -> nn.Module:
    return integer_module(
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3, padding=1)
        )
    )


def image(*shape: int, seed: int = 0) -> Tensor:
    return integer_tensor(shape or (1, 2, 13, 11), seed=seed)


class Returns(nn.Module):
    """Two convolutions and whatever is made of their results."""

    def __init__(self, function: Callable[..., Any], **more: nn.Module):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3, stride=2)
        self.function = function
        for name, module in more.items():
            self.add_module(name, module)
        integer_module(self)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.function(self, *inputs, **kwargs)


# Inputs and outputs


@every_mode
@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: (m.a(x), m.b(m.a(x))),
        lambda m, x: {"first": m.a(x), "second": [m.b(m.a(x)), (m.a(x).sum(),)]},
        lambda m, x: [m.a(x), 3, "name", None],
        lambda m, x: (m.a(x), m.a(x)),
        lambda m, x: (x, m.a(x)),
        lambda m, x: (m.a(x), m.a.weight, m.b.bias),
        lambda m, x: (m.a(x), m.a(x) > 0, m.a(x).argmax(1)),
        lambda m, x: (m.a(x), m.a(x).detach() * 2),
        lambda m, x: (m.a(x), x.detach()),
        lambda m, x: (m.a(x)[:, :1], torch.zeros_like(x), x.new_ones(3)),
    ],
    ids=["tuple", "nested", "constants", "twice", "input", "parameters", "masks", "detached", "detached input", "made"],
)
def test_outputs(function: Callable[..., Any], mode: str) -> None:
    net = Returns(function)
    assert_same_step(net, image(), tile=4, mode=mode)
    plain, tiled = net(image()), tilegrad.tile(net, tile=4, mode=mode)(image())
    flat, spec = torch.utils._pytree.tree_flatten(plain)
    found, other = torch.utils._pytree.tree_flatten(tiled)
    assert spec == other
    for a, b in zip(flat, found, strict=True):
        assert (a.dtype, a.requires_grad) == (b.dtype, b.requires_grad) if isinstance(a, Tensor) else a == b


@every_mode
def test_only_one_output_is_used(mode: str) -> None:
    net = Returns(lambda m, x: (m.a(x), m.b(m.a(x))))
    plain, tiled = copy.deepcopy(net), tilegrad.tile(net, tile=4, mode=mode)
    for run in (plain, tiled):
        run(image())[0].sum().backward()
    assert net.b.weight.grad is None and plain.b.weight.grad is None
    assert torch.equal(net.a.weight.grad, plain.a.weight.grad)


@every_mode
def test_several_inputs(mode: str) -> None:
    net = Returns(lambda m, x, y, mask, scale, other=None: m.b(torch.where(mask > 0, m.a(x), m.a(y) * scale)))
    mask = integer_tensor((1, 1, 13, 11), seed=5).long()
    assert_same_step(net, [image(), image(seed=1), mask, 3], tile=4, mode=mode)
    assert_same_step(net, [image(), image(seed=1), mask.bool(), 2, None], tile=4, mode=mode)


@every_mode
def test_inputs_in_dictionaries_and_by_name(mode: str) -> None:
    net = Returns(lambda m, pair, *, y: {"out": m.a(pair["x"]) + m.a(y)})
    x, y = image().requires_grad_(), image(seed=1).requires_grad_()
    plain = net({"x": x}, y=y)["out"]
    tiled = tilegrad.tile(net, tile=4, mode=mode)({"x": x}, y=y)["out"]
    assert torch.equal(plain, tiled)
    for a, b in zip(torch.autograd.grad(plain.sum(), [x, y]), torch.autograd.grad(tiled.sum(), [x, y]), strict=True):
        assert torch.equal(a, b)


@every_mode
@pytest.mark.parametrize("shape", [(2, 13, 11), (3, 2, 5, 7), (1, 2, 3, 2), (1, 2, 2, 13), (2, 2, 40, 3)])
def test_shapes_and_tiles(shape: tuple[int, ...], mode: str) -> None:
    for tile in (1, 3, 4, 7, 100):
        if tile > 1 or len(shape) < 4 or shape[-2] < 10:
            assert_same_step(make_net(), image(*shape), tile=tile, mode=mode)


@every_mode
@pytest.mark.parametrize("end", ["image", "mean", "gate"])
def test_an_empty_batch(end: str, mode: str) -> None:
    ends: dict[str, Callable[[Tensor], Tensor]] = {
        "image": lambda y: y,
        "mean": lambda y: y.mean((2, 3)),
        "gate": lambda y: y * y.mean((2, 3), keepdim=True),
    }
    assert_same_step(Returns(lambda m, x: ends[end](m.b(m.a(x)))), image(0, 2, 13, 11), tile=4, mode=mode)


@every_mode
def test_the_batch_is_an_axis(mode: str) -> None:
    for options in ({"axes": "n"}, {"axes": "nhw", "tile": (2, 5, 4)}, {"tile": {"n": 1, "w": 4}}):
        assert_same_step(make_net(), image(5, 2, 9, 8), mode=mode, **{"tile": 2, **options})


@every_mode
@pytest.mark.parametrize("how", ["transposed", "expanded", "step", "channels_last"])
def test_inputs_of_any_layout(how: str, mode: str) -> None:
    x = {
        "transposed": lambda: image(1, 2, 11, 13).mT,
        "expanded": lambda: image(1, 1, 1, 11).expand(1, 2, 13, 11),
        "step": lambda: image(1, 4, 26, 11)[:, ::2, ::2],
        "channels_last": lambda: image().to(memory_format=torch.channels_last),
    }[how]()
    plain, tiled = make_net(), tilegrad.tile(make_net(), tile=4, mode=mode)
    a, b = x.detach().requires_grad_(), x.detach().requires_grad_()
    left, right = plain(a), tiled(b)
    left.mT.sum().backward()
    right.mT.sum().backward()
    assert torch.equal(left, right) and torch.equal(a.grad, b.grad)


@every_mode
def test_channels_last_is_kept(mode: str) -> None:
    net = make_net().to(memory_format=torch.channels_last)
    x = image(2, 2, 13, 11).to(memory_format=torch.channels_last).requires_grad_()
    out = tilegrad.tile(net, tile=4, mode=mode)(x)
    out.backward(torch.ones_like(out))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
    assert_same_step(net, x, tile=4, mode=mode)


@every_mode
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_where_it_is(bad: float, mode: str) -> None:
    x = image()
    x[0, 1, 6, 5] = bad
    net = Returns(lambda m, x: F.avg_pool2d(m.a(x), 2).relu())
    if mode == "gather" and bad == float("inf"):  # it masks by zeros, and zero times infinity is not a number
        out = tilegrad.tile(net, tile=4, mode=mode)(x)
        torch.testing.assert_close(out, net(x), rtol=0, atol=0, equal_nan=True)
        return
    step = assert_same_step(net, x, tile=4, mode=mode)
    assert 0 < int(step.outputs["output 0"].isfinite().sum()) < step.outputs["output 0"].numel()


# What requires a gradient


@every_mode
@pytest.mark.parametrize("graded", ["input", "a.weight", "b.bias", "input a.bias b.weight", "a.weight b.weight", ""])
def test_gradients_only_where_they_are_wanted(graded: str, mode: str) -> None:
    net = Returns(lambda m, x: (m.b(m.a(x)), m.a(x).detach()))
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in graded.split())
    constant = () if "input" in graded else (0,)
    step = assert_same_step(net, image(), constant=constant, tile=4, mode=mode)
    assert len(step.gradients) == len(graded.split())


def test_the_same_plan_is_not_used_for_other_gradients() -> None:
    net = make_net()
    tiled = tilegrad.tile(net, tile=4)
    tiled(image()).sum().backward()
    net[3].weight.requires_grad_(False)
    net.zero_grad()
    tiled(image().requires_grad_()).sum().backward()
    assert net[3].weight.grad is None and net[0].weight.grad is not None


@every_mode
def test_in_the_middle_of_a_larger_graph(mode: str) -> None:
    class Larger(nn.Module):
        def __init__(self, mode: str | None) -> None:
            super().__init__()
            self.before, self.after = nn.Conv2d(2, 2, 3), nn.Conv2d(3, 1, 3)
            integer_module(self)
            self.middle = make_net() if mode is None else tilegrad.tile(make_net(), tile=4, mode=mode)

        def forward(self, x: Tensor) -> Tensor:
            y = self.middle(self.before(x))
            return self.after(y + self.middle(self.before(x) * 2))

    plain, tiled = Larger(None), Larger(mode)
    assert list(plain.state_dict()) == list(tiled.state_dict())
    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in tiled.named_parameters()]
    assert_same(run_step(tiled, [image()]), run_step(plain, [image()]))


# More than one call


@every_mode
def test_several_calls_before_one_backward(mode: str) -> None:
    plain, tiled = make_net(), tilegrad.tile(make_net(), tile=4, mode=mode)
    for run in (plain, tiled):
        (run(image()).sum() + (2 * run(image(seed=1))).sum() + run(image(2, 2, 7, 9)).square().sum()).backward()
    for a, b in zip(plain.parameters(), tiled.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@every_mode
def test_a_call_on_the_result_of_a_call(mode: str) -> None:
    net = Returns(lambda m, x: m.a(x)[:, :2])
    plain, tiled = copy.deepcopy(net), tilegrad.tile(net, tile=4, mode=mode)
    a, b = image().requires_grad_(), image().requires_grad_()
    plain(plain(a)).sum().backward()
    tiled(tiled(b)).sum().backward()
    assert torch.equal(a.grad, b.grad) and torch.equal(plain.a.weight.grad, net.a.weight.grad)


@every_mode
def test_gradients_accumulate(mode: str) -> None:
    plain, tiled = make_net(), tilegrad.tile(make_net(), tile=4, mode=mode)
    for seed in range(3):
        for run in (plain, tiled):
            run(image(seed=seed)).sum().backward()
    for a, b in zip(plain.parameters(), tiled.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@every_mode
def test_backwards_in_another_order(mode: str) -> None:
    plain, tiled = make_net(), tilegrad.tile(make_net(), tile=4, mode=mode)
    for run in (plain, tiled):
        first, second = run(image()), run(image(seed=1))
        second.sum().backward()
        (3 * first).sum().backward()
    for a, b in zip(plain.parameters(), tiled.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@every_mode
@pytest.mark.parametrize("reentrant", [True, False])
def test_inside_torchs_own_checkpoint(reentrant: bool, mode: str) -> None:
    plain, tiled = make_net(), tilegrad.tile(make_net(), tile=4, mode=mode)
    a, b = image().requires_grad_(), image().requires_grad_()
    plain(a).sum().backward()
    torch.utils.checkpoint.checkpoint(tiled, b, use_reentrant=reentrant).sum().backward()
    assert torch.equal(a.grad, b.grad)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), tiled.parameters(), strict=True))


@every_mode
def test_shared_weights(mode: str) -> None:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    net = Returns(lambda m, x: m.c(m.d(m.c(m.a(x)).clamp(-9, 9))), c=conv, d=conv)
    assert_same_step(net, image(), tile=4, mode=mode)
    tied = Returns(lambda m, x: F.conv2d(m.b(m.a(x)), m.b.weight.mT.transpose(0, 1)))
    assert_same_step(tied, image(), tile=4, mode=mode)


@every_mode
def test_parametrized_weights(mode: str) -> None:
    net = nn.Sequential(weight_norm(nn.Conv2d(2, 3, 3)), nn.ReLU(), weight_norm(nn.Conv2d(3, 2, 3))).double()
    assert_same_step(net, image(), exact=False, tolerance=1e-12, tile=4, mode=mode)
