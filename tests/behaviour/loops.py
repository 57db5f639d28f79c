"""Run a loop of a user twice, plain and tiled: both must leave the same behind, or the tiled one refuses clearly.

    compare(Model, loop)                    the same, number by number
    exact_or_refused(Model, loop)           the same, or a clear refusal at the first call
    refused(Model, loop, "register_hook")   a clear refusal at the first call, with these words

`Model` makes a module, `loop(model)` trains it and returns what it wants to be compared. What the module holds
afterwards (parameters, gradients, buffers, attributes, layers in lists, flags) is compared without being asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin

import tilegrad
from tilegrad.errors import TilegradError

Make = Callable[[], nn.Module]
Loop = Callable[[nn.Module], Any]

CLOSE = 1e-9  # of the largest entry: for what divides, in float64, where the order of a sum is seen in the last digits
QUIET = 1e-3  # of the largest entry of all: smaller tensors may be zero but for rounding (a bias before batch norm)


def compare(make: Make, loop: Loop, *, tile: int | None = 8, tolerance: float = 0.0, **options: Any) -> Any:
    """Run `loop` plain and tiled, and demand the same of both. Returns what the plain loop returned.

    tolerance 0: parameters and buffers are whole numbers, and every number must be equal.
    """
    wanted = _run(_made(make, tolerance), loop)
    found = _run(tilegrad.tile(_made(make, tolerance), tile=tile, **options), loop)
    _assert_same(found, wanted, tolerance)
    return wanted["returned"]


def exact_or_refused(make: Make, loop: Loop, *, tile: int | None = 8, tolerance: float = 0.0, match: str = "") -> None:
    """As `compare`; a refusal at the first call will do, too, if it is clear and leaves the module unharmed."""
    wanted = _run(_made(make, tolerance), loop)
    tiled = tilegrad.tile(_made(make, tolerance), tile=tile)
    with _watched() as calls:
        try:
            found = _run(tiled, loop)
        except TilegradError as error:
            _assert_clear(error, tiled.module, match)
            _assert_unharmed(calls, tiled.module, loop, wanted, tolerance)
            return
    _assert_same(found, wanted, tolerance)


def refused(make: Make, loop: Loop, match: str, *, tile: int | None = 8, tolerance: float = 0.0) -> TilegradError:
    """The tiled loop must raise at its first call: what (`match`, a pattern), where, and what to do instead."""
    wanted = _run(_made(make, tolerance), loop)
    tiled = tilegrad.tile(_made(make, tolerance), tile=tile)
    with _watched() as calls:
        try:
            _run(tiled, loop)
        except TilegradError as error:
            _assert_clear(error, tiled.module, match)
            _assert_unharmed(calls, tiled.module, loop, wanted, tolerance)
            return error
    raise AssertionError(f"nothing was refused, where /{match}/ was due")


# What loops are made of


class Net(nn.Module):
    """Two convolutions; models of the tests override what happens between them, or all of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv(2, 4), conv(4, 2)

    def middle(self, y: Tensor) -> Tensor:
        return y.relu()

    def forward(self, x: Tensor) -> Any:
        return self.last(self.middle(self.first(x)))


def conv(before: int, after: int, **options: Any) -> nn.Conv2d:
    """A convolution in whole numbers, wherever a model may hide it."""
    return whole_numbers(nn.Conv2d(before, after, 3, padding=1, **options))


def image(*shape: int, seed: int = 0) -> Tensor:
    """Whole numbers in float64."""
    return torch.randint(-2, 3, shape or (1, 2, 16, 16), generator=torch.Generator().manual_seed(seed)).double()


def photo(*shape: int, seed: int = 0) -> Tensor:
    """Any numbers in float64."""
    return torch.randn(shape or (1, 2, 16, 16), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole_numbers(module: Any) -> Any:
    """Make a module float64 with parameters and buffers of -2, -1, 1 or 2 (variances: 1 or 2), in place."""
    module.double()
    with torch.no_grad():
        for at, (name, tensor) in enumerate((*module.named_parameters(), *module.named_buffers())):
            if tensor.is_floating_point():
                draw = torch.Generator().manual_seed(at)
                size = torch.randint(1, 3, tensor.shape, generator=draw)
                sign = torch.randint(0, 2, tensor.shape, generator=draw) * 2 - 1
                tensor.copy_(size if name.endswith("running_var") else size * sign)
    return module


def backward(out: Tensor, seed: int = 7) -> Tensor:
    """Backward from a gradient that differs from pixel to pixel. Returns the output, detached."""
    out.backward(torch.randint(-2, 3, out.shape, generator=torch.Generator().manual_seed(seed)).to(out))
    return out.detach()


def original(model: nn.Module) -> nn.Module:
    """The module as it was given, wherever the loop holds the tiled one."""
    return model.module if isinstance(model, tilegrad.TiledModule) else model


def once(model: nn.Module) -> Tensor:
    """The shortest loop: one step."""
    return backward(model(image()))


def graded(model: nn.Module) -> tuple[Tensor, Tensor | None]:
    """One step, and the gradient of the image."""
    given = image().requires_grad_()
    return backward(model(given)), given.grad


def between(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """Makes models with a function in their middle."""

    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return function(y)

    return Model


def twice(model: nn.Module) -> list[Tensor]:
    """Two steps on two images."""
    return [backward(model(image(seed=seed))) for seed in range(2)]


# How they are run and compared


def seed_all(seed: int = 0) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _made(make: Make, tolerance: float) -> nn.Module:
    seed_all()
    model = make()
    return whole_numbers(model) if tolerance == 0 else model


def _run(model: nn.Module, loop: Loop) -> dict[str, Any]:
    seed_all()
    returned = loop(model)
    return {"returned": describe(returned), "left behind": describe(original(model))}


def describe(item: Any, seen: frozenset[int] = frozenset()) -> Any:
    """An object as nested dictionaries and lists of numbers and copied tensors: all that a user could look at."""
    if isinstance(item, UninitializedTensorMixin):
        return type(item).__name__
    if isinstance(item, Tensor):
        return _describe_tensor(item)
    if item is None or isinstance(item, bool | int | float | complex | str | bytes | Enum | torch.dtype | torch.device):
        return item
    if id(item) in seen or isinstance(item, type | types.FunctionType | types.ModuleType | torch.Generator):
        return type(item).__name__
    inside = functools.partial(describe, seen=seen | {id(item)})
    if isinstance(item, nn.Module):
        return _describe_module(item, inside)
    if isinstance(item, Mapping):
        return {"type": type(item).__name__, **{f"[{key!r}]": inside(value) for key, value in item.items()}}
    if isinstance(item, np.ndarray):
        return item.copy()
    if isinstance(item, set | frozenset):
        return {"type": type(item).__name__, "items": sorted(map(repr, item))}
    if isinstance(item, Sequence) or type(item).__name__ == "deque":
        return {"type": type(item).__name__, "items": [inside(value) for value in item]}
    if dataclasses.is_dataclass(item) or hasattr(item, "__dict__"):
        return {"type": type(item).__name__, **{name: inside(value) for name, value in vars(item).items()}}
    return type(item).__name__


def _describe_tensor(item: Tensor) -> dict[str, Any]:
    assert not isinstance(item, FakeTensor), "a FakeTensor was left behind"
    leaf = item.is_leaf and item.requires_grad
    return {
        "type": type(item).__name__,
        "value": item.detach().clone(),
        "requires_grad": item.requires_grad,
        "grad": describe(item.grad) if leaf else None,
    }


def _describe_module(module: nn.Module, inside: Callable[[Any], Any]) -> dict[str, Any]:
    kept = ("_parameters", "_buffers", "_modules")
    named = {name: value for name, value in vars(module).items() if not name.startswith("_") or name in kept}
    hooks = {name: len(value) for name, value in vars(module).items() if name.endswith("_hooks")}
    return {
        "type": type(module).__name__,
        **{name: inside(value) for name, value in sorted(named.items())},
        "attributes": sorted(vars(module)),
        "hooks": hooks,
    }


def _assert_same(found: Any, wanted: Any, tolerance: float, note: str = "plain and tiled differ") -> None:
    sizes = [_size(t) for t in _tensors(wanted)]
    assert any(sizes), "this loop compares nothing but zeros"
    wrong = _differences("", found, wanted, tolerance, QUIET * max(sizes))
    assert not wrong, "\n  ".join([note, *wrong[:20]])


def _tensors(item: Any) -> Iterator[Tensor]:
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, dict | list | tuple):
        for each in item.values() if isinstance(item, dict) else item:
            yield from _tensors(each)


def _size(tensor: Tensor) -> float:
    if not tensor.numel():
        return 0.0
    real = tensor.abs() if tensor.is_complex() else tensor.double().abs()
    return float(real.nan_to_num(0, 0, 0).max())


def _differences(at: str, found: Any, wanted: Any, tolerance: float, quiet: float) -> list[str]:
    if isinstance(wanted, Tensor) and isinstance(found, Tensor):
        return _tensor_differences(at, found, wanted, tolerance, quiet)
    if type(found) is not type(wanted):
        return [f"{at}: {_short(found)} where {_short(wanted)} was due"]
    if isinstance(wanted, dict):
        if list(found) != list(wanted):
            return [f"{at}: {_short(list(found))} where {_short(list(wanted))} were due"]
        return [w for k in wanted for w in _differences(f"{at} {k}", found[k], wanted[k], tolerance, quiet)]
    if isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            return [f"{at}: {len(found)} items where {len(wanted)} were due"]
        pairs = enumerate(zip(found, wanted, strict=True))
        return [w for k, (a, b) in pairs for w in _differences(f"{at}[{k}]", a, b, tolerance, quiet)]
    if isinstance(wanted, float):
        same = (
            found == wanted or (found != found and wanted != wanted) or abs(found - wanted) <= tolerance * abs(wanted)
        )
    else:
        same = np.array_equal(found, wanted) if isinstance(wanted, np.ndarray) else found == wanted
    return [] if same else [f"{at}: {_short(found)} where {_short(wanted)} was due"]


def _tensor_differences(at: str, found: Tensor, wanted: Tensor, tolerance: float, quiet: float) -> list[str]:
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return [f"{at}: {_short(found)} where {_short(wanted)} was due"]
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    if tolerance and (wanted.is_floating_point() or wanted.is_complex()):
        same |= (found - wanted).abs() <= tolerance * max(_size(wanted), quiet)
    if bool(same.all()):
        return []
    first = (~same).nonzero()[0].tolist()
    gap = _size(found * 1.0 - wanted * 1.0)
    return [f"{at}: {int((~same).sum())} of {same.numel()} differ, first at {first}, by up to {gap:.3g}"]


def _short(item: Any) -> str:
    text = f"{item.dtype}{list(item.shape)}" if isinstance(item, Tensor) else repr(item)
    return text if len(text) < 300 else f"{text[:300]}…"


# Refusals


@dataclasses.dataclass
class _Calls:
    """The calls of tiled modules: how many came back, and what the module held when the last one began."""

    done: int = 0
    before: Any = None


@contextmanager
def _watched() -> Iterator[_Calls]:
    calls = _Calls()
    forward = tilegrad.TiledModule.forward

    def watch(self: tilegrad.TiledModule, *args: Any, **kwargs: Any) -> Any:
        calls.before = describe(self.module)
        result = forward(self, *args, **kwargs)
        calls.done += 1
        return result

    with mock.patch.object(tilegrad.TiledModule, "forward", watch):
        yield calls


def _assert_clear(error: TilegradError, module: nn.Module, match: str) -> None:
    """What, where and what to do instead; where is a line of the user's, a part of his model, or an argument."""
    assert re.search(match, str(error)), f"/{match}/ is not in: {error}"
    assert error.where, f"a refusal that does not say where: {error}"
    assert error.hint, f"a refusal that does not say what to do: {error}"
    line = re.search(r"\b(test_\w+|loops|loop_networks)\.py:\d+", error.where)
    named = any(name and name in error.where for name, _ in module.named_modules()) or "argument" in error.where
    assert line or named, f"'{error.where}' is no line of the user's, no part of his model and no argument: {error}"


def _assert_unharmed(calls: _Calls, module: nn.Module, loop: Loop, wanted: Any, tolerance: float) -> None:
    """Refused at the first call, the module as it was before, and it still does what it did."""
    assert calls.done == 0, f"refused, but only after {calls.done} calls"
    if calls.before is not None:
        left = _differences("", describe(module), calls.before, 0.0, 0.0)
        assert not left, "\n  ".join(["the refusal left traces in the module", *left])
    _assert_same(_run(module, loop), wanted, tolerance, "the plain module does something else after the refusal")
