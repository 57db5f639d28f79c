"""What a model writes down while it runs: losses, features, counters, caches, hidden states, running averages."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loops import Net, compare, image, once, original, twice
from torch import Tensor, nn

# Losses and features that forward leaves on the module


class Aux(Net):
    """The loss of a branch is left where the loop finds it."""

    def middle(self, y: Tensor) -> Tensor:
        self.aux = y.square().sum()
        return y.relu()


def test_an_auxiliary_loss_carries_its_gradient() -> None:
    def loop(model: nn.Module) -> Any:
        given = image().requires_grad_()
        for _ in range(2):
            (model(given).sum() + original(model).aux).backward()
        return given.grad

    compare(Aux, loop)


def test_an_auxiliary_loss_alone() -> None:
    def loop(model: nn.Module) -> Any:
        model(image())
        model.aux.backward()
        return model.aux

    compare(Aux, loop)


def test_auxiliary_losses_of_several_calls() -> None:
    def loop(model: nn.Module) -> Any:
        total = torch.zeros((), dtype=torch.float64)
        for seed in range(3):
            total = total + model(image(seed=seed)).sum() + 2 * model.aux
        total.backward()
        return total

    compare(Aux, loop)


def test_an_auxiliary_loss_only_in_training() -> None:
    class Model(Net):
        aux: Tensor | None = None

        def middle(self, y: Tensor) -> Tensor:
            self.aux = y.sum() if self.training else None
            return y.relu()

    def loop(model: nn.Module) -> Any:
        found = [(once(model), model.aux)]
        found.append((model.eval()(image()).detach(), model.aux))
        return [*found, (once(model.train()), model.aux)]

    compare(Model, loop)


def test_an_auxiliary_loss_without_gradients() -> None:
    def loop(model: nn.Module) -> Any:
        with torch.no_grad():
            model(image())
        quiet = model.aux
        model(image())
        return quiet, model.aux

    compare(Aux, loop)


def test_an_auxiliary_loss_deep_in_the_model_is_summed_by_the_loop() -> None:
    def loop(model: nn.Module) -> Any:
        out = model(image())
        aux = sum(m.aux for m in model.modules() if hasattr(m, "aux"))
        (out.sum() + aux).backward()
        return out

    compare(lambda: nn.Sequential(Aux(), nn.ReLU(), Aux()), loop)


@pytest.mark.parametrize("kept", ["y", "y.detach()", "y.mean((2, 3))", "y.clone()", "[y, {'n': y * 2}]", "y.shape"])
def test_what_is_kept_of_the_last_call(kept: str) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            self.last_seen = eval(kept, {"y": y})
            return y.relu()

    compare(Model, lambda m: [(once(m), original(m).last_seen) for _ in range(2)])


def test_the_input_is_kept() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = x
            return super().forward(x)

    def loop(model: nn.Module) -> Any:
        given = image().requires_grad_()
        (model(given).sum() + model.seen.square().sum()).backward()
        return given.grad, model.seen

    compare(Model, loop)


def test_a_list_of_features_emptied_in_forward() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.feats = []
            y = self.first(x)
            self.feats.append(y)
            z = self.last(y.relu())
            self.feats.append(z * 2)
            return z

    def loop(model: nn.Module) -> Any:
        found = []
        for seed in range(2):
            out = model(image(seed=seed))
            (out.sum() + sum((k + 2) * f.sum() for k, f in enumerate(model.feats))).backward()
            found.append((out, list(model.feats)))
        return found

    compare(Model, loop)


def test_a_list_of_features_cleared_by_the_loop() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.feats: list[Tensor] = []

        def middle(self, y: Tensor) -> Tensor:
            self.feats.append(y)
            return y.relu()

    def loop(model: nn.Module) -> Any:
        feats = model.feats  # the loop's own reference to the list
        found = []
        for seed in range(2):
            feats.clear()
            out = model(image(seed=seed))
            (out.sum() + 3 * feats[0].sum()).backward()
            found.append((out, len(feats)))
        return found

    compare(Model, loop)


def test_a_list_that_grows() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.history: list[Tensor] = []

        def middle(self, y: Tensor) -> Tensor:
            self.history.append(y.detach().amax())
            return y.relu()

    compare(Model, lambda m: (twice(m), twice(m), list(m.history)))


STORES: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Any]]] = {
    "dict": (dict, lambda s, y: s.update(y=y.detach(), n=len(s))),
    "meter of lists": (lambda: defaultdict(list), lambda s, y: s["loss"].append(y.detach().sum())),
    "queue": (lambda: deque(maxlen=2), lambda s, y: s.append(y.detach().amax())),
    "counter": (Counter, lambda s, y: s.update(calls=1)),
    "object": (lambda: SimpleNamespace(total=0, last=None), lambda s, y: (setattr(s, "last", y.detach()), s)),
    "nested": (lambda: {"a": [{"b": 0}]}, lambda s, y: s["a"][0].update(b=s["a"][0]["b"] + 1)),
    "set": (set, lambda s, y: s.add(tuple(y.shape))),
}


@pytest.mark.parametrize(("make", "write"), STORES.values(), ids=STORES)
def test_what_is_kept_in_a_container(make: Callable[[], Any], write: Callable[[Any, Tensor], Any]) -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.store = make()

        def middle(self, y: Tensor) -> Tensor:
            write(self.store, y)
            return y.relu()

    compare(Model, lambda m: (twice(m), once(m)))


def test_what_a_parent_writes_on_its_part() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            self.first.activation = y
            self.last.gain = 2
            return y.relu() * self.last.gain

    compare(Model, lambda m: (twice(m), original(m).first.activation))


def test_a_weight_as_it_was_used() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.weight_used = self.first.weight.clamp(-1, 1)
            return self.last(F.conv2d(x, self.weight_used, padding=1))

    def loop(model: nn.Module) -> Any:
        (model(image()).sum() + model.weight_used.square().sum()).backward()
        return model.weight_used

    compare(Model, loop)
