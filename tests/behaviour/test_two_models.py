"""Two models in one loop: adversaries, teachers, averages, copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from loop_networks import Segmenter, batches
from loops import CLOSE, Net, compare, original, photo
from torch import nn

import tilegrad


def make() -> nn.Module:
    return Segmenter().double()


def close(loop: Callable[[nn.Module], Any], make: Callable[[], nn.Module] = make) -> None:
    compare(make, loop, tolerance=CLOSE)


def test_a_generator_and_a_discriminator() -> None:
    def loop(model: nn.Module) -> Any:
        generator = model
        torch.manual_seed(1)
        critic = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 3)).double()
        if model is not original(model):
            critic = tilegrad.tile(critic, tile=8)
        ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (generator, critic))
        for x, _ in batches(2):
            theirs.zero_grad()
            fake = generator(x)
            loss = F.softplus(-critic(x)).mean() + F.softplus(critic(fake.detach())).mean()
            loss.backward()
            theirs.step()
            critic.requires_grad_(False)
            ours.zero_grad()
            F.softplus(-critic(fake)).mean().backward()
            ours.step()
            critic.requires_grad_(True)
        return [p.detach() for p in critic.parameters()], loss.detach()

    close(loop)


def test_weights_of_a_critic_are_clipped() -> None:
    def loop(model: nn.Module) -> Any:
        optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
        for seed in range(2):
            optimizer.zero_grad()
            (model(photo(seed=seed)).mean() - model(photo(seed=seed + 5)).mean()).backward()
            optimizer.step()
            for p in model.parameters():
                p.data.clamp_(-0.05, 0.05)
        return model(photo()).detach()

    compare(lambda: Net().double(), loop, tolerance=1e-7)


def test_a_student_and_its_teacher() -> None:
    def loop(model: nn.Module) -> Any:
        teacher = copy.deepcopy(model).eval().requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, _ in batches():
            with torch.no_grad():
                target = teacher(x)
            optimizer.zero_grad()
            F.mse_loss(model(x), target).backward()
            optimizer.step()
            with torch.no_grad():
                for p, q in zip(teacher.parameters(), model.parameters(), strict=True):
                    p.lerp_(q, 0.5)
        return [p.detach() for p in teacher.parameters()]

    close(loop)


def test_an_average_by_hand() -> None:
    def loop(model: nn.Module) -> Any:
        shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, target in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()
            for name, p in model.named_parameters():
                shadow[name].mul_(0.5).add_(p.detach(), alpha=0.5)
        backup = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.load_state_dict(shadow, strict=False)
        scored = model.eval()(x).detach()
        model.load_state_dict(backup, strict=False)
        return scored, model(x).detach()

    close(loop)


def test_first_order_meta_learning() -> None:
    """Reptile: train a copy, then move towards it."""

    def loop(model: nn.Module) -> Any:
        for x, target in batches(2):
            fast = copy.deepcopy(model)
            optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(fast(x), target).backward()
                optimizer.step()
            with torch.no_grad():
                for p, q in zip(model.parameters(), fast.parameters(), strict=True):
                    p.lerp_(q, 0.5)
        return model(x).detach()

    close(loop)
