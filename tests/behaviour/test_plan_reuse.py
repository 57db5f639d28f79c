"""A model is changed after its first call. What was planned for the old one must not run for the new one."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loops import CLOSE, Net, backward, compare, conv, exact_or_refused, image, once, original, photo, whole_numbers
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations


class Kind(enum.Enum):
    PLAIN, NEGATED = 1, -1


@dataclass
class Config:
    gain: int = 2
    stages: list[int] = field(default_factory=lambda: [1, 2])
    deep: Any = field(default_factory=lambda: SimpleNamespace(shift=1))


OFFSET = 1
TABLE = {"offset": [1]}


def amplify(y: Tensor) -> Tensor:
    return y * 2


class Knobs(nn.Module):
    """A model with everything one may turn."""

    steps = 1  # of the class

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv(2, 4), conv(4, 2)
        self.blocks = nn.Sequential(conv(4, 4), nn.ReLU(), nn.MaxPool2d(3, 1, 1))
        self.layers = nn.ModuleList([conv(4, 4), nn.LeakyReLU(0.5)])
        self.drop = nn.Dropout(0.0)
        self.alpha, self.mode, self.kind = 2, "add", Kind.PLAIN
        self.nested = {"weights": [1, {"w": 2}], "on": True}
        self.config, self.space = Config(), SimpleNamespace(gain=1)
        self.fixed = torch.ones(4, 1, 1, dtype=torch.float64)
        self.inside = [torch.ones(4, 1, 1, dtype=torch.float64)]
        self.register_buffer("shift", torch.ones(4, 1, 1))
        self.register_buffer("hidden", torch.ones(4, 1, 1), persistent=False)
        self.array = np.ones(3)
        self.act: Callable[[Tensor], Tensor] = torch.abs
        self.bounds = (-99, 99)
        self.chosen = {1, 2}

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * self.alpha + self.fixed * self.inside[0] + self.shift * self.hidden + OFFSET
        y = y * self.nested["weights"][1]["w"] if self.nested["on"] else y - sum(self.chosen)
        y = y * self.config.gain * self.space.gain + len(self.config.stages) + self.config.deep.shift
        for _ in range(self.steps):
            y = self.blocks(y).clamp(*self.bounds)
        for layer in self.layers:
            y = layer(y)
        y = self.act(y) if self.mode == "add" else -self.act(y)
        return self.last(self.drop(y * self.kind.value)) * int(self.array[1]) + TABLE["offset"][0]


def set_item(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


def untie(m: Any) -> None:
    m.blocks[0].weight = nn.Parameter(m.blocks[0].weight.detach().clone().neg())


def write(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2).add_(1)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "number": lambda m: setattr(m, "alpha", 3),
    "a whole number becomes a fraction": lambda m: setattr(m, "alpha", 2.5),
    "text": lambda m: setattr(m, "mode", "sub"),
    "enum": lambda m: setattr(m, "kind", Kind.NEGATED),
    "tuple": lambda m: setattr(m, "bounds", (-5, 5)),
    "set": lambda m: (m.nested.update(on=False), m.chosen.add(7)),
    "nested dict": lambda m: set_item(m.nested["weights"][1], "w", 5),
    "flag in a dict": lambda m: set_item(m.nested, "on", False),
    "nested list": lambda m: set_item(m.nested["weights"], 1, {"w": 7}),
    "dataclass": lambda m: setattr(m.config, "gain", 4),
    "list in a dataclass": lambda m: m.config.stages.append(3),
    "object in a dataclass": lambda m: setattr(m.config.deep, "shift", 9),
    "config replaced": lambda m: setattr(m, "config", Config(gain=7)),
    "namespace": lambda m: setattr(m.space, "gain", 3),
    "number of steps": lambda m: setattr(m, "steps", 2),
    "numpy array in place": lambda m: set_item(m.array, 1, 4),
    "tensor replaced": lambda m: setattr(m, "fixed", m.fixed * 5),
    "tensor of another shape": lambda m: setattr(m, "fixed", torch.tensor(5.0, dtype=torch.float64)),
    "tensor in place": lambda m: m.fixed.mul_(5),
    "tensor in a list replaced": lambda m: set_item(m.inside, 0, m.inside[0] * 5),
    "tensor in a list in place": lambda m: m.inside[0].mul_(5),
    "buffer replaced": lambda m: setattr(m, "shift", m.shift * 5),
    "buffer in place": lambda m: m.shift.mul_(5),
    "buffer of another shape": lambda m: setattr(m, "shift", torch.tensor(5.0, dtype=torch.float64)),
    "hidden buffer in place": lambda m: m.hidden.mul_(5),
    "parameter replaced": lambda m: setattr(m.first, "weight", nn.Parameter(m.first.weight.detach() * -1)),
    "parameter in place": lambda m: write(m.first.weight),
    "parameter through data": lambda m: m.first.weight.data.mul_(3),
    "parameter's data replaced": lambda m: setattr(m.first.weight, "data", m.first.weight.data * 3),
    "parameter frozen": lambda m: m.first.weight.requires_grad_(False),
    "all but one frozen": lambda m: (m.requires_grad_(False), m.last.bias.requires_grad_()),
    "parameter removed": lambda m: setattr(m.first, "bias", None),
    "parameters tied": lambda m: setattr(m.layers[0], "weight", m.blocks[0].weight),
    "weights loaded": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "layer replaced": lambda m: setattr(m, "first", conv(2, 4, bias=False)),
    "layer of another kind": lambda m: set_item(m.blocks, 1, nn.Hardtanh(-7, 7)),
    "layer without weights replaced by one with": lambda m: set_item(m.blocks, 1, conv(4, 4)),
    "layer added": lambda m: m.blocks.append(nn.Threshold(3, -3)),
    "layer removed": lambda m: m.blocks.__delitem__(1),
    "layer inserted in a list": lambda m: m.layers.insert(0, nn.ReLU6()),
    "layers in another order": lambda m: setattr(m, "layers", nn.ModuleList(reversed(m.layers))),
    "layers swapped": lambda m: (x := m.layers[0], set_item(m.layers, 0, m.layers[1]), set_item(m.layers, 1, x)),
    "layer replaced by identity": lambda m: setattr(m, "blocks", nn.Identity()),
    "dilation": lambda m: (setattr(m.first, "dilation", (2, 2)), setattr(m.first, "padding", (2, 2))),
    "stride": lambda m: setattr(m.last, "stride", (2, 2)),
    "padding mode": lambda m: (
        setattr(m.first, "padding_mode", "circular"),
        setattr(m.first, "_reversed_padding_repeated_twice", [1, 1, 1, 1]),
    ),
    "pool": lambda m: setattr(m.blocks[2], "kernel_size", 1) or setattr(m.blocks[2], "padding", 0),
    "slope": lambda m: setattr(m.layers[1], "negative_slope", 0.25),
    "function": lambda m: setattr(m, "act", torch.neg),
    "lambda": lambda m: setattr(m, "act", lambda y: y * 3),
    "partial": lambda m: setattr(m, "act", partial(F.leaky_relu, negative_slope=0.5)),
    "forward of a part": lambda m: setattr(m.first, "forward", lambda x, f=m.first.forward: f(x) * 2),
    "forward of the whole": lambda m: setattr(m, "forward", MethodType(lambda self, x: self.last(self.first(x)), m)),
    "dropout of nothing": lambda m: setattr(m.drop, "p", 1.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(change: Callable[[Any], Any]) -> None:
    def loop(model: nn.Module) -> Any:
        first = once(model)
        model.zero_grad()
        change(original(model))
        return first, once(model), once(model)

    compare(Knobs, loop)


@pytest.mark.parametrize("how", ["there and back", "through the wrapper"])
def test_a_setting_changes_and_changes_back(how: str) -> None:
    def loop(model: nn.Module) -> Any:
        at = model if how == "through the wrapper" else original(model)
        found = []
        for alpha in (2, 3, 2, 5, 3):
            at.alpha = alpha
            found.append(once(model))
        return found, model.alpha

    compare(Knobs, loop)


def test_a_setting_that_changes_at_every_step() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for step in range(12):
            model.alpha = step
            found.append(once(model))
        return found

    compare(Knobs, loop)


def test_globals_that_forward_reads() -> None:
    def loop(model: nn.Module) -> Any:
        global OFFSET
        OFFSET, TABLE["offset"] = 1, [1]
        found = [once(model)]
        OFFSET = 5
        found.append(once(model))
        TABLE["offset"][0] = 7
        return [*found, once(model)]

    try:
        compare(Knobs, loop)
    finally:
        globals().update(OFFSET=1, TABLE={"offset": [1]})


def test_an_attribute_of_the_class() -> None:
    class Model(Knobs):
        pass

    def loop(model: nn.Module) -> Any:
        Model.steps = 1
        first = once(model)
        Model.steps = 2
        return first, once(model)

    compare(Model, loop)


def test_a_method_of_the_class_is_replaced() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y.relu()

    def loop(model: nn.Module) -> Any:
        Model.middle = lambda self, y: y.relu()
        first = once(model)
        Model.middle = lambda self, y: y * 3
        return first, once(model)

    compare(Model, loop)


def test_a_variable_of_an_enclosing_function() -> None:
    gain = 2

    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y.relu() * gain

    def loop(model: nn.Module) -> Any:
        nonlocal gain
        gain = 2
        first = once(model)
        gain = 5
        return first, once(model)

    compare(Model, loop)


def test_a_function_of_the_file_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return amplify(y)

    def loop(model: nn.Module) -> Any:
        first = once(model)
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}.amplify", lambda y: y * 7)
            return first, once(model)

    exact_or_refused(Model, loop)


def test_weights_are_tied_and_untied() -> None:
    def loop(model: nn.Module) -> Any:
        m = original(model)
        found = [once(model)]
        m.layers[0].weight = m.blocks[0].weight
        found.append(once(model))
        untie(m)
        return [*found, once(model)]

    compare(Knobs, loop)


def test_weights_are_frozen_and_thawed() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for graded in (True, False, True):
            model.first.requires_grad_(graded)
            model.zero_grad()
            given = image().requires_grad_(not graded)
            found.append((backward(model(given)), given.grad, model.first.weight.grad))
        return found

    compare(Knobs, loop)


def test_a_part_is_put_into_eval() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4), nn.Dropout(0.5)))

    def loop(model: nn.Module) -> Any:
        original(model)[2][1].eval()
        found = [backward(model(photo()))]
        original(model)[1].eval()
        found.append(backward(model(photo())))
        original(model)[2][0].train(False)
        found.append(backward(model(photo())))
        original(model)[1].train()
        return [*found, backward(model(photo()))]

    compare(lambda: make().double(), loop, tolerance=CLOSE)


NORMS: dict[str, Callable[[nn.BatchNorm2d], Any]] = {
    "momentum": lambda n: setattr(n, "momentum", 0.5),
    "momentum none": lambda n: setattr(n, "momentum", None),
    "eps": lambda n: setattr(n, "eps", 0.5),
    "reset": lambda n: n.reset_running_stats(),
    "eval": lambda n: n.eval(),
    "no statistics in eval": lambda n: (n.eval(), setattr(n, "running_mean", None), setattr(n, "running_var", None)),
    "statistics not tracked": lambda n: setattr(n, "track_running_stats", False),
    "statistics set": lambda n: (n.running_mean.fill_(1), n.eval()),
    "not affine": lambda n: (setattr(n, "weight", None), setattr(n, "bias", None)),
    "frozen": lambda n: n.requires_grad_(False),
}


@pytest.mark.parametrize("change", NORMS.values(), ids=NORMS)
def test_batch_norm_is_changed(change: Callable[[nn.BatchNorm2d], Any]) -> None:
    def loop(model: nn.Module) -> Any:
        found = [backward(model(photo(2, 2, 16, 16)))]
        change(original(model)[1])
        return [*found, *(backward(model(photo(2, 2, 16, 16, seed=seed))) for seed in (1, 2))]

    compare(
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)).double(),
        loop,
        tolerance=CLOSE,
    )


def test_parametrizations_come_and_go() -> None:
    class Doubled(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w * 2

    def loop(model: nn.Module) -> Any:
        m = original(model)
        found = [once(model)]
        register_parametrization(m.first, "weight", Doubled())
        found.append(once(model))
        remove_parametrizations(m.first, "weight")
        return [*found, once(model)]

    compare(Net, loop)


def test_two_models_of_one_class_do_not_share_plans() -> None:
    other = whole_numbers(Knobs())
    other.alpha = 9

    def loop(model: nn.Module) -> Any:
        first = once(model)
        model.load_state_dict(other.state_dict())
        model.alpha = other.alpha
        return first, once(model)

    compare(Knobs, loop)
