"""What comes back from a call, and tensors of other layouts and types."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from loops import CLOSE, Net, backward, compare, conv, exact_or_refused, image, photo
from torch import Tensor, nn


def x(seed: int = 0) -> Tensor:
    return image(seed=seed).requires_grad_()


# What comes back


Output = namedtuple("Output", "logits features")


@dataclass
class Result:
    logits: Tensor
    features: Tensor | None = None


OUTPUTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "named tuple": lambda y, f: Output(y, f),
    "torch's named tuple": lambda y, f: (y.max(dim=1), f),
    "dict in this order": lambda y, f: {"z": y, "a": f},
    "ordered dict": lambda y, f: OrderedDict(z=y, a=f),
    "list with None": lambda y, f: [None, y, None, f],
    "shape": lambda y, f: (y, f.shape, y.size(1), y.dtype),
    "nested and empty": lambda y, f: ([], {}, (y, [f, ()])),
    "the same twice": lambda y, f: (y, y, f),
    "a view and its base": lambda y, f: (y, y[:, :1], f.transpose(2, 3)),
    "detached": lambda y, f: (y, f.detach(), y.detach().argmax(1)),
    "numbers and text": lambda y, f: {"out": y, "n": 3, "name": "net", "ok": True, "p": 0.5},
}


@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_come_back_as_they_were_made(make: Callable[..., Any]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Any:
            features = self.first(x)
            return make(self.last(features.relu()), features)

    def loop(model: nn.Module) -> Any:
        found = []
        for seed in range(2):
            out = model(x(seed))
            graded = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
            sum((k + 1) * t.sum() for k, t in enumerate(graded)).backward()
            found.append(out)
        return found

    compare(Model, loop)


@pytest.mark.parametrize("kind", [Result, lambda y, f: SimpleNamespace(logits=y, features=f), lambda y, f: {y, f}])
def test_outputs_in_objects_of_the_user(kind: Callable[..., Any]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Any:
            features = self.first(x)
            return kind(self.last(features.relu()), features)

    def loop(model: nn.Module) -> Any:
        out = model(x())
        if isinstance(out, set):
            sum(t.sum() for t in out).backward()
            return sorted(float(t.detach().sum()) for t in out)
        return backward(out.logits), out.features

    exact_or_refused(Model, loop)


def test_a_default_dict_comes_back() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Any:
            out: defaultdict[str, list[Tensor]] = defaultdict(list)
            out["y"].append(super().forward(x))
            return out

    def loop(model: nn.Module) -> Any:
        out = model(x())
        out["more"].append(1)
        return backward(out["y"][0]), dict(out)

    exact_or_refused(Model, loop)


def test_the_input_comes_back_untouched() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), x

    def loop(model: nn.Module) -> Any:
        given = x()
        out, same = model(given)
        (out.sum() + same.square().sum()).backward()
        return out, same, given.grad

    compare(Model, loop)


def test_nothing_comes_back() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> None:
            self.out = super().forward(x)

    def loop(model: nn.Module) -> Any:
        assert model(x()) is None
        return backward(model.out)

    exact_or_refused(Model, loop)


# Tensors of other kinds


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": image,
    "channels last": lambda: image().to(memory_format=torch.channels_last),
    "transposed": lambda: image().mT,
    "expanded": lambda: image(1, 1, 16, 16).expand(1, 2, 16, 16),
    "expanded rows": lambda: image(1, 2, 1, 16).expand(1, 2, 16, 16),
    "every second": lambda: image(1, 4, 32, 16)[:, ::2, ::2],
    "flipped": lambda: image().flip(3),
    "a part": lambda: image(3, 2, 20, 20)[1:2, :, 2:18, 3:19],
}


def test_layouts_in_turn() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for make in (*LAYOUTS.values(), *LAYOUTS.values()):
            given = make().detach().requires_grad_()
            found.append((backward(model(given)), given.grad))
        return found

    compare(Net, loop)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_that_looks_at_the_layout(layout: str) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y * (2 if x.is_contiguous() else 3) + x.stride(1) % 7

    compare(Model, lambda m: [backward(m(make())) for make in (image, LAYOUTS[layout], image)])


def test_with_and_without_a_gradient_of_the_input() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2 if x.requires_grad else 3)

    def loop(model: nn.Module) -> Any:
        given = [image().requires_grad_(graded) for graded in (False, True, False, True)]
        return [(backward(model(each)), each.grad) for each in given]

    compare(Model, loop)


def test_an_image_of_bytes() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.first.weight.dtype) - 2)

    compare(Model, lambda m: [backward(m((image(seed=k) + 2).to(torch.uint8))) for k in range(2)])


def test_float_and_double_and_integers_in_turn() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x.double()), x * 2

    kinds = [torch.float32, torch.float64, torch.int64, torch.bool, torch.float16, torch.float32]
    compare(Model, lambda m: [(backward(y), z) for y, z in (m(image().to(kind)) for kind in kinds)])


def test_labels_and_a_loss_inside() -> None:
    class Model(Net):
        def forward(self, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
            return F.cross_entropy(super().forward(x), labels, weight, ignore_index=-1)

    def loop(model: nn.Module) -> Any:
        labels = (image(1, 16, 16) > 0).long()
        unsure = labels.where(image(1, 16, 16, seed=2) > -2, -1)
        weight = torch.tensor([1.0, 3.0], dtype=torch.float64)
        return [backward(model(photo(), *more)) for more in ((labels,), (unsure,), (labels, weight))]

    compare(lambda: Model().double(), loop, tolerance=CLOSE)


def test_an_image_without_a_batch() -> None:
    compare(Net, lambda m: [backward(m(image(2, 16, 16))), backward(m(image())), backward(m(image(2, 16, 16, seed=1)))])


def test_the_last_batch_is_smaller() -> None:
    compare(Net, lambda m: [backward(m(image(n, 2, 16, 16))) for n in (3, 3, 1, 3, 2)])


def test_a_list_of_images_of_many_sizes() -> None:
    class Model(Net):
        def forward(self, images: list[Tensor]) -> list[Tensor]:
            return [super(Model, self).forward(each[None])[0] for each in images]

    def loop(model: nn.Module) -> Any:
        sizes = [[(16, 16), (9, 20)], [(9, 20), (16, 16)], [(16, 16)]]
        return [[backward(out) for out in model([image(2, *s) for s in each])] for each in sizes[2:]], [
            [out.detach() for out in model([image(2, *s) for s in each])] for each in sizes
        ]

    compare(Model, loop)


def test_a_parameter_is_the_image() -> None:
    def loop(model: nn.Module) -> Any:
        picture = nn.Parameter(image())
        optimizer = torch.optim.SGD([picture], lr=2**-8)
        for _ in range(2):
            optimizer.zero_grad()
            backward(model(picture))
            optimizer.step()
        return picture

    compare(Net, loop)


def test_a_model_without_inputs() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.picture = nn.Parameter(image())

        def forward(self) -> Tensor:
            return super().forward(self.picture)

    exact_or_refused(Model, lambda m: [backward(m()), backward(m())])


def test_a_complex_image() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.view_as_real(x).movedim(-1, 1))

    exact_or_refused(Model, lambda m: backward(m(torch.complex(image(1, 16, 16), image(1, 16, 16, seed=1)))))


def test_a_list_of_the_user_that_the_model_fills() -> None:
    class Model(Net):
        def forward(self, x: Tensor, features: list[Tensor]) -> Tensor:
            features.append(self.first(x))
            return self.last(features[-1].relu())

    def loop(model: nn.Module) -> Any:
        features: list[Tensor] = []
        out = model(x(), features)
        (out.sum() + 2 * features[0].sum()).backward()
        return out, features

    exact_or_refused(Model, loop)


def test_a_layer_as_an_argument() -> None:
    class Model(Net):
        def forward(self, x: Tensor, head: nn.Module) -> Tensor:
            return head(self.first(x))

    def loop(model: nn.Module) -> Any:
        heads = [conv(4, 2), conv(4, 3)]
        return [backward(model(x(), head)) for head in heads], [p.grad for head in heads for p in head.parameters()]

    exact_or_refused(Model, loop)


class Picture(Tensor):
    """A tensor with a type of its own, as torchvision's images are."""


def test_a_subclass_of_tensor() -> None:
    exact_or_refused(Net, lambda m: backward(m(image().as_subclass(Picture))))
