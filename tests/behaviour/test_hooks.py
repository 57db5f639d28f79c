"""Hooks: on the module, on its parts, on parameters and tensors; set before and after the first call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from loops import Net, backward, compare, exact_or_refused, image, once, original, twice
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import TilegradError


def doubled(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out * 2


def tripled(module: nn.Module, args: Any, kwargs: Any, out: Tensor) -> Tensor:
    return out * 3


def lowered(module: nn.Module, args: Any) -> Any:
    return (args[0] - 1,)


def raised(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return (args[0] + 2,), kwargs


def hooked(setting: Callable[[Net], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = Net()
        setting(net)
        return net

    return make


# Forward hooks

HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "hook": lambda m: m.register_forward_hook(doubled),
    "hook with names": lambda m: m.register_forward_hook(tripled, with_kwargs=True),
    "pre-hook": lambda m: m.register_forward_pre_hook(lowered),
    "pre-hook with names": lambda m: m.register_forward_pre_hook(raised, with_kwargs=True),
    "two of them, the second first": lambda m: (
        m.register_forward_hook(doubled),
        m.register_forward_hook(lambda m, args, out: out + 1, prepend=True),
    )[0],
    "partial": lambda m: m.register_forward_hook(partial(lambda k, m, args, out: out * k, 3)),
}
every_hook = pytest.mark.parametrize("add", HOOKS.values(), ids=HOOKS)


@every_hook
def test_a_hook_on_a_part_changes_what_flows(add: Callable[[nn.Module], Any]) -> None:
    compare(hooked(lambda net: add(net.first)), twice)


@every_hook
def test_a_hook_on_a_part_comes_and_goes(add: Callable[[nn.Module], Any]) -> None:
    def loop(model: nn.Module) -> Any:
        found = [once(model)]
        handle = add(original(model).last)
        found.append(once(model))
        handle.remove()
        return [*found, once(model)]

    compare(Net, loop)


@every_hook
def test_a_hook_on_the_module_that_is_tiled(add: Callable[[nn.Module], Any]) -> None:
    compare(hooked(add), twice)


@every_hook
@pytest.mark.parametrize("whose", [lambda m: m, original], ids=["of the wrapper", "of the model"])
def test_a_hook_of_the_whole_comes_and_goes(add: Callable[[nn.Module], Any], whose: Any) -> None:
    def loop(model: nn.Module) -> Any:
        found = [once(model)]
        handle = add(whose(model))
        found.append(once(model))
        handle.remove()
        return [*found, once(model)]

    compare(Net, loop)


def test_a_hook_on_the_whole_is_called_once_per_call() -> None:
    def loop(model: nn.Module) -> Any:
        seen: list[str] = []
        model.register_forward_pre_hook(lambda *_: seen.append("before"))
        model.register_forward_hook(lambda *_: seen.append("after"))
        original(model).register_forward_hook(lambda *_: seen.append("after, set on the model"))
        return twice(model), seen

    compare(Net, loop)


def test_a_hook_whose_own_state_changes() -> None:
    class Gain:
        factor = 1

        def __call__(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
            return out * self.factor

    def loop(model: nn.Module) -> Any:
        gain = Gain()
        original(model).first.register_forward_hook(gain)
        found = [once(model)]
        gain.factor = 5
        return [*found, once(model)]

    exact_or_refused(Net, loop)


def test_a_hook_that_is_a_method_of_the_model() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.gain = 2
            self.first.register_forward_hook(self.amplify)

        def amplify(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
            return out * self.gain

    def loop(model: nn.Module) -> Any:
        found = [once(model)]
        model.gain = 3
        return [*found, once(model)]

    compare(Model, loop)


# Hooks that keep what they see


def test_features_kept_by_a_hook_on_its_module() -> None:
    def keep(module: nn.Module, args: Any, out: Tensor) -> None:
        module.features = out

    def loop(model: nn.Module) -> Any:
        found = []
        for seed in range(2):
            out = model(image(seed=seed))
            (out.sum() + 3 * original(model).first.features.square().sum()).backward()
            found.append(original(model).first.features)
        return found

    compare(hooked(lambda net: net.first.register_forward_hook(keep)), loop)


KEEPERS: dict[str, Callable[[Any, str], Callable[..., None]]] = {
    "dict": lambda store, name: lambda m, args, out: store.update({name: out}),
    "dict, detached": lambda store, name: lambda m, args, out: store.update({name: out.detach()}),
    "dict, input": lambda store, name: lambda m, args, out: store.update({name: args[0]}),
    "dict, copied to the host": lambda store, name: lambda m, args, out: store.update({name: out.detach().cpu()}),
}


@pytest.mark.parametrize("keeper", KEEPERS.values(), ids=KEEPERS)
def test_activations_kept_in_a_dictionary_outside(keeper: Callable[..., Any]) -> None:
    def loop(model: nn.Module) -> Any:
        store: dict[str, Tensor] = {}
        handles = [getattr(original(model), n).register_forward_hook(keeper(store, n)) for n in ("first", "last")]
        try:
            found = [
                (backward(model(image(seed=k))), {n: t.detach().clone() for n, t in store.items()}) for k in (0, 1)
            ]
        finally:
            for handle in handles:
                handle.remove()
        return found

    exact_or_refused(Net, loop)


def test_activations_kept_in_a_list_outside() -> None:
    def loop(model: nn.Module) -> Any:
        kept: list[Tensor] = []
        handle = original(model).first.register_forward_hook(lambda m, args, out: kept.append(out))
        try:
            out = model(image())
            (out.sum() + 2 * kept[0].sum()).backward()
            once(model)
        finally:
            handle.remove()
        return out, len(kept), kept[0]

    exact_or_refused(Net, loop)


def test_a_hook_that_counts_calls() -> None:
    def loop(model: nn.Module) -> Any:
        seen: list[Any] = []
        handle = original(model).first.register_forward_hook(lambda m, args, out: seen.append(tuple(out.shape)))
        try:
            found = twice(model)
        finally:
            handle.remove()
        return found, seen

    exact_or_refused(Net, loop)


def test_a_hook_that_raises_stops_the_call() -> None:
    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop("here")

    net = Net().double()
    tiled = tilegrad.tile(net, tile=8)
    handle = net.last.register_forward_hook(stop)
    with pytest.raises((Stop, TilegradError), match="here"):
        tiled(image())
    handle.remove()
    assert torch.allclose(tiled(image()), net(image()), rtol=1e-12)


def test_hooks_for_all_modules_at_once() -> None:
    def loop(model: nn.Module) -> Any:
        def act(module: nn.Module, args: Any, out: Any) -> Any:
            return out * 2 if isinstance(module, nn.Conv2d) else None

        handle = nn.modules.module.register_module_forward_hook(act)
        try:
            found = [once(model)]
        finally:
            handle.remove()
        return [*found, once(model)]

    exact_or_refused(Net, loop)
