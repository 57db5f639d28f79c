"""Training loops as people write them: accumulation, clipping, schedules, two models, averages, attacks, closures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from loop_networks import Segmenter, batches
from loops import CLOSE, Net, backward, compare, image, once
from torch import Tensor, nn


def make() -> nn.Module:
    return Segmenter().double()


def close(loop: Callable[[nn.Module], Any], make: Callable[[], nn.Module] = make) -> None:
    compare(make, loop, tolerance=CLOSE)


# Optimizers and schedules

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_usual_loop(make_optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    def loop(model: nn.Module) -> Any:
        model.encoder[0].bias = None  # its gradient is nothing but rounding, which Adam would blow up
        optimizer = make_optimizer(model.parameters())
        losses = []
        for x, target in batches():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    compare(make, loop, tolerance=1e-7)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 3),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=4),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1)),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule(schedule: Callable[[torch.optim.Optimizer], Any]) -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        scheduler = schedule(optimizer)
        rates = []
        for x, target in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()
            scheduler.step()
            rates.append(scheduler.get_last_lr()[0])
        return rates

    close(loop)


def test_groups_of_parameters() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD([{"params": model.decoder.parameters()}], lr=0.1)
        model.encoder.requires_grad_(False)
        for step, (x, target) in enumerate(batches(4)):
            if step == 2:
                model.encoder.requires_grad_(True)
                optimizer.add_param_group({"params": model.encoder.parameters(), "lr": 0.01})
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()
        return model(x).detach()

    close(loop)


def test_no_decay_for_norms_and_biases() -> None:
    def loop(model: nn.Module) -> Any:
        named = list(model.named_parameters())
        decayed = [p for n, p in named if p.ndim > 1]
        rest = [p for n, p in named if p.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        for x, target in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()
        return len(decayed), len(rest)

    close(loop)


def test_lbfgs_calls_a_closure_many_times() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        x, target = next(batches())
        calls = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            calls.append(loss.item())
            return loss

        optimizer.step(closure)
        return calls

    compare(make, loop, tolerance=1e-7)


def test_sharpness_aware_minimisation() -> None:
    def loop(model: nn.Module) -> Any:
        for x, target in batches(2):
            model.zero_grad()
            F.cross_entropy(model(x), target).backward()
            with torch.no_grad():
                climbed = [0.05 * p.grad for p in model.parameters()]
                for p, e in zip(model.parameters(), climbed, strict=True):
                    p.add_(e)
            model.zero_grad()
            F.cross_entropy(model(x), target).backward()
            with torch.no_grad():
                for p, e in zip(model.parameters(), climbed, strict=True):
                    p.sub_(e).sub_(0.1 * p.grad)
        return model(x).detach()

    close(loop)


# Gradients

ZEROS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Any]] = {
    "optimizer": lambda m, o: o.zero_grad(),
    "optimizer, to zero": lambda m, o: o.zero_grad(set_to_none=False),
    "model": lambda m, o: m.zero_grad(),
    "model, to zero": lambda m, o: m.zero_grad(set_to_none=False),
    "none": lambda m, o: [setattr(p, "grad", None) for p in m.parameters()],
    "in place": lambda m, o: [p.grad.zero_() for p in m.parameters() if p.grad is not None],
    "replaced": lambda m, o: [setattr(p, "grad", torch.zeros_like(p)) for p in m.parameters()],
    "never": lambda m, o: None,
}


@pytest.mark.parametrize("zero", ZEROS.values(), ids=ZEROS)
def test_ways_to_zero_gradients(zero: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
        for seed in range(2):
            zero(model, optimizer)
            backward(model(image(seed=seed)))
            optimizer.step()
        return model(image())

    compare(Net, loop, tolerance=CLOSE)


def test_accumulation() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, (x, target) in enumerate(batches(4)):
            (F.cross_entropy(model(x), target) / 2).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        return model(x).detach()

    close(loop)


def test_the_same_gradient_tensor_is_accumulated_into() -> None:
    def loop(model: nn.Module) -> Any:
        once(model)
        grads = [p.grad for p in model.parameters()]
        once(model)
        return [g is p.grad for g, p in zip(grads, model.parameters(), strict=True)], grads

    compare(Net, loop)


@pytest.mark.parametrize("clip", ["norm", "value", "norm of each", "agc"])
def test_clipping(clip: str) -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        norms = []
        for x, target in batches(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            if clip == "norm":
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            elif clip == "value":
                nn.utils.clip_grad_value_(model.parameters(), 0.01)
            elif clip == "norm of each":
                norms += [nn.utils.clip_grad_norm_([p], 0.05) for p in model.parameters() if p.ndim > 1]
            else:
                for p in model.parameters():
                    p.grad.mul_((0.01 * p.detach().norm() / p.grad.norm().clamp(min=1e-3)).clamp(max=1))
            optimizer.step()
        return norms

    close(loop)


def test_frozen_and_thawed_in_turn() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for step, (x, target) in enumerate(batches(4)):
            model.encoder.requires_grad_(step % 2 == 0)
            model.decoder.requires_grad_(step != 2)
            model.zero_grad()
            F.cross_entropy(model(x), target).backward()
            found.append([p.grad for p in model.parameters()])
        return found

    close(loop)


def test_a_gradient_for_one_parameter_only() -> None:
    def loop(model: nn.Module) -> Any:
        out = model(image())
        out.sum().backward(inputs=[model.last.weight])
        return [p.grad for p in model.parameters()]

    compare(Net, loop)


def test_gradients_by_autograd_grad() -> None:
    def loop(model: nn.Module) -> Any:
        given = image().requires_grad_()
        some = torch.autograd.grad(model(given).sum(), [given, *model.parameters()])
        unused = nn.Parameter(torch.ones(1))
        more = torch.autograd.grad(model(given).sum(), [unused, model.last.bias], allow_unused=True)
        return some, more, [p.grad for p in model.parameters()]

    compare(Net, loop)


def test_manual_updates() -> None:
    def loop(model: nn.Module) -> Any:
        for seed in range(2):
            model.zero_grad()
            backward(model(image(seed=seed)))
            for p in model.parameters():
                p.data -= 2.0**-10 * p.grad.data
        return model(image())

    compare(Net, loop, tolerance=CLOSE)


def test_gradients_changed_by_hand() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-8)
        backward(model(image()))
        for p in model.parameters():
            p.grad = p.grad.sign()
        optimizer.step()
        return backward(model(image(seed=1)))

    compare(Net, loop, tolerance=CLOSE)
