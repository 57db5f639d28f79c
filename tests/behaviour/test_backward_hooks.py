"""Backward hooks of modules and hooks of tensors: on the whole, on parts, on parameters, inside and outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import Net, backward, compare, exact_or_refused, graded, image, once, original, refused, twice
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import TilegradError


def hooked(setting: Callable[[Net], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = Net()
        setting(net)
        return net

    return make


BACKWARD: dict[str, Callable[[nn.Module], Any]] = {
    "hook": lambda m: m.register_full_backward_hook(lambda m, into, out: (into[0] * 2,)),
    "pre-hook": lambda m: m.register_full_backward_pre_hook(lambda m, out: (out[0] * 3,)),
    "both": lambda m: (
        m.register_full_backward_hook(lambda m, into, out: (into[0] + 1,)),
        m.register_full_backward_pre_hook(lambda m, out: (out[0] * 3,)),
    ),
}
every_backward = pytest.mark.parametrize("add", BACKWARD.values(), ids=BACKWARD)


@every_backward
def test_a_backward_hook_on_the_module_that_is_tiled(add: Callable[[nn.Module], Any]) -> None:
    compare(hooked(add), lambda m: (graded(m), graded(m)))


@every_backward
@pytest.mark.parametrize("whose", [lambda m: m, original], ids=["of the wrapper", "of the model"])
def test_a_backward_hook_is_added_later(add: Callable[[nn.Module], Any], whose: Any) -> None:
    compare(Net, lambda m: (graded(m), add(whose(m)) and None, graded(m)))


def test_a_backward_hook_on_the_whole_sees_both_gradients() -> None:
    def loop(model: nn.Module) -> Any:
        seen: list[Any] = []
        model.register_full_backward_hook(lambda m, into, out: seen.append((into, out)))
        return graded(model), seen

    compare(Net, loop)


@every_backward
def test_a_backward_hook_on_a_part_is_refused(add: Callable[[nn.Module], Any]) -> None:
    refused(hooked(lambda net: add(net.first)), graded, "first")


def test_a_backward_hook_deep_in_the_model_is_named() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Net(), nn.Sequential(Net(), nn.ReLU()))
            self.blocks[1][1].register_full_backward_hook(lambda *_: None)

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks(x)

    refused(Deep, graded, r"blocks\.1\.1")


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_an_old_backward_hook_on_a_part_is_refused() -> None:
    refused(hooked(lambda net: net.last.register_backward_hook(lambda m, into, out: None)), graded, "last")


def test_a_backward_hook_on_a_part_that_comes_later() -> None:
    net = Net().double()
    tiled = tilegrad.tile(net, tile=8)
    once(tiled)
    handle = net.last.register_full_backward_hook(lambda m, into, out: (into[0] * 2,))
    with pytest.raises(TilegradError, match="last"):
        tiled(image())
    handle.remove()
    assert torch.allclose(tiled(image()), net(image()), rtol=1e-12)


def test_a_backward_hook_without_gradients_does_no_harm() -> None:
    def loop(model: nn.Module) -> Any:
        with torch.no_grad():
            return model(image())

    exact_or_refused(hooked(lambda net: net.first.register_full_backward_hook(lambda *_: None)), loop)


# Hooks of tensors, inside


def middle(act: Callable[[nn.Module, Tensor], Any]) -> Callable[[], nn.Module]:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            act(self, y)
            return y.relu()

    return Model


def test_register_hook_in_forward_is_refused() -> None:
    refused(
        middle(lambda m, y: y.register_hook(lambda grad: grad * 2) if y.requires_grad else None), once, "register_hook"
    )


def test_a_hook_that_saves_gradients_for_a_heat_map_is_refused() -> None:
    class GradCam(Net):
        def save(self, grad: Tensor) -> None:
            self.gradients = grad

        def middle(self, y: Tensor) -> Tensor:
            if y.requires_grad:
                y.register_hook(self.save)
            return y.relu()

    refused(GradCam, once, "register_hook")


def test_retain_grad_in_forward_is_refused() -> None:
    refused(middle(lambda m, y: y.retain_grad()), once, "retain_grad")


def test_hooks_set_on_a_weight_in_forward_are_refused() -> None:
    def accumulated(model: nn.Module, y: Tensor) -> None:
        model.first.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))

    def hooked_weight(model: nn.Module, y: Tensor) -> None:
        model.first.weight.register_hook(lambda grad: grad * 2)

    for act, name in ((accumulated, "register_post_accumulate_grad_hook"), (hooked_weight, "register_hook")):
        tiled = tilegrad.tile(middle(act)().double(), tile=8)
        with pytest.raises(TilegradError, match=name):
            tiled(image())


# Hooks of tensors, outside


def test_hooks_on_parameters_change_gradients() -> None:
    def loop(model: nn.Module) -> Any:
        model.first.weight.register_hook(lambda grad: grad * 3)
        found = [once(model)]
        handle = model.last.bias.register_hook(lambda grad: grad.clamp(-1, 1))
        found.append(once(model))
        handle.remove()
        return [*found, once(model)]

    compare(Net, loop)


def test_an_optimizer_step_inside_backward() -> None:
    def loop(model: nn.Module) -> Any:
        def step(parameter: nn.Parameter) -> None:
            with torch.no_grad():
                parameter -= 2**-8 * parameter.grad
            parameter.grad = None

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        return twice(model)

    compare(Net, loop)


def test_hooks_on_inputs_and_outputs() -> None:
    def loop(model: nn.Module) -> Any:
        given = image().requires_grad_()
        seen: list[Tensor] = []
        given.register_hook(lambda grad: seen.append(grad.clone()))
        out = model(given)
        out.register_hook(lambda grad: grad * 2)
        out.retain_grad()
        backward(out)
        return given.grad, out.grad, seen

    compare(Net, loop)


def test_a_hook_on_the_gradient_function() -> None:
    def loop(model: nn.Module) -> Any:
        seen: list[Tensor] = []
        out = model(image().requires_grad_())
        out.grad_fn.register_prehook(lambda grads: seen.append(grads[0].clone()))
        backward(out)
        return seen

    compare(Net, loop)


def test_backward_hooks_for_all_modules_at_once() -> None:
    def loop(model: nn.Module) -> Any:
        def act(module: nn.Module, into: Any, out: Any) -> Any:
            return (into[0] * 2,) if isinstance(module, nn.Conv2d) and into[0] is not None else None

        handle = nn.modules.module.register_module_full_backward_hook(act)
        try:
            return graded(model)
        finally:
            handle.remove()

    exact_or_refused(Net, loop)
