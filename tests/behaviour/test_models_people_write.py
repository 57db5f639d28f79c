"""Small forms of the networks people train, and the Python they are written in."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loop_networks import MODELS
from loops import CLOSE, Net, backward, compare, conv, exact_or_refused, image, once, photo, refused, twice
from torch import Tensor, nn


def trained(model: nn.Module) -> Any:
    """Two steps and a look in eval."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for seed in range(2):
        optimizer.zero_grad()
        out = model(photo(2, 2, 16, 16, seed=seed))
        found.append(backward(out if isinstance(out, Tensor) else out[0]))
        optimizer.step()
    return found, model.eval()(photo(1, 2, 16, 16)).detach()


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_networks(make: Callable[[], nn.Module]) -> None:
    compare(lambda: make().double(), trained, tolerance=CLOSE)


@pytest.mark.parametrize("axes", [1, 3])
def test_signals_and_volumes(axes: int) -> None:
    kinds: Any = {1: (nn.Conv1d, nn.MaxPool1d, nn.BatchNorm1d), 3: (nn.Conv3d, nn.MaxPool3d, nn.BatchNorm3d)}[axes]
    conv, pool, norm = kinds

    def loop(model: nn.Module) -> Any:
        return [backward(model(photo(2, 2, *([12] * axes), seed=seed))) for seed in range(2)]

    compare(
        lambda: nn.Sequential(conv(2, 4, 3, padding=1), norm(4), nn.ReLU(), pool(2), conv(4, 2, 3)).double(),
        loop,
        tolerance=CLOSE,
        tile=6,
    )


# The Python they are written in


def test_layers_by_name() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for k in range(3):
                setattr(self, f"conv{k}", conv(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            for k in range(3):
                x = getattr(self, f"conv{k}")(x).clamp(-9, 9)
            return x

    compare(Model, twice)


def test_a_part_of_the_layers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.depth = nn.ModuleList(conv(2, 2) for _ in range(4)), 2

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers[: self.depth]:
                x = layer(x).clamp(-9, 9)
            return x

    def loop(model: nn.Module) -> Any:
        found = []
        for depth in (2, 4, 1, 2):
            model.depth = depth
            model.zero_grad()
            found.append((once(model), [p.grad for p in model.parameters()]))
        return found

    compare(Model, loop)


def test_inheritance_and_mixins() -> None:
    class Scaled:
        scale = 3

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale  # type: ignore[misc]

    class Model(Scaled, Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    compare(Model, twice)


def test_assertions_exceptions_and_checks_of_shapes() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            assert x.dim() == 4 and x.size(1) == 2, f"expected 2 channels, got {x.shape}"
            if x.shape[-1] % 2:
                raise ValueError("even sizes only")
            try:
                return self.missing(x)
            except AttributeError:
                pass
            match x.shape[0]:
                case 1:
                    return super().forward(x)
                case n:
                    return super().forward(x) * n

    compare(Model, lambda m: [backward(m(image(n, 2, 16, 16))) for n in (1, 3, 1)])


def test_arithmetic_on_sizes() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            h, w = x.shape[2:]
            top, left = int(h * 0.25), math.ceil(w / 5)
            x = F.pad(x, (0, -w % 8, 0, -h % 8))
            y = super().forward(x)[:, :, top:h, left:w]
            return y * (h // 4) / max(1, w // 4) + len(x) + x.numel() // y.shape[1]

    compare(
        Model, lambda m: [backward(m(image(1, 2, h, w))) for h, w in ((16, 16), (13, 18), (16, 16))], tolerance=CLOSE
    )


def test_messages_and_warnings_in_forward(capsys: pytest.CaptureFixture[str]) -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            print("forward", tuple(x.shape))
            warnings.warn("an old way to do it", UserWarning, stacklevel=1)
            return super().forward(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(Model, twice)


def test_constants_by_numpy() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            ramp = torch.from_numpy(np.arange(y.shape[-1], dtype=np.float64))
            table = torch.tensor(np.array([1.0, 2.0, 3.0, 4.0])).to(y)
            return y * ramp + table[:, None, None] * float(np.floor(2.5))

    exact_or_refused(Model, twice)


def test_tensors_made_in_forward() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            ys, xs = torch.meshgrid(torch.arange(y.shape[2]), torch.arange(y.shape[3]), indexing="ij")
            mask = torch.zeros(y.shape[2:], dtype=torch.bool)
            mask[::2] = True
            bias = torch.tensor([1, 2, 3, 4], dtype=y.dtype).view(1, -1, 1, 1)
            tri = torch.ones(16, 16, dtype=y.dtype).tril()
            return torch.where(mask, y + xs - ys, y * bias) * tri + torch.full_like(y, 2.0)

    compare(Model, twice)


def test_the_generator_of_a_generator() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleDict({f"scale {k}": conv(2, 2) for k in (1, 2, 4)})

        def pyramid(self, x: Tensor) -> Any:
            for name, layer in self.convs.items():
                k = int(name.split()[1])
                yield F.interpolate(layer(F.max_pool2d(x, k)), scale_factor=k, mode="nearest") if k > 1 else layer(x)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([*self.pyramid(x)], 1)

    compare(Model, twice)


# What depends on the content of tensors

CONTENT: dict[str, Callable[[Tensor], Any]] = {
    "branch": lambda y: y if y.sum() > 0 else -y,
    "item": lambda y: y * y.amax().item(),
    "float": lambda y: y * float(y.detach().amax()),
    "mask": lambda y: y + y[y > 0].sum(),
    "nonzero": lambda y: y + y.nonzero().shape[0],
    "where": lambda y: y + torch.where(y > 0)[0].sum(),
    "masked_select": lambda y: y + y.masked_select(y > 3).sum(),
    "unique": lambda y: y * y.detach().unique().numel(),
    "tolist": lambda y: y * y.detach()[0, 0, 0].tolist()[0],
    "numpy": lambda y: y * float(y.detach().numpy().max()),
    "loop while": lambda y: next(z for z in (y, y / 2, y / 4) if bool(z.detach().abs().amax() < 10_000)),
    "any": lambda y: y if not bool(torch.isnan(y).any()) else y * 0,
    "equal": lambda y: y if torch.equal(y, y.flip(3)) else y * 2,
    "int index": lambda y: y + y[:, int(y.detach()[0, :, 0, 0].argmax())][:, None],
    "format": lambda y: y * len(f"{y.detach().amax().item():.0f}"),
    "slice": lambda y: y + y[:, :, : int(y.detach().amax().clamp(1, 5))].sum(),
}


@pytest.mark.parametrize("use", CONTENT.values(), ids=CONTENT)
def test_what_depends_on_content_is_exact_or_refused(use: Callable[[Tensor], Any]) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return use(y)

    exact_or_refused(Model, twice)


def test_a_branch_on_content_is_refused_by_its_line() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y if y.sum() > 0 else -y

    error = refused(Model, once, "content of a tensor")
    assert "if y.sum() > 0" in str(error) or "test_models_people_write.py" in str(error.where)


def apart(y: Tensor) -> Tensor:
    """No two channels and no two columns alike, so that nothing depends on who of equals comes first."""
    return y + torch.arange(4, dtype=y.dtype)[:, None, None] / 8 + torch.arange(16, dtype=y.dtype) / 512


STATIC: dict[str, Callable[[Tensor], Tensor]] = {
    "topk": lambda y: y + apart(y).topk(2, dim=1).values.sum(1, keepdim=True),
    "sort": lambda y: apart(y).sort(dim=1, descending=True).values,
    "argsort": lambda y: y.gather(1, apart(y).argsort(1)),
    "one_hot": lambda y: y * F.one_hot(apart(y).argmax(1), 4).permute(0, 3, 1, 2),
    "scatter": lambda y: torch.zeros_like(y).scatter(1, apart(y).argmax(1, keepdim=True), 2.0) * y,
    "cumsum": lambda y: y.cumsum(2) + y.cumsum(1),
    "where": lambda y: torch.where(y > 0, y, y * 2),
    "masked_fill": lambda y: y.masked_fill(y > 3, 0),
    "clamp by tensors": lambda y: torch.minimum(y, y.detach().amax((2, 3), keepdim=True) - 1),
    "index_select": lambda y: y.index_select(1, torch.tensor([2, 0, 1, 3])),
    "take": lambda y: y[:, [3, 1, 0, 2]].flip(2),
    "repeat": lambda y: y.repeat(1, 2, 1, 1)[:, ::2] + y.repeat_interleave(2, 2)[:, :, ::2],
    "pad and crop": lambda y: F.pad(y, (3, 2, 1, 4), value=1.0)[:, :, 2:18, 1:17],
    "roll": lambda y: y.roll((3, -2), (2, 3)),
    "rot90": lambda y: y.rot90(1, (2, 3)),
    "transpose": lambda y: y + y.mT,
    "unfold": lambda y: y.unfold(2, 4, 4).sum(-1).repeat_interleave(4, 2),
    "reshape": lambda y: y.reshape(1, 8, 8, 16).flip(1).reshape(y.shape),
    "matmul over rows": lambda y: y @ torch.ones(16, 16, dtype=y.dtype).triu(),
    "max over all": lambda y: y - apart(y).amax((1, 3), keepdim=True),
    "norm of pixels": lambda y: y * y.abs().sum(1, keepdim=True),
    "median": lambda y: y - apart(y).median(dim=3, keepdim=True).values,
    "logsumexp": lambda y: y - (y * 0).logsumexp(1, keepdim=True).round(),
    "kron": lambda y: F.max_pool2d(torch.kron(y, torch.ones(1, 1, 2, 2, dtype=y.dtype)), 2),
}


@pytest.mark.parametrize("use", STATIC.values(), ids=STATIC)
def test_operators_without_a_rule_for_tiles_are_exact_all_the_same(use: Callable[[Tensor], Tensor]) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return use(y)

    compare(Model, twice)
