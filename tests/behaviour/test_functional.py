"""Checkpoints, `functional_call` and function transforms, inside a model and around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loops import CLOSE, Net, backward, between, compare, conv, exact_or_refused, graded, image, once, photo
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import tilegrad
from tilegrad.errors import TilegradError

# Checkpoints inside

CHECKPOINTS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "reentrant": lambda m, y: checkpoint(m.last, y, use_reentrant=True),
    "not reentrant": lambda m, y: checkpoint(m.last, y, use_reentrant=False),
    "of a function": lambda m, y: checkpoint(lambda t: m.last(t.relu()) * 2, y, use_reentrant=False),
    "with names": lambda m, y: checkpoint(m.last, input=y, use_reentrant=False),
    "sequential": lambda m, y: checkpoint_sequential(
        [nn.ReLU(), m.last, nn.Hardtanh(-9, 9)], 2, y, use_reentrant=False
    ),
}


@pytest.mark.parametrize("run", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoints_inside_forward(run: Callable[[nn.Module, Tensor], Tensor]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            return run(self, self.first(x))

    def loop(model: nn.Module) -> Any:
        return graded(model), graded(model.eval())

    compare(Model, loop)


def test_checkpoints_of_blocks_with_batch_norm() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()) for _ in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
            return x

    def loop(model: nn.Module) -> Any:
        """Plain updates the statistics again when it recomputes; what counts are gradients and outputs."""
        out = backward(model(photo(2, 2, 16, 16)))
        grads = [p.grad for p in model.parameters()]
        for norm in (block[1] for block in model.blocks):
            norm.reset_running_stats()
        return out, grads

    compare(lambda: Model().double(), loop, tolerance=CLOSE)


# functional_call


def test_a_call_with_other_parameters() -> None:
    def loop(model: nn.Module) -> Any:
        first = once(model)
        other = {n: (p.detach() * 2).requires_grad_() for n, p in model.named_parameters()}
        given = image().requires_grad_()
        out = backward(functional_call(model, other, (given,)))
        return first, out, [p.grad for p in other.values()], given.grad, once(model)

    compare(Net, loop)


def test_a_call_with_some_parameters_that_were_computed() -> None:
    def loop(model: nn.Module) -> Any:
        source = image(4).requires_grad_()
        out = functional_call(model, {"first.bias": source * 2}, image())
        return backward(out), source.grad

    compare(Net, loop)


def test_a_call_with_other_buffers_and_names() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.ones(4, 1, 1))

        def forward(self, x: Tensor, *, gain: int) -> Tensor:
            self.shift.add_(1)
            return self.last(self.first(x) + self.shift) * gain

    def loop(model: nn.Module) -> Any:
        given = {"shift": torch.full((4, 1, 1), 5.0, dtype=torch.float64)}
        return backward(functional_call(model, given, (image(),), {"gain": 3})), given, model.shift

    compare(Model, loop)


def test_an_inner_step_of_meta_learning() -> None:
    """First order: the gradient of the fast weights reaches the slow ones."""

    def loop(model: nn.Module) -> Any:
        slow = dict(model.named_parameters())
        grads = torch.autograd.grad(model(image()).sum(), list(slow.values()))
        fast = {n: p - 2.0**-8 * g for (n, p), g in zip(slow.items(), grads, strict=True)}
        return backward(functional_call(model, fast, image(seed=1)))

    compare(Net, loop)


def test_a_call_of_a_parent_with_other_parameters() -> None:
    def loop(model: nn.Module) -> Any:
        parent = nn.Sequential(conv(2, 2), model)
        other = {n: (p.detach() * 2).requires_grad_() for n, p in parent.named_parameters()}
        return backward(functional_call(parent, other, image())), [p.grad for p in other.values()]

    compare(Net, loop)


# Function transforms

TRANSFORMS: dict[str, Callable[[nn.Module], Any]] = {
    "grad": lambda m: torch.func.grad(lambda x: m(x).sum())(image()),
    "vmap": lambda m: torch.vmap(m)(image(3, 1, 2, 16, 16)),
    "vjp": lambda m: torch.func.vjp(m, image())[0],
    "jvp": lambda m: torch.func.jvp(m, (image(),), (image(seed=1),))[1],
    "jacrev": lambda m: torch.func.jacrev(lambda x: m(x).sum((2, 3)))(image()),
    "functional jacobian": lambda m: torch.autograd.functional.jacobian(lambda x: m(x).sum((2, 3)), image()),
}


@pytest.mark.filterwarnings("ignore")  # torch's own, of torch.jit
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_function_transforms_are_exact_or_refused_by_name(transform: str) -> None:
    def loop(model: nn.Module) -> Any:
        return TRANSFORMS[transform](model).detach()

    net = Net()
    wanted, tiled = loop(net), tilegrad.tile(net, tile=8)
    try:
        found = loop(tiled)
    except TilegradError as error:
        assert isinstance(error, RuntimeError | ValueError) and error.hint
        assert any(word in str(error) for word in ("torch.func", "vmap", "transform", "second time", "forward-mode"))
    else:
        assert torch.equal(found, wanted)
    assert torch.equal(tiled(image()), net(image()))


def test_per_sample_gradients_are_refused_by_name() -> None:
    tiled = tilegrad.tile(Net(), tile=8)
    params = {n: p.detach() for n, p in tiled.named_parameters()}

    def loss(p: Any, x: Tensor) -> Tensor:
        return functional_call(tiled, p, (x[None],)).sum()

    with pytest.raises(TilegradError, match=r"vmap|torch\.func|transform"):
        torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, image(3, 2, 16, 16))


INSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "vmap": lambda y: torch.vmap(lambda t: t * t.sum())(y),
    "grad": lambda y: y + torch.func.grad(lambda t: t.square().sum())(y.detach()),
    "cond": lambda y: torch.cond(y.sum() > 0, lambda t: t * 2, lambda t: t * 3, (y,)),
    "einsum": lambda y: torch.einsum("nchw,dc->ndhw", y, y.new_ones(4, 4).triu()),
    "scan by hand": lambda y: torch.stack([y[:, :, : k + 1].sum(2) for k in range(y.shape[2])], 2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", INSIDE.values(), ids=INSIDE)
def test_transforms_and_control_flow_inside_forward(function: Callable[[Tensor], Tensor]) -> None:
    exact_or_refused(between(function), graded)


def test_a_forward_that_calls_other_parameters() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            doubled = {name: p * 2 for name, p in self.first.named_parameters()}
            return self.last(functional_call(self.first, doubled, x).relu())

    compare(Model, graded)


def test_a_weight_computed_from_another() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            weight = self.last.weight.transpose(0, 1)
            return F.conv2d(F.conv2d(y, weight.transpose(0, 1), padding=1), weight, padding=1)

    compare(Model, graded)
