"""Random numbers of torch in a model: other numbers than plain's, but as many, as random, and the same in backward.

A draw belongs to a place in the image. So it must not depend on tiles, must repeat with the seed, must differ from call
to call, and backward must see what forward drew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from loops import CLOSE, Net, backward, compare, exact_or_refused, image, original, photo, seed_all, twice
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import TilegradError


def drop_path(y: Tensor) -> Tensor:
    """Stochastic depth, as timm and torchvision write it."""
    shape = (y.shape[0],) + (1,) * (y.ndim - 1)
    return y * y.new_empty(shape).bernoulli_(0.5).div_(0.5)


def drop_block(y: Tensor) -> Tensor:
    """DropBlock: seeds of holes, grown by a max pool."""
    seeds = (torch.rand_like(y[:, :1]) < 0.05).to(y.dtype)
    mask = 1 - F.max_pool2d(seeds, 3, 1, 1)
    return y * mask * (mask.numel() / mask.sum().clamp(min=1))


def shuffled(y: Tensor) -> Tensor:
    return y[:, torch.randperm(y.shape[1])] * torch.arange(1.0, y.shape[1] + 1, dtype=y.dtype)[:, None, None]


def sampled(y: Tensor) -> Tensor:
    chosen = torch.multinomial(torch.ones(2 * y.shape[1]), y.shape[1])
    return y * chosen[:, None, None]


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda y: F.dropout(y, 0.5),
    "dropout in place": lambda y: F.dropout(y * 1, 0.5, inplace=True),
    "dropout of channels": lambda y: F.dropout2d(y, 0.5),
    "alpha dropout": lambda y: F.alpha_dropout(y, 0.5, training=True),
    "feature alpha dropout": lambda y: F.feature_alpha_dropout(y, 0.5, training=True),
    "drop path": drop_path,
    "drop block": drop_block,
    "rand_like": lambda y: y * torch.rand_like(y),
    "randn_like": lambda y: y + torch.randn_like(y),
    "rand of a shape": lambda y: y * torch.rand(y.shape, dtype=y.dtype, device=y.device),
    "randn of a row": lambda y: y + torch.randn(1, 1, 1, y.shape[3], dtype=y.dtype),
    "one number": lambda y: y * torch.rand((), dtype=y.dtype),
    "normal_": lambda y: y + torch.empty_like(y).normal_(1, 2),
    "uniform_": lambda y: y * y.new_empty(y.shape).uniform_(-1, 1),
    "zeros normal_": lambda y: y + torch.zeros_like(y).normal_(),
    "torch.normal": lambda y: y + torch.normal(0.0, 1.0, y.shape, dtype=y.dtype),
    "torch.normal of tensors": lambda y: y + torch.normal(torch.zeros_like(y), 2.0),
    "bernoulli": lambda y: y * torch.bernoulli(torch.full_like(y, 0.25)),
    "bernoulli_": lambda y: y * torch.empty_like(y).bernoulli_(0.25),
    "randint": lambda y: y * torch.randint(0, 5, y.shape),
    "randint_like": lambda y: y * torch.randint_like(y, 1, 9),
    "randperm": shuffled,
    "multinomial": sampled,
    "exponential_": lambda y: y * torch.empty_like(y).exponential_(),
    "gumbel": lambda y: F.gumbel_softmax(y, tau=1.0, dim=1),
    "gumbel, hard": lambda y: F.gumbel_softmax(y, tau=1.0, hard=True, dim=1) * y,
    "rrelu": lambda y: F.rrelu(y, 0.1, 0.9, training=True),
    "shift by chance": lambda y: y + y.roll(1, 2) * torch.rand(y.shape[0], 1, 1, 1, dtype=y.dtype),
    "mixed up batch": lambda y: 0.5 * y + 0.5 * y[torch.randperm(y.shape[0])] * torch.rand(1, dtype=y.dtype),
}
every_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


class Drawn(nn.Module):
    """A convolution, a draw, a convolution."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw, self.first, self.last = draw, nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.draw(self.first(x)))


def drawn(draw: Callable[[Tensor], Tensor]) -> nn.Module:
    seed_all()
    return Drawn(draw).double()


def run(tiled: nn.Module, seed: int | None = None) -> list[Tensor]:
    """Output and gradients of one step."""
    if seed is not None:
        torch.manual_seed(seed)
    tiled.zero_grad()
    given = photo(4, 2, 16, 16).requires_grad_()
    out = backward(tiled(given))
    return [out, given.grad, *(p.grad.clone() for p in tiled.parameters())]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.allclose(x, y, rtol=1e-9, atol=1e-9) for x, y in zip(a, b, strict=True))


@every_draw
def test_the_seed_repeats_a_step_and_the_next_step_differs(draw: Callable[[Tensor], Tensor]) -> None:
    tiled = tilegrad.tile(drawn(draw), tile=8)
    first = run(tiled, seed=3)
    second = run(tiled)
    third = run(tiled)
    assert not (same(first, second) and same(second, third)), "every call draws the same"
    again = [run(tiled, seed=3), run(tiled), run(tiled)]
    assert all(same(a, b) for a, b in zip((first, second, third), again, strict=True))


@every_draw
def test_draws_do_not_depend_on_tiles(draw: Callable[[Tensor], Tensor]) -> None:
    found = [run(tilegrad.tile(drawn(draw), tile=tile), seed=5) for tile in (5, 8, 16)]
    assert same(found[0], found[1]) and same(found[0], found[2])


SMOOTH = {name: draw for name, draw in DRAWS.items() if name != "gumbel, hard"}  # which goes straight through


@pytest.mark.parametrize("draw", SMOOTH.values(), ids=SMOOTH)
def test_backward_sees_what_forward_drew(draw: Callable[[Tensor], Tensor]) -> None:
    """Against differences: the loss moves by as much as the gradient says."""
    tiled = tilegrad.tile(drawn(draw), tile=8)
    given = photo(4, 2, 16, 16).requires_grad_()
    direction = photo(4, 2, 16, 16, seed=9)
    weights = photo(4, 2, 16, 16, seed=11)

    def loss(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return (tiled(x) * weights).sum()

    loss(given).backward()
    with torch.no_grad():
        h = 1e-6
        moved = (loss(given + h * direction) - loss(given - h * direction)) / (2 * h)
    told = (given.grad * direction).sum()
    assert abs(float(moved - told)) <= 1e-5 * max(1.0, abs(float(told)))


def test_half_of_the_pixels_are_dropped() -> None:
    tiled = tilegrad.tile(nn.Sequential(nn.Identity(), nn.Dropout(0.5)), tile=32)
    out = tiled(torch.ones(1, 4, 128, 128, requires_grad=True))
    kept = out != 0
    assert 0.48 < float(kept.double().mean()) < 0.52 and torch.equal(out[kept], torch.full_like(out[kept], 2.0))
    assert not torch.equal(kept[:, :, :32], kept[:, :, 32:64]) and not torch.equal(kept[:, 0], kept[:, 1])


def test_the_mask_is_the_gradient() -> None:
    tiled = tilegrad.tile(nn.Sequential(nn.Dropout(0.3), nn.ReLU()), tile=8)
    given = torch.ones(2, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    out = tiled(given)
    out.sum().backward()
    assert torch.equal(out.detach(), given.grad)


def test_whole_samples_are_dropped() -> None:
    tiled = tilegrad.tile(Drawn(drop_path).double(), tile=8)
    tiled.first = nn.Identity()
    tiled.last = nn.Identity()
    out = tiled(torch.ones(64, 1, 16, 16, dtype=torch.float64))
    values = out.flatten(1)
    assert torch.equal(values, values[:, :1].expand_as(values)) and set(values[:, 0].tolist()) == {0.0, 2.0}


def test_noise_has_its_moments() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            normal = torch.empty_like(x).normal_(2, 3)
            uniform = torch.empty_like(x).uniform_(-1, 3)
            waits = torch.empty_like(x).exponential_(2.0)
            dice = torch.randint(1, 7, x.shape, device=x.device).to(x.dtype)
            return torch.stack([normal, uniform, waits, dice]) + 0 * x.relu()

    with torch.no_grad():
        torch.manual_seed(0)
        normal, uniform, waits, dice = tilegrad.tile(Noise(), tile=64)(torch.zeros(1, 4, 128, 128))
    assert abs(float(normal.mean()) - 2) < 0.05 and abs(float(normal.std()) - 3) < 0.05
    assert abs(float(uniform.mean()) - 1) < 0.02 and float(uniform.min()) >= -1 and float(uniform.max()) < 3
    assert abs(float(waits.mean()) - 0.5) < 0.01 and float(waits.min()) >= 0
    assert sorted(set(dice.flatten().tolist())) == [1, 2, 3, 4, 5, 6] and abs(float(dice.mean()) - 3.5) < 0.05


def test_permutations_are_permutations() -> None:
    class Shuffle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.max_pool2d(x, 1)[torch.randperm(x.shape[0])]

    given = torch.arange(8.0)[:, None, None, None].expand(8, 1, 16, 16)
    tiled = tilegrad.tile(Shuffle(), tile=8)
    for _ in range(3):
        out = tiled(given)
        assert sorted(out[:, 0, 0, 0].tolist()) == list(range(8)) and torch.equal(out, out[:, :, :1, :1].expand_as(out))


# Where nothing is drawn

QUIET: dict[str, Callable[[], nn.Module]] = {
    "p is zero": lambda: nn.Sequential(Net(), nn.Dropout(0.0), nn.Dropout2d(0.0)),
    "eval": lambda: nn.Sequential(Net(), nn.Dropout(0.5), nn.RReLU(0.5, 0.5), nn.AlphaDropout(0.5)).eval(),
    "dropout alone in eval": lambda: nn.Sequential(Net(), nn.Dropout(0.5).eval()),
    "rrelu between equal bounds": lambda: nn.Sequential(Net(), nn.RReLU(0.5, 0.5)),
    "p is one": lambda: nn.Sequential(Net(), nn.Dropout(1.0)),
}


@pytest.mark.parametrize("make", QUIET.values(), ids=QUIET)
def test_exact_where_nothing_is_drawn(make: Callable[[], nn.Module]) -> None:
    compare(make, twice)


def test_a_rate_that_is_turned_down() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for rate in (0.5, 0.0, 0.5, 0.0):
            original(model)[1].p = rate
            out = backward(model(image()))
            found.append(out if rate == 0 else None)
            model.zero_grad()
        return found

    compare(lambda: nn.Sequential(Net(), nn.Dropout(0.5)), loop)


def test_always_on_for_monte_carlo() -> None:
    """F.dropout stays on in eval: samples differ, and their mean is right."""
    tiled = tilegrad.tile(nn.Sequential(nn.Identity(), Drawn(DRAWS["dropout"])).double(), tile=8).eval()
    tiled.module[1].first = tiled.module[1].last = nn.Identity()
    with torch.no_grad():
        samples = torch.stack([tiled(torch.ones(1, 2, 16, 16, dtype=torch.float64)) for _ in range(8)])
    assert not torch.equal(samples[0], samples[1])
    assert abs(float(samples.mean()) - 1) < 0.1


# The generator of torch


def test_the_generator_is_left_alone_by_a_model_that_draws_nothing() -> None:
    tiled = tilegrad.tile(Net(), tile=8)
    torch.manual_seed(4)
    before = torch.get_rng_state()
    backward(tiled(image()))
    backward(tiled(image(1, 2, 12, 12)))
    assert torch.equal(before, torch.get_rng_state())


def test_the_generator_does_not_depend_on_whether_a_plan_was_there() -> None:
    """A loop is repeatable even if the first time it has to plan and the second time not."""
    tiled = tilegrad.tile(drawn(DRAWS["dropout"]), tile=8)
    found = []
    for _ in range(2):
        torch.manual_seed(2)
        tiled(photo())
        found.append(torch.rand(3))
    assert torch.equal(*found)


def test_draws_differ_between_layers_and_between_models() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = F.max_pool2d(x, 1)
            return torch.rand_like(x), torch.rand_like(x)

    a, b = tilegrad.tile(Two(), tile=8)(photo())
    assert not torch.equal(a, b)


def test_a_model_that_seeds_itself() -> None:
    """Noise that is meant to be the same at every call."""

    class Seeded(Net):
        def middle(self, y: Tensor) -> Tensor:
            torch.manual_seed(0)
            return y + torch.rand_like(y)

    tiled = tilegrad.tile(Seeded().double(), tile=8)
    try:
        first, second = tiled(image()), tiled(image())
    except TilegradError as error:
        assert error.where and error.hint
    else:
        assert torch.equal(first, second)


def test_a_generator_of_the_models_own() -> None:
    class Own(Net):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def middle(self, y: Tensor) -> Tensor:
            return y * torch.randint(1, 5, y.shape, generator=self.generator)

    exact_or_refused(Own, twice)


def test_the_reparametrisation_of_a_vae() -> None:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mean, spread = self.encode(x).chunk(2, 1)
            z = mean + torch.randn_like(mean) * (0.5 * spread).exp() if self.training else mean
            loss = -0.5 * (1 + spread - mean.square() - spread.exp()).sum()
            return self.decode(z), loss

    def loop(model: nn.Module) -> Any:
        model.eval()
        out, loss = model(photo())
        (out.sum() + loss).backward()
        return out, loss

    compare(lambda: Vae().double(), loop, tolerance=CLOSE)
    tiled = tilegrad.tile(Vae().double(), tile=8)
    assert not torch.equal(tiled(photo())[0], tiled(photo())[0])


def test_a_distribution_of_torch() -> None:
    class Samples(Net):
        def middle(self, y: Tensor) -> Tensor:
            return torch.distributions.Normal(y, 1.0).rsample()

    tiled = tilegrad.tile(Samples().double(), tile=8)
    try:
        first, second = tiled(image()), tiled(image())
    except TilegradError as error:
        assert error.where and error.hint
    else:
        assert not torch.equal(first, second)


def test_dropout_inside_a_checkpoint() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(self.drop, F.max_pool2d(x, 1), use_reentrant=False)

    given = torch.ones(1, 2, 16, 16, dtype=torch.float64, requires_grad=True)
    out = tilegrad.tile(Checkpointed(), tile=8)(given)
    out.sum().backward()
    assert torch.equal(out.detach(), given.grad)
