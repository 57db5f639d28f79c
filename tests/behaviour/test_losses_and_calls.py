"""Losses, several calls, several outputs, and gradients of images."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from loop_networks import Segmenter, batches
from loops import CLOSE, Net, backward, compare, conv, image, once, photo
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tilegrad
from tilegrad.errors import TilegradError


def make() -> nn.Module:
    return Segmenter().double()


def close(loop: Callable[[nn.Module], Any], make: Callable[[], nn.Module] = make) -> None:
    compare(make, loop, tolerance=CLOSE)


def test_losses_are_added_up() -> None:
    def loop(model: nn.Module) -> Any:
        out = model(image())
        (out.square().sum() + 3 * out.abs().sum() - out[:, :, ::2].sum()).backward()
        return out

    compare(Net, loop)


def test_a_second_backward_is_refused_by_name() -> None:
    net = Net()
    tiled = tilegrad.tile(net, tile=8)
    out = tiled(image())
    out.sum().backward(retain_graph=True)
    with pytest.raises(TilegradError, match="second time") as error:
        (out * 2).sum().backward()
    assert isinstance(error.value, RuntimeError) and error.value.hint


@pytest.mark.parametrize("retain", [True, False])
def test_one_backward_may_retain_its_graph(retain: bool) -> None:
    def loop(model: nn.Module) -> Any:
        loss = model(image()).sum()
        loss.backward(retain_graph=retain)
        return loss.detach()

    compare(Net, loop)


def test_second_derivatives_are_refused_by_name() -> None:
    """The gradient penalty of WGAN-GP."""
    tiled, given = tilegrad.tile(Net(), tile=8), image().requires_grad_()
    out = tiled(given)
    with pytest.raises(TilegradError, match="second-order") as error:
        torch.autograd.grad(out.sum(), given, create_graph=True)
    assert isinstance(error.value, RuntimeError)


def test_siamese_calls() -> None:
    def loop(model: nn.Module) -> Any:
        a, p, n = (model(image(seed=k)) for k in range(3))
        loss = ((a - p).square().sum() - (a - n).square().sum() + 5).relu()
        loss.backward()
        return loss

    compare(Net, loop)


def test_a_call_on_the_result_of_a_call() -> None:
    def loop(model: nn.Module) -> Any:
        given = image().requires_grad_()
        out = model(model(given).clamp(-3, 3))
        return backward(out), given.grad

    compare(Net, loop)


def test_a_cycle_of_two_models() -> None:
    def loop(model: nn.Module) -> Any:
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.first.weight.neg_()
        x = image()
        (other(model(x).clamp(-3, 3)) - x).abs().sum().backward()
        return [p.grad for p in other.parameters()]

    compare(Net, loop)


def test_one_of_two_heads() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.a, self.b = conv(2, 4), conv(4, 2), conv(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.trunk(x).relu()
            return self.a(y), self.b(y)

    def loop(model: nn.Module) -> Any:
        found = []
        for task in (0, 1, 0):
            model.zero_grad()
            backward(model(image())[task])
            found.append([p.grad for p in model.parameters()])
        return found

    compare(Heads, loop)


def test_deep_supervision() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList(conv(2, 2) for _ in range(3))

        def forward(self, x: Tensor) -> Any:
            outs = []
            for stage in self.stages:
                x = stage(x).clamp(-5, 5)
                outs.append(x)
            return outs if self.training else outs[-1]

    def loop(model: nn.Module) -> Any:
        outs = model(image())
        sum(2**k * out.sum() for k, out in enumerate(outs)).backward()
        return outs, model.eval()(image()).detach(), len(model.train()(image()))

    compare(Deep, loop)


def test_a_step_that_is_thrown_away() -> None:
    """The loss was not finite: the loop goes on with the next batch."""

    def loop(model: nn.Module) -> Any:
        found = []
        for seed in range(3):
            out = model(image(seed=seed))
            if seed == 1:
                continue
            found.append(backward(out))
        return found

    compare(Net, loop)


def test_an_error_between_forward_and_backward() -> None:
    def loop(model: nn.Module) -> Any:
        try:
            model(image()).sum()
            raise KeyError("data")
        except KeyError:
            pass
        return once(model)

    compare(Net, loop)


def test_validation_between_steps() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scores = []
        for x, target in batches():
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                scores.append((model(x).argmax(1) == target).double().mean().item())
        return scores

    close(loop)


def test_a_loader_of_data() -> None:
    def loop(model: nn.Module) -> Any:
        data = TensorDataset(photo(5, 2, 16, 16), (photo(5, 16, 16, seed=3) > 0).long())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, target in DataLoader(data, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(0)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()
        return x.shape[0]

    close(loop)


def test_losses_weighted_by_what_is_learned() -> None:
    """Uncertainty weighting: parameters of the loop, beside those of the model."""

    def loop(model: nn.Module) -> Any:
        weights = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        optimizer = torch.optim.SGD([*model.parameters(), weights], lr=0.1)
        for x, target in batches(2):
            optimizer.zero_grad()
            out = model(x)
            losses = torch.stack([F.cross_entropy(out, target), out.square().mean()])
            (losses * (-weights).exp() + weights).sum().backward()
            optimizer.step()
        return weights

    close(loop)


# Gradients of images


def test_an_adversarial_image() -> None:
    def loop(model: nn.Module) -> Any:
        x, target = next(batches())
        model.eval()
        given = x.clone().requires_grad_()
        F.cross_entropy(model(given), target).backward()
        attacked = x + 0.1 * given.grad.sign()
        model.train().zero_grad()
        F.cross_entropy(model(attacked), target).backward()
        return given.grad

    close(loop)


def test_projected_gradient_steps() -> None:
    def loop(model: nn.Module) -> Any:
        model.eval().requires_grad_(False)
        x, target = next(batches())
        delta = torch.zeros_like(x)
        for _ in range(3):
            delta = delta.detach().requires_grad_()
            (grad,) = torch.autograd.grad(F.cross_entropy(model(x + delta), target), delta)
            delta = (delta + 0.02 * grad / grad.abs().max()).clamp(-0.05, 0.05)
        return delta

    close(loop)


def test_inside_a_checkpoint_of_the_loop() -> None:
    def loop(model: nn.Module) -> Any:
        given = image().requires_grad_()
        out = torch.utils.checkpoint.checkpoint(model, given, use_reentrant=False)
        return backward(out), given.grad

    compare(Net, loop)


def test_under_anomaly_detection() -> None:
    def loop(model: nn.Module) -> Any:
        with torch.autograd.set_detect_anomaly(True):
            return backward(model(image()))

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(Net, loop)


def test_many_steps_keep_in_step() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for _ in range(4):
            for x, target in batches():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), target, label_smoothing=0.1)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    compare(make, loop, tolerance=1e-8)


def test_gradients_are_zeroed_between_forward_and_backward() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
        for seed in range(2):
            out = model(image(seed=seed))
            optimizer.zero_grad()
            backward(out)
            optimizer.step()
        return out.detach()

    compare(Net, loop)


def test_backwards_in_another_order() -> None:
    def loop(model: nn.Module) -> Any:
        outs = [model(image(seed=k)) for k in range(3)]
        return [backward(out) for out in reversed(outs)]

    compare(Net, loop)


def test_two_outputs_are_sent_back_together() -> None:
    class Two(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.first(x)
            return y, self.last(y.relu())

    def loop(model: nn.Module) -> Any:
        y, out = model(image())
        torch.autograd.backward([y, out], [torch.ones_like(y), image(seed=4)])
        return y.detach(), out.detach()

    compare(Two, loop)


def test_two_outputs_sent_back_one_after_the_other_are_refused_by_name() -> None:
    class Two(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.first(x), self.last(self.first(x))

    y, out = tilegrad.tile(Two(), tile=8)(image())
    y.sum().backward(retain_graph=True)
    with pytest.raises(TilegradError, match="second time") as error:
        out.sum().backward()
    assert isinstance(error.value, RuntimeError)


def test_with_deterministic_algorithms() -> None:
    def loop(model: nn.Module) -> Any:
        torch.use_deterministic_algorithms(True)
        try:
            return once(model)
        finally:
            torch.use_deterministic_algorithms(False)

    compare(Net, loop)


def test_a_batch_in_parts() -> None:
    """Micro-batches by hand, on one tiled model."""

    def loop(model: nn.Module) -> Any:
        x = image(4, 2, 16, 16)
        return [backward(part) for part in map(model, x.split(2))], backward(torch.cat([model(p) for p in x.chunk(4)]))

    compare(Net, loop)
