"""Autocast, half precision and mixed types: plain's types exactly, plain's numbers within the rounding of bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loop_networks import MODELS
from loops import CLOSE, Net, backward, compare, exact_or_refused, image, once, seed_all
from torch import Tensor, nn

ROUNDING = 0.15  # of the largest entry: bfloat16 has eight bits, and sums round in another order


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))


def normed() -> nn.Module:
    """Several phases: statistics over the whole image, twice."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, bias=False),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 2, 1),
    )


def scene(seed: int = 0) -> Tensor:
    return torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(seed))


def halves(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", **{"dtype": torch.bfloat16, **options})


def close(make: Callable[[], nn.Module], loop: Callable[[nn.Module], Any]) -> None:
    compare(make, loop, tolerance=ROUNDING)


@pytest.mark.parametrize("make", [small, normed])
def test_the_first_call_is_under_autocast(make: Callable[[], nn.Module]) -> None:
    def loop(model: nn.Module) -> Any:
        with halves():
            out = model(scene())
        return backward(out)

    close(make, loop)


@pytest.mark.parametrize("make", [small, normed])
def test_on_off_and_on_again(make: Callable[[], nn.Module]) -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for enabled in (True, False, True, False):
            with halves(enabled=enabled):
                out = model(scene())
            found.append((out.dtype, backward(out)))
        return found

    close(make, loop)


PHASES = ("Residual", "Unet", "SqueezeExcite", "Pyramid", "Aspp", "NonLocal", "ConvNext", "Windows", "Losses")


@pytest.mark.parametrize("name", PHASES)
def test_networks_of_several_phases(name: str) -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for enabled in (True, False, True):
            with halves(enabled=enabled):
                out = model(scene())
            out = out if isinstance(out, Tensor) else out[0]
            found.append((out.dtype, backward(out)))
        return found

    close(MODELS[name], loop)


def test_off_first() -> None:
    def loop(model: nn.Module) -> Any:
        found = [backward(model(scene()))]
        with halves():
            found.append(backward(model(scene())))
        return [*found, backward(model(scene()))]

    close(normed, loop)


def test_without_autocast_nothing_of_it_is_left() -> None:
    """After a call under autocast, a plain call is as exact as ever."""

    def loop(model: nn.Module) -> Any:
        with halves():
            kind = model(scene().double()).dtype
        return kind, backward(model(image()))

    def make() -> nn.Module:
        return Net().double()

    compare(make, loop, tolerance=CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_types_of_autocast(dtype: torch.dtype) -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for each in (dtype, torch.bfloat16, dtype):
            with torch.autocast("cpu", dtype=each):
                out = model(scene())
            found.append((out.dtype, backward(out)))
        return found

    close(small, loop)


def test_backward_inside_the_block() -> None:
    def loop(model: nn.Module) -> Any:
        with halves():
            return backward(model(scene())), backward(model(scene(1)))

    close(normed, loop)


def test_the_loss_inside_the_block() -> None:
    def loop(model: nn.Module) -> Any:
        target = (scene(5)[:, 0] > 0).long()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        found = []
        for seed in range(2):
            optimizer.zero_grad()
            with halves():
                loss = F.cross_entropy(model(scene(seed)), target)
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return found

    close(normed, loop)


def test_a_loss_in_the_model() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = normed()

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(self.net(x), target)

    def loop(model: nn.Module) -> Any:
        with halves():
            loss = model(scene(), (scene(5)[:, 0] > 0).long())
        loss.backward()
        return loss.dtype, loss.detach()

    close(Loss, loop)


def test_a_part_that_must_stay_in_single_precision() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 2, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.first(x)
            with torch.autocast("cpu", enabled=False):
                z = F.conv2d(y.float(), self.last.weight)
            return y, z

    def loop(model: nn.Module) -> Any:
        found = []
        for enabled in (True, False, True):
            with halves(enabled=enabled):
                y, z = model(scene())
            (y.float().sum() + z.sum()).backward()
            found.append((y.dtype, z.dtype, y.detach(), z.detach()))
        return found

    close(Model, loop)


def test_autocast_inside_forward() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = small(), nn.Conv2d(2, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.net(x)
            return self.head(y.float())

    close(Model, lambda m: [backward(m(scene(seed))) for seed in range(2)])


def test_autocast_around_the_whole_forward_by_a_decorator() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        @torch.autocast("cpu", dtype=torch.bfloat16)
        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    def loop(model: nn.Module) -> Any:
        out = model(scene())
        return out.dtype, backward(out)

    close(Model, loop)


def test_autocast_inside_by_an_attribute() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.half = small(), True

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
                return self.net(x)

    def loop(model: nn.Module) -> Any:
        found = []
        for half in (True, False, True):
            model.half = half
            out = model(scene())
            found.append((out.dtype, backward(out)))
        return found

    close(Model, loop)


def test_a_model_that_asks_for_autocast() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y * (2 if torch.is_autocast_enabled("cpu") else 3)

    def loop(model: nn.Module) -> Any:
        model.float()
        found = []
        for enabled in (False, True, False):
            with halves(enabled=enabled):
                found.append(backward(model(scene())))
        return found

    close(Model, loop)


def test_evaluation_and_training_in_one_block() -> None:
    """Autocast remembers the weights it has cast; a call without gradients must not spoil that."""

    def loop(model: nn.Module) -> Any:
        with halves():
            with torch.no_grad():
                quiet = model(scene())
            return quiet, backward(model(scene())), backward(model(scene(1)))

    close(normed, loop)


def test_without_its_cache() -> None:
    def loop(model: nn.Module) -> Any:
        with halves(cache_enabled=False):
            return [backward(model(scene(k))) for k in range(2)]

    close(small, loop)


def test_a_gradient_scaler() -> None:
    def loop(model: nn.Module) -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for seed in range(2):
            optimizer.zero_grad()
            with halves():
                loss = model(scene(seed)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale(), loss.detach()

    close(normed, loop)


# Types without autocast


def test_a_model_in_bfloat16() -> None:
    def loop(model: nn.Module) -> Any:
        model.bfloat16()
        out = model(scene().bfloat16())
        return out.dtype, backward(out)

    close(normed, loop)


def test_norms_in_single_precision_in_a_model_of_halves() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)
            self.head = nn.Conv2d(4, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.conv(x).float())
            return self.head(y.to(x.dtype))

    def loop(model: nn.Module) -> Any:
        model.bfloat16()
        model.norm.float()
        out = model(scene().bfloat16())
        return out.dtype, backward(out)

    close(Model, loop)


def test_types_mixed_in_one_model() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            y = self.first(x)
            z = self.last(y.float().relu().double())
            return {"out": z, "kept": y.float(), "mask": y > 0, "index": z.argmax(1), "count": (y > 0).sum()}

    def loop(model: nn.Module) -> Any:
        out = model(image())
        (out["out"].sum() + out["kept"].sum()).backward()
        return out

    compare(Model, loop)


def test_a_spectrum() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return torch.fft.irfft2(torch.fft.rfft2(y) * 0.5, s=y.shape[-2:])

    compare(lambda: Model().double(), lambda m: once(m), tolerance=CLOSE)


def test_complex_outputs() -> None:
    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft2(super().forward(x)).abs()

    exact_or_refused(lambda: Model().double(), lambda m: backward(m(image())), tolerance=1e-7)


def test_a_custom_function_that_knows_autocast() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 3

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 2, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = Scaled.apply(self.first(x))
            return self.last(y), y

    def loop(model: nn.Module) -> Any:
        seed_all()
        with halves():
            out, y = model(scene())
        (out.float().sum() + y.float().sum()).backward()
        return out.dtype, y.dtype, out.detach()

    close(Model, loop)


def test_a_block_for_another_device() -> None:
    """Written for a GPU, run on a CPU: the block does nothing, but it is there."""

    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            with torch.autocast("cuda", enabled=False):
                return y.relu() * 2

    compare(Model, once)
