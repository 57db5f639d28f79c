"""The wrapper is the module: attributes, parts, modes, and life inside or around other modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import CLOSE, Net, backward, compare, conv, exact_or_refused, image, once, original, photo, twice
from torch import Tensor, nn


class Model(Net):
    """A model with settings, methods and properties."""

    family = "nets"

    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.calls = 2, 0
        self._beta = 1

    @property
    def beta(self) -> int:
        return self._beta

    @beta.setter
    def beta(self, value: int) -> None:
        self._beta = value

    def middle(self, y: Tensor) -> Tensor:
        return y.relu() * self.alpha + self.beta

    def predict(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self(x).argmax(1)

    def configure(self, **settings: Any) -> Model:
        for name, value in settings.items():
            setattr(self, name, value)
        return self

    @classmethod
    def kind(cls) -> str:
        return cls.family


# Attributes


def test_attributes_set_on_the_wrapper_reach_the_model() -> None:
    def loop(model: nn.Module) -> Any:
        first = once(model)
        model.alpha = 3
        model.beta = 4
        model.note = {"a": 1}
        return first, once(model), original(model).alpha, original(model).beta, original(model).note

    compare(Model, loop)


def test_attributes_set_on_the_model_are_seen_on_the_wrapper() -> None:
    def loop(model: nn.Module) -> Any:
        first = once(model)
        original(model).alpha = 3
        original(model).beta = 4
        return first, once(model), model.alpha, model.beta, model.family, model.kind()

    compare(Model, loop)


def test_attributes_are_deleted() -> None:
    def loop(model: nn.Module) -> Any:
        model.note = 1
        del model.note
        del model.calls
        with pytest.raises(AttributeError):
            model.note  # noqa: B018
        return once(model), hasattr(model, "calls"), hasattr(original(model), "calls"), getattr(model, "none", 7)

    compare(Model, loop)


def test_methods() -> None:
    def loop(model: nn.Module) -> Any:
        found = [once(model), model.predict(image())]
        model.configure(alpha=5)
        return [*found, once(model), model.predict(image()), model.alpha]

    compare(Model, loop)


def test_forward_called_by_its_name() -> None:
    compare(Model, lambda m: (backward(m.forward(image())), backward(m.forward(x=image(seed=1)))))


def test_a_layer_is_replaced_on_the_wrapper() -> None:
    def loop(model: nn.Module) -> Any:
        first = once(model)
        model.last = conv(4, 3)
        model.scale = nn.Parameter(torch.ones(1))
        model.register_buffer("more", torch.ones(2))
        return first, once(model), [n for n, _ in model.named_parameters()], list(original(model).state_dict())

    compare(Model, loop)


def test_parts_are_added_and_removed_on_the_wrapper() -> None:
    def loop(model: nn.Module) -> Any:
        model.add_module("extra", nn.ReLU())
        model.register_parameter("gain", None)
        names = [n for n, _ in model.named_children()]
        del model.extra
        return once(model), names, [n for n, _ in original(model).named_children()], model.gain

    compare(Model, loop)


def test_a_sequential_is_still_a_sequence() -> None:
    def loop(model: nn.Module) -> Any:
        return once(model), len(model), type(model[1]).__name__, [type(m).__name__ for m in model], len(model[1:])

    compare(lambda: nn.Sequential(conv(2, 4), nn.ReLU(), conv(4, 2)), loop)


def test_a_layer_of_a_sequential_is_set_through_the_wrapper() -> None:
    def loop(model: nn.Module) -> Any:
        first = once(model)
        model[1] = nn.Hardtanh(-3, 3)
        model.append(nn.ReLU())
        del model[0]
        return first, backward(model(image(1, 4, 16, 16)))

    compare(lambda: nn.Sequential(conv(2, 4), nn.ReLU(), conv(4, 2)), loop)


def test_a_model_that_can_be_indexed_and_iterated() -> None:
    class Stages(Net):
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            return iter([self.first, self.last])

        def __getitem__(self, at: int) -> nn.Module:
            return [self.first, self.last][at]

        def __contains__(self, name: str) -> bool:
            return name in ("first", "last")

    def loop(model: nn.Module) -> Any:
        return once(model), len(model), [m.out_channels for m in model], model[1].out_channels, "first" in model

    compare(Stages, loop)


def test_names_and_parts_are_those_of_the_model() -> None:
    def loop(model: nn.Module) -> Any:
        return (
            once(model),
            [name for name, _ in model.named_parameters()],
            [name for name, _ in model.named_modules()],
            [name for name, _ in model.named_children()],
            model.get_parameter("last.bias"),
            model.get_submodule("first").out_channels,
            isinstance(model, nn.Module),
            next(model.parameters()) is next(original(model).parameters()),
        )

    compare(Model, loop)


def test_apply_visits_every_part_once() -> None:
    def loop(model: nn.Module) -> Any:
        seen: list[str] = []

        def init(module: nn.Module) -> None:
            if isinstance(module, nn.Conv2d):
                seen.append("conv")
                nn.init.ones_(module.weight)

        model.apply(init)
        return once(model), seen

    compare(Model, loop)


def test_a_model_with_names_of_ours() -> None:
    class Names(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = conv(2, 4)
            self.plan, self.options, self._state = 2, {"a": 1}, [3]
            self.last = conv(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.module(x) * self.plan + self.options["a"] + self._state[0])

    compare(Names, twice)


def test_a_model_with_its_own_setattr_and_getattr() -> None:
    class Own(Net):
        def __getattr__(self, name: str) -> Any:
            if name == "magic":
                return 3
            return super().__getattr__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value * 2 if name == "gain" else value)

        def middle(self, y: Tensor) -> Tensor:
            return y * self.magic * self.__dict__.get("gain", 1)

    def loop(model: nn.Module) -> Any:
        first = once(model)
        model.gain = 5
        return first, once(model), model.gain, model.magic

    compare(Own, loop)


def test_a_forward_chosen_when_the_model_is_made() -> None:
    class Chosen(Net):
        def __init__(self) -> None:
            super().__init__()
            self.forward = self.forward_train

        def forward_train(self, x: Tensor) -> Tensor:
            return self.last(self.first(x))

        def forward_test(self, x: Tensor) -> Tensor:
            return self.last(self.first(x)).relu()

    def loop(model: nn.Module) -> Any:
        first = once(model)
        original(model).forward = original(model).forward_test
        return first, once(model)

    exact_or_refused(Chosen, loop)


def test_a_model_that_overrides_call() -> None:
    class Called(Net):
        def __call__(self, x: Tensor, gain: int = 2) -> Tensor:
            return super().__call__(x * gain)

    exact_or_refused(Called, lambda m: (once(m), backward(m(image(), 3))))


# Train and eval


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.conv(x))) * (2 if self.training else 3)


def make_normed() -> nn.Module:
    return Normed().double()


SWITCHES: dict[str, Callable[[nn.Module], Any]] = {
    "wrapper eval": lambda m: m.eval(),
    "model eval": lambda m: original(m).eval(),
    "wrapper train": lambda m: (original(m).eval(), m.train()),
    "model train": lambda m: (m.eval(), original(m).train()),
    "flag of the model": lambda m: setattr(original(m), "training", False),
    "flag of the wrapper": lambda m: setattr(m, "training", False),
    "flag of a part": lambda m: setattr(m.norm, "training", False),
    "part eval": lambda m: m.norm.eval(),
    "parent eval": lambda m: nn.Sequential(m).eval(),
}


@pytest.mark.parametrize("switch", SWITCHES.values(), ids=SWITCHES)
def test_modes_are_respected_wherever_they_are_set(switch: Callable[[nn.Module], Any]) -> None:
    def loop(model: nn.Module) -> Any:
        first = backward(model(photo(2, 2, 16, 16)))
        switch(model)
        second = backward(model(photo(2, 2, 16, 16)))
        flags = [m.training for m in original(model).modules()]
        return first, second, flags, model.training

    compare(make_normed, loop, tolerance=CLOSE)


def test_a_model_that_keeps_its_norms_frozen() -> None:
    class Frozen(Normed):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self.norm.eval()
            return self

    def loop(model: nn.Module) -> Any:
        found = []
        for mode in (True, False, True):
            model.train(mode)
            found.append((backward(model(photo())), model.training, model.norm.training))
        return found

    compare(lambda: Frozen().double(), loop, tolerance=CLOSE)
