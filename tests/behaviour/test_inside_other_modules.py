"""A tiled module inside others, others around it, averages of it, and several wrappers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loops import CLOSE, Net, backward, compare, conv, exact_or_refused, image, once, original, photo, twice
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

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


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.conv(x))) * (2 if self.training else 3)


def make_normed() -> nn.Module:
    return Normed().double()


# Inside others


class Parent(nn.Module):
    """A larger model whose backbone may be tiled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.backbone, self.head = conv(2, 2), Model(), conv(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(self.stem(x)).clamp(-50, 50))


def inside(loop: Callable[[nn.Module], Any]) -> None:
    """Compare a parent with a plain backbone to one whose backbone is tiled."""

    def outer(model: nn.Module) -> Any:
        parent = Parent()
        parent.backbone = model
        return loop(parent), [p.grad for p in parent.parameters()]

    compare(Model, outer)


def test_the_backbone_alone_is_tiled() -> None:
    inside(twice)


def test_names_of_the_parent_stay() -> None:
    inside(lambda p: (once(p), list(p.state_dict()), [n for n, _ in p.named_parameters()], len(list(p.modules()))))


def test_the_parent_moves_its_parts() -> None:
    def loop(parent: nn.Module) -> Any:
        parent.float()
        half = parent(image().float()).dtype
        parent.double()
        parent.eval()
        flags = (parent.backbone.training, parent.backbone.first.training)
        parent.train().zero_grad()
        seen: list[str] = []
        parent.apply(lambda m: seen.append(type(m).__name__) if isinstance(m, nn.Conv2d) else None)
        return once(parent), half, flags, seen

    inside(loop)


def test_the_parent_is_copied() -> None:
    def loop(parent: nn.Module) -> Any:
        once(parent)
        other = copy.deepcopy(parent)
        with torch.no_grad():
            other.backbone.first.weight.neg_()
        other.zero_grad()
        return once(other), once(parent), [p.grad for p in other.parameters()]

    inside(loop)


def test_the_parent_loads_a_state() -> None:
    def loop(parent: nn.Module) -> Any:
        state = {name: value * 2 for name, value in parent.state_dict().items()}
        found = once(parent)
        return found, str(parent.load_state_dict(state)), once(parent)

    inside(loop)


def test_in_a_sequential_and_a_list() -> None:
    def loop(model: nn.Module) -> Any:
        chain = nn.Sequential(conv(2, 2), model, nn.ReLU())
        held = nn.ModuleList([model])
        return once(chain), backward(held[0](image(seed=2))), list(chain.state_dict())

    compare(Model, loop)


def test_twice_in_one_parent() -> None:
    def loop(model: nn.Module) -> Any:
        chain = nn.Sequential(model, nn.Hardtanh(-4, 4), model)
        return twice(chain)

    compare(Model, loop)


def test_a_tiled_part_of_a_tiled_model() -> None:
    plain, net = Parent(), Parent()
    net.load_state_dict(plain.state_dict())
    net.backbone = tilegrad.tile(net.backbone, tile=4)
    tiled = tilegrad.tile(net, tile=8)
    assert torch.equal(twice(plain)[1], twice(tiled)[1])
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), tiled.parameters(), strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="moves the model to all GPUs")
def test_data_parallel_on_the_cpu() -> None:
    compare(Model, lambda m: twice(nn.DataParallel(m)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="moves the model to all GPUs")
def test_tiling_a_data_parallel_model() -> None:
    compare(lambda: nn.DataParallel(Model()), twice)


def test_a_model_made_by_fx() -> None:
    compare(lambda: torch.fx.symbolic_trace(Net()), twice)


def test_a_hook_that_swaps_in_a_tiled_part_under_a_context() -> None:
    """A context manager of the user that patches a method of the model for a while."""

    def loop(model: nn.Module) -> Any:
        m = original(model)
        first, old = once(model), m.middle
        m.middle = lambda y: y * 5
        second = once(model)
        m.middle = old
        return first, second, once(model)

    exact_or_refused(Model, loop)


# Averages


def test_an_averaged_model_of_a_tiled_one() -> None:
    def loop(model: nn.Module) -> Any:
        average = AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-8)
        for seed in range(2):
            optimizer.zero_grad()
            backward(model(image(seed=seed)))
            optimizer.step()
            average.update_parameters(model)
        return average(image()).detach(), [p.detach() for p in average.parameters()]

    compare(Model, loop, tolerance=CLOSE)


def test_an_exponential_average_with_buffers() -> None:
    def loop(model: nn.Module) -> Any:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
        for seed in range(2):
            backward(model(photo(2, 2, 16, 16, seed=seed)))
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad
            average.update_parameters(model)
        return average.eval()(photo()).detach()

    compare(make_normed, loop, tolerance=CLOSE)


def test_statistics_updated_for_an_average() -> None:
    def loop(model: nn.Module) -> Any:
        update_bn([photo(2, 2, 16, 16, seed=k) for k in range(3)], model)
        return model.norm.running_mean, model.norm.momentum, model.eval()(photo()).detach()

    compare(make_normed, loop, tolerance=CLOSE)


# Second wrappers


def test_a_model_is_tiled_twice_in_two_ways() -> None:
    """Two wrappers around one model: both see its state."""

    def loop(model: nn.Module) -> Any:
        other = tilegrad.tile(original(model), tile=5) if original(model) is not model else model
        first = once(model)
        other.alpha = 4
        return first, once(other), once(model), model.alpha

    compare(Model, loop)


def test_an_error_for_what_is_no_module() -> None:
    for thing in (F.relu, None, {"a": 1}):
        with pytest.raises(TilegradError):
            tilegrad.tile(thing, tile=8)(image())


def test_torch_modules_know_their_wrapper() -> None:
    tiled = tilegrad.tile(Model(), tile=8)
    assert all(hasattr(tiled, name) for name in ("compile", "share_memory", "predict", "first", "alpha"))
    assert "Model" in repr(tiled) and isinstance(tiled, nn.Module)


def test_a_lazy_layer_that_is_not_used() -> None:
    class Spare(Net):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.LazyLinear(3)

    exact_or_refused(Spare, twice, match="spare", tolerance=CLOSE)


def test_a_weight_shared_with_the_rest_of_the_model() -> None:
    def loop(model: nn.Module) -> Any:
        decoder = nn.Conv2d(2, 4, 3, padding=1).double()
        decoder.weight = original(model).first.weight
        out = F.conv2d(image(seed=3), decoder.weight, padding=1).sum() + model(image()).sum()
        return backward(out)

    compare(Model, loop)


def test_two_tiled_models_share_a_part() -> None:
    def loop(model: nn.Module) -> Any:
        other = Net()
        other.first = original(model).first
        if model is not original(model):
            other = tilegrad.tile(other, tile=5)
        (model(image()).sum() + 2 * other(image(seed=1)).sum()).backward()
        return [p.grad for p in other.parameters()]

    compare(Model, loop)
