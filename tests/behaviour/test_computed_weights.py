"""Weights that are computed: norms, parametrizations, pruning; layers that are not made yet."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import CLOSE, Net, backward, compare, exact_or_refused, once, original, photo, twice
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import tilegrad
from tilegrad.errors import TilegradError


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


def normed_conv(norm: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)).double()
        norm(net[0], **options)
        norm(net[2], **options)
        return net

    return make


def old_weight_norm(layer: nn.Module) -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(layer)


def trained(model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for seed in range(3):
        optimizer.zero_grad()
        found.append(backward(model(photo(seed=seed))))
        optimizer.step()
    return found, model.eval()(photo()).detach()


@pytest.mark.parametrize(
    "norm",
    [
        old_weight_norm,
        parametrizations.weight_norm,
        nn.utils.spectral_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
    ],
    ids=["weight norm, old", "weight norm", "spectral norm, old", "spectral norm", "orthogonal"],
)
def test_normed_weights(norm: Callable[..., nn.Module]) -> None:
    compare(normed_conv(norm), trained, tolerance=CLOSE)


def test_parametrized_weights_that_are_cached() -> None:
    def loop(model: nn.Module) -> Any:
        with parametrize.cached():
            found = backward(model(photo()) + model(photo(seed=1)))
        return found, backward(model(photo()))

    compare(normed_conv(parametrizations.weight_norm), loop, tolerance=CLOSE)


@pytest.mark.parametrize("early", [True, False])
def test_pruned_weights(early: bool) -> None:
    def cut(model: nn.Module) -> None:
        prune.l1_unstructured(model.first, "weight", amount=0.5)
        prune.ln_structured(model.last, "weight", amount=1, n=2, dim=0)

    def make() -> nn.Module:
        net = Model()
        if early:
            cut(net)
        return net

    def loop(model: nn.Module) -> Any:
        found = [once(model)]
        if not early:
            cut(original(model))
        found += twice(model)
        prune.remove(original(model).first, "weight")
        return [*found, once(model), sorted(model.state_dict())]

    compare(make, loop)


def test_lazy_layers_are_refused_until_they_are_made() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.LazyConv2d(4, 3, padding=1), nn.ReLU(), nn.LazyBatchNorm2d()).double()

    tiled = tilegrad.tile(make(), tile=8)
    with pytest.raises(TilegradError, match="call once on a small input"):
        tiled(photo())
    net = tiled.module
    net(photo(1, 2, 4, 4))
    plain = copy.deepcopy(net)
    for run in (plain, tiled):
        backward(run(photo()))
    for p, q in zip(plain.parameters(), tiled.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_part() -> None:
    class Scripted(Net):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.jit.script(nn.Sequential(nn.LeakyReLU(0.5), nn.LeakyReLU(2.0)))

        def middle(self, y: Tensor) -> Tensor:
            return self.part(y)

    exact_or_refused(Scripted, once)
