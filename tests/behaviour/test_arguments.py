"""How a model is called: names, order, nesting, options, layouts. What counts is what plain PyTorch would see."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from loops import Net, backward, compare, conv, exact_or_refused, image
from torch import Tensor, nn


class Pair(nn.Module):
    """Two images that are not treated alike."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = conv(2, 2), conv(2, 2)

    def forward(self, a: Tensor, b: Tensor, scale: float = 3) -> Tensor:
        return self.left(a) - scale * self.right(b).relu()


def x(seed: int = 0) -> Tensor:
    return image(seed=seed).requires_grad_()


# Names and order


CALLS: dict[str, list[Callable[[nn.Module, Tensor, Tensor], Tensor]]] = {
    "names in another order": [lambda m, p, q: m(a=p, b=q), lambda m, p, q: m(b=q, a=p)],
    "names change places": [lambda m, p, q: m(a=p, b=q), lambda m, p, q: m(b=p, a=q)],
    "by place, then by name": [lambda m, p, q: m(p, q), lambda m, p, q: m(b=p, a=q), lambda m, p, q: m(q, b=p)],
    "by name, then by place": [lambda m, p, q: m(b=q, a=p), lambda m, p, q: m(q, p)],
    "one by place, one by name": [lambda m, p, q: m(p, b=q), lambda m, p, q: m(q, b=p)],
    "an option by place or name": [
        lambda m, p, q: m(p, q, 2),
        lambda m, p, q: m(p, q, scale=2),
        lambda m, p, q: m(p, q),
    ],
    "options between tensors": [lambda m, p, q: m(p, scale=2, b=q), lambda m, p, q: m(b=q, scale=5, a=p)],
    "the same tensor twice": [lambda m, p, q: m(p, q), lambda m, p, q: m(p, p), lambda m, p, q: m(a=q, b=q)],
    "views of one tensor": [lambda m, p, q: m(torch.cat([p, q])[:1], p), lambda m, p, q: m(p, p.detach())],
}


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_names_and_order_of_arguments(calls: list[Callable[..., Tensor]]) -> None:
    def loop(model: nn.Module) -> Any:
        p, q = x(0), x(1)
        return [backward(call(model, p, q)) for call in calls], p.grad, q.grad

    compare(Pair, loop)


def test_defaults_that_are_none() -> None:
    class Model(Net):
        def forward(self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None) -> Tensor:
            y = super().forward(x)
            y = y if mask is None else y * mask
            return y if bias is None else y + bias

    def loop(model: nn.Module) -> Any:
        m, b = image(1, 1, 16, 16, seed=3), image(seed=4)
        calls = [
            model(x()),
            model(x(), m),
            model(x(), bias=m),
            model(x(), None, bias=b),
            model(x(), mask=b),
            model(x()),
        ]
        return [backward(out) for out in calls]

    compare(Model, loop)


def test_any_number_of_images() -> None:
    class Model(Net):
        def forward(self, *images: Tensor) -> Tensor:
            return sum((at + 1) * super(Model, self).forward(each) for at, each in enumerate(images))

    compare(Model, lambda m: [backward(m(*(x(k) for k in range(count)))) for count in (1, 2, 3, 2, 1)])


def test_keyword_arguments_of_any_name_in_their_order() -> None:
    class Model(Net):
        def forward(self, **images: Tensor) -> Tensor:
            return sum((at + 1) * super(Model, self).forward(each) for at, each in enumerate(images.values()))

    compare(Model, lambda m: [backward(m(t1=x(0), t2=x(1))), backward(m(t2=x(1), t1=x(0))), backward(m(other=x(1)))])


class Summed(Net):
    """Takes any nest of images, and weighs them by their order."""

    def forward(self, nest: Any) -> Tensor:
        found = [item for item in pytree.tree_leaves(nest) if isinstance(item, Tensor)]
        return sum((at + 1) * super(Summed, self).forward(each) for at, each in enumerate(found))


class Views(NamedTuple):
    near: Tensor
    far: Tensor


NESTS: dict[str, list[Callable[[Tensor, Tensor], Any]]] = {
    "dict": [lambda p, q: {"a": p, "b": q}, lambda p, q: {"a": q, "b": p}],
    "dict in another order": [lambda p, q: {"a": p, "b": q}, lambda p, q: {"b": q, "a": p}],
    "dict with other keys": [lambda p, q: {"a": p, "b": q}, lambda p, q: {"c": p, "b": q}, lambda p, q: {"a": p}],
    "list of any length": [lambda p, q: [p, q], lambda p, q: [q], lambda p, q: [p, q, p]],
    "list and tuple": [lambda p, q: [p, q], lambda p, q: (p, q)],
    "nested another way": [lambda p, q: [p, [q]], lambda p, q: [[p], q], lambda p, q: {"a": [p, {"b": (q,)}]}],
    "named tuple": [lambda p, q: Views(p, q), lambda p, q: Views(near=q, far=p), lambda p, q: Views(far=p, near=q)],
    "ordered dict": [lambda p, q: OrderedDict(a=p, b=q), lambda p, q: OrderedDict(b=q, a=p)],
    "empty places": [lambda p, q: [p, None, q], lambda p, q: [None, p, q], lambda p, q: [p, q, None]],
    "numbers between": [lambda p, q: {"x": p, "n": 2, "y": q}, lambda p, q: {"x": p, "n": 3, "y": q}],
}


@pytest.mark.parametrize("nests", NESTS.values(), ids=NESTS)
def test_nested_inputs(nests: list[Callable[..., Any]]) -> None:
    def loop(model: nn.Module) -> Any:
        p, q = x(0), x(1)
        return [backward(model(nest(p, q))) for nest in nests], p.grad, q.grad

    compare(Summed, loop)


def test_the_model_looks_at_the_type_of_its_nest() -> None:
    class Model(Net):
        def forward(self, x: Any) -> Tensor:
            if isinstance(x, dict):
                return super().forward(x["image"]) * len(x)
            if hasattr(x, "_fields"):
                return super().forward(x.near) - super().forward(x.far)
            return super().forward(x[0]) * (3 if isinstance(x, list) else 5)

    def loop(model: nn.Module) -> Any:
        given = [{"image": x()}, [x()], (x(),), Views(x(), x(1)), {"image": x(), "id": "17"}, [x(), x()]]
        return [backward(model(each)) for each in given]

    compare(Model, loop)


def test_a_batch_with_text_and_numbers() -> None:
    class Model(Net):
        def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
            y = super().forward(batch["image"]) * batch["weight"]
            return {"out": y, "path": batch["path"], "flip": batch["flip"]}

    def loop(model: nn.Module) -> Any:
        found = []
        for step in range(3):
            batch = {"image": x(step), "weight": step + 1, "path": f"scan_{step}.tif", "flip": step == 1}
            found.append(model(batch))
            backward(found[-1]["out"])
        return found

    compare(Model, loop)


# Options


class Colour(enum.Enum):
    RED, GREEN = 1, 2


OPTIONS: dict[str, list[Any]] = {
    "true, one, one point zero": [True, 1, 1.0, True],
    "one point zero first": [1.0, 1, True],
    "zero and minus zero": [0.0, -0.0, 0, False],
    "none and false": [None, False, 0, ""],
    "text": ["a", "b", "a"],
    "a changing number": [0, 1, 2, 3, 1],
    "a changing float": [0.5, 0.25, 0.5],
    "enum": [Colour.RED, Colour.GREEN, Colour.RED],
    "size": [(8, 8), (16, 16), (8, 8)],
    "size of one": [(1,), (2,)],
    "size as a list": [[8, 8], [8, 16], (8, 16)],
    "torch size": [torch.Size([8, 8]), torch.Size([4, 4])],
    "dtype": [torch.float32, torch.float64],
    "slice": [slice(0, 8), slice(8, 16), slice(None)],
    "set": [{1, 2}, {3}],
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_that_change_from_call_to_call(options: list[Any]) -> None:
    class Model(Net):
        def forward(self, x: Tensor, option: Any) -> tuple[Tensor, Any]:
            weight = sum(map(ord, f"{type(option).__name__} {option!r}")) % 31 + 1
            return super().forward(x) * weight, option

    exact_or_refused(Model, lambda m: [(backward(out), o) for out, o in (m(x(), option) for option in options)])


def test_the_size_of_the_output_as_an_argument() -> None:
    class Model(Net):
        def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
            return F.interpolate(super().forward(x), size=size, mode="nearest")

    compare(Model, lambda m: [backward(m(x(), size)) for size in ((32, 32), (8, 24), (32, 32))])
    compare(Model, lambda m: [backward(m(x(), size=image(1, 1, size, 20).shape[-2:])) for size in (32, 8)])


def test_a_mode_by_name() -> None:
    class Model(Net):
        def forward(self, x: Tensor, reduction: str = "none") -> Tensor:
            y = super().forward(x)
            return {"none": lambda: y, "sum": y.sum, "mean": y.mean}[reduction]()

    compare(Model, lambda m: [backward(m(x(), reduction=how)) for how in ("sum", "none", "mean", "sum")])


def test_return_features_only_when_asked() -> None:
    class Model(Net):
        def forward(self, x: Tensor, return_features: bool = False) -> Any:
            features = self.first(x)
            out = self.last(features.relu())
            return (out, features) if return_features else out

    def loop(model: nn.Module) -> Any:
        out, features = model(x(), return_features=True)
        (out.sum() + 2 * features.sum()).backward()
        return out, features, backward(model(x())), model(x(), True)[1]

    compare(Model, loop)


def test_a_temperature_as_a_tensor_without_axes() -> None:
    class Model(Net):
        def forward(self, x: Tensor, temperature: Tensor) -> Tensor:
            return super().forward(x) * temperature

    def loop(model: nn.Module) -> Any:
        scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        return backward(model(x(), scale)), backward(model(x(), scale * 2)), scale.grad

    compare(Model, loop)


def test_a_time_step_as_a_number_and_as_a_tensor() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.Embedding(5, 4)

        def forward(self, x: Tensor, t: Any) -> Tensor:
            t = torch.as_tensor(t).reshape(-1)
            return self.last(self.first(x) + self.steps(t)[:, :, None, None])

    compare(Model, lambda m: [backward(m(x(), torch.tensor([t]))) for t in (1, 3, 1, 4)])
    exact_or_refused(Model, lambda m: [backward(m(x(), t)) for t in (1, 3, 1, 4)])


# Objects


@dataclass
class Sample:
    image: Tensor
    weight: int


@dataclass
class Known:
    image: Tensor
    weight: int


@dataclass
class Exotic:
    image: Tensor
    weight: int


torch.export.register_dataclass(Known)
pytree.register_pytree_node(Exotic, lambda k: ([k.image], k.weight), lambda leaves, weight: Exotic(leaves[0], weight))


class OfSample(Net):
    def forward(self, sample: Any) -> Tensor:
        return super().forward(sample.image) * sample.weight


def test_a_dataclass_that_torch_knows() -> None:
    compare(OfSample, lambda m: [backward(m(Known(x(k), weight))) for k, weight in enumerate((2, 3, 2))])


@pytest.mark.parametrize("make", [Exotic, Sample, lambda image, weight: SimpleNamespace(image=image, weight=weight)])
def test_an_object_that_torch_does_not_know(make: Callable[..., Any]) -> None:
    exact_or_refused(OfSample, lambda m: [backward(m(make(x(k), weight))) for k, weight in enumerate((2, 3, 2))])


def test_an_options_object_that_is_changed() -> None:
    class Model(Net):
        def forward(self, x: Tensor, options: Any) -> Tensor:
            return super().forward(x) * options.weight

    def loop(model: nn.Module) -> Any:
        options = SimpleNamespace(weight=2)
        first = backward(model(x(), options))
        options.weight = 5
        return first, backward(model(x(), options))

    exact_or_refused(Model, loop)


def test_numpy_arrays_that_print_alike() -> None:
    class Model(Net):
        def forward(self, x: Tensor, table: np.ndarray) -> Tensor:
            return super().forward(x) * int(table[1000])

    def loop(model: nn.Module) -> Any:
        table = np.ones(2000)
        first = backward(model(x(), table))
        table[1000] = 7
        return first, backward(model(x(), table))

    exact_or_refused(Model, loop)


def test_a_function_as_an_argument() -> None:
    class Model(Net):
        def forward(self, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
            return self.last(act(self.first(x)))

    exact_or_refused(Model, lambda m: [backward(m(x(), act)) for act in (torch.relu, torch.neg, torch.relu)])


def test_a_generator_of_images() -> None:
    class Model(Net):
        def forward(self, images: Any) -> Tensor:
            return sum(super(Model, self).forward(each) for each in images)

    exact_or_refused(Model, lambda m: [backward(m(x(k) for k in range(count))) for count in (2, 3)])
