"""Parameters and layers that torch does not know of: in lists, dictionaries, objects, closures, globals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loops import CLOSE, Net, backward, compare, conv, exact_or_refused, image, once, photo, twice, whole_numbers
from torch import Tensor, nn


@dataclass
class Head:
    layer: nn.Module


class Callback:
    """Not a module, but it has one."""

    def __init__(self, layer: nn.Module) -> None:
        self.inner = {"layers": [layer]}

    def __call__(self, y: Tensor) -> Tensor:
        return self.inner["layers"][0](y)


HOLDERS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any, Tensor], Tensor]]] = {
    "list": (lambda c: [c], lambda h, y: h[0](y)),
    "tuple": (lambda c: (c, 3), lambda h, y: h[0](y)),
    "dict": (lambda c: {"head": c}, lambda h, y: h["head"](y)),
    "nested": (lambda c: {"heads": [(c,)]}, lambda h, y: h["heads"][0][0](y)),
    "dataclass": (Head, lambda h, y: h.layer(y)),
    "namespace": (lambda c: SimpleNamespace(layer=c), lambda h, y: h.layer(y)),
    "object": (Callback, lambda h, y: h(y)),
    "method": (lambda c: c.forward, lambda h, y: h(y)),
    "partial": (lambda c: partial(F.conv2d, weight=c.weight, bias=c.bias, padding=1), lambda h, y: h(y)),
    "closure": (lambda c: lambda y: c(y), lambda h, y: h(y)),
    "list of weights": (lambda c: [c.weight, c.bias], lambda h, y: F.conv2d(y, *h, padding=1)),
    "dict of weights": (lambda c: dict(c.named_parameters()), lambda h, y: F.conv2d(y, **h, padding=1)),
}
every_holder = pytest.mark.parametrize("holder", HOLDERS)


def check_for(holder: str) -> Callable[..., Any]:
    """What nobody can look into may be refused."""
    return exact_or_refused if holder in ("closure", "method", "partial") else compare


def make_hidden(holder: str) -> Callable[[], nn.Module]:
    hold, use = HOLDERS[holder]

    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            hidden = conv(4, 4)
            self.hidden = hold(hidden)
            self.known = lambda: hidden  # for the loop: a function, so that torch does not see it

        def middle(self, y: Tensor) -> Tensor:
            return use(self.hidden, y)

    return Model


def hidden_gradients(model: nn.Module) -> list[Any]:
    return [p.grad for p in model.known().parameters()]


@every_holder
def test_a_hidden_layer_gets_its_gradient(holder: str) -> None:
    check_for(holder)(make_hidden(holder), lambda m: (twice(m), hidden_gradients(m)))


@every_holder
def test_a_hidden_layer_is_trained(holder: str) -> None:
    def loop(model: nn.Module) -> Any:
        hidden = model.known()
        optimizer = torch.optim.SGD([*model.parameters(), *hidden.parameters()], lr=2.0**-10)
        found = []
        for seed in range(2):
            optimizer.zero_grad()
            found.append(backward(model(image(seed=seed))))
            optimizer.step()
        return found, list(hidden.parameters())

    check_for(holder)(make_hidden(holder), loop, tolerance=CLOSE)


def test_a_frozen_network_of_features_in_a_list() -> None:
    class Perceptual(Net):
        def __init__(self) -> None:
            super().__init__()
            self.features = [conv(2, 3).requires_grad_(False).eval()]

        def forward(self, x: Tensor) -> Tensor:
            return (self.features[0](super().forward(x)) - self.features[0](x)).square().sum()

    def loop(model: nn.Module) -> Any:
        first = once(model)
        with torch.no_grad():
            model.features[0].weight.mul_(2)
        return first, once(model)

    compare(Perceptual, loop)


def test_a_teacher_hidden_from_state_dict() -> None:
    class Student(Net):
        def __init__(self) -> None:
            super().__init__()
            object.__setattr__(self, "teacher", Net().requires_grad_(False))
            whole_numbers(self.teacher)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = self.teacher(x)
            return (super().forward(x) - target.detach()).square().sum()

    def loop(model: nn.Module) -> Any:
        names = list(model.state_dict())
        first = once(model)
        model.teacher.last.bias.add_(1)
        return names, first, once(model)

    compare(Student, loop)


def test_hidden_batch_norm_keeps_its_statistics() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norms = [nn.BatchNorm2d(4).double()]

        def middle(self, y: Tensor) -> Tensor:
            return self.norms[0](y).relu()

    compare(
        lambda: Model().double(), lambda m: [backward(m(photo(2, 2, 16, 16, seed=k))) for k in (0, 1)], tolerance=CLOSE
    )


def test_hidden_dropout_follows_its_own_flag() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.drops = [nn.Dropout(0.5).eval()]

        def middle(self, y: Tensor) -> Tensor:
            return self.drops[0](y)

    compare(Model, twice)


def test_layers_in_a_list_that_is_changed() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.extra = [conv(4, 4)]

        def middle(self, y: Tensor) -> Tensor:
            for layer in self.extra:
                y = layer(y).clamp(-9, 9)
            return y

    def loop(model: nn.Module) -> Any:
        found = [once(model)]
        model.extra.append(conv(4, 4, groups=2))
        found.append(once(model))
        model.extra[0] = conv(4, 4, bias=False)
        found.append(once(model))
        del model.extra[1]
        return [*found, once(model)]

    compare(Model, loop)


def test_one_layer_registered_and_in_a_list() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.order = [self.first, self.last]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.order:
                x = layer(x).clamp(-9, 9)
            return x

    compare(Model, twice)


def test_parameter_lists_and_dicts_of_torch() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([torch.ones(4, 1, 1), torch.ones(4, 1, 1)])
            self.shifts = nn.ParameterDict({"a": torch.ones(4, 1, 1)})
            self.heads = nn.ModuleDict({"left": conv(4, 2), "right": conv(4, 2)})
            self.use = "left"

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            for scale in self.scales:
                y = y * scale
            return self.heads[self.use](y + self.shifts["a"])

    def loop(model: nn.Module) -> Any:
        found = [once(model)]
        model.use = "right"
        return [*found, once(model)]

    compare(Model, loop)


def test_a_tensor_of_a_closure_that_wants_a_gradient() -> None:
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y * scale

    def loop(model: nn.Module) -> Any:
        scale.grad = None
        return twice(model), scale.grad.clone()

    exact_or_refused(Model, loop)


def test_a_tensor_of_a_closure_that_changes() -> None:
    scale = torch.tensor(2.0, dtype=torch.float64)

    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y * scale

    def loop(model: nn.Module) -> Any:
        scale.fill_(2)
        first = once(model)
        scale.fill_(5)
        return first, once(model)

    exact_or_refused(Model, loop)


SCALE = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
SHARED = conv(4, 4)


class UsesGlobals(Net):
    def middle(self, y: Tensor) -> Tensor:
        return SHARED(y) * SCALE


def test_a_global_layer_and_a_global_tensor_that_want_gradients() -> None:
    def loop(model: nn.Module) -> Any:
        SHARED.zero_grad()
        SCALE.grad = None
        return twice(model), SCALE.grad.clone(), [p.grad.clone() for p in SHARED.parameters()]

    exact_or_refused(UsesGlobals, loop)


def test_a_weight_borrowed_from_another_model() -> None:
    def loop(model: nn.Module) -> Any:
        other = conv(4, 4)
        model.borrowed = [other.weight]
        found = twice(model)
        with torch.no_grad():
            other.weight.neg_()
        return found, once(model), other.weight.grad

    class Model(Net):
        borrowed: list[Tensor] = []

        def middle(self, y: Tensor) -> Tensor:
            return F.conv2d(y, self.borrowed[0], padding=1)

    compare(Model, loop)


def test_a_tensor_made_from_a_parameter_before_the_call() -> None:
    """Not a leaf: its gradient goes on to the parameter that it was made from."""

    class Model(Net):
        scale: Tensor

        def middle(self, y: Tensor) -> Tensor:
            return y * self.scale

    def loop(model: nn.Module) -> Any:
        source = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
        found = []
        for k in range(2):
            model.scale = source * (k + 2)
            found.append(once(model))
        return found, source.grad

    compare(Model, loop)


def test_weights_of_a_hypernetwork_set_from_outside() -> None:
    def loop(model: nn.Module) -> Any:
        maker = whole_numbers(nn.Linear(3, 4 * 4 * 9))
        code = image(3)
        model.kernels = {"middle": maker(code).view(4, 4, 3, 3)}
        return once(model), [p.grad for p in maker.parameters()]

    class Model(Net):
        kernels: dict[str, Tensor] = {}

        def middle(self, y: Tensor) -> Tensor:
            return F.conv2d(y, self.kernels["middle"], padding=1)

    compare(Model, loop)


def test_modules_made_in_forward() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            y = nn.ReLU()(nn.ZeroPad2d(1)(y))
            return nn.MaxPool2d(3, 1)(y)

    compare(Model, twice)


def test_the_same_parameter_under_two_names() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.twin = conv(2, 4)
            self.twin.weight = self.first.weight
            self.copies = [self.first.weight, self.twin.bias]

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x) - self.twin(x.flip(2)) * 2
            return self.last(y + F.conv2d(x, *self.copies, padding=1))

    compare(Model, twice)
