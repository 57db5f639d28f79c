"""Counters, switches, and things that are made at the first call: each call must see what the last one left."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from loops import CLOSE, Net, backward, compare, conv, exact_or_refused, image, once, original, photo, twice
from torch import Tensor, nn

# Counters and switches


def test_a_counter() -> None:
    class Model(Net):
        step = 0

        def middle(self, y: Tensor) -> Tensor:
            self.step += 1
            return y.relu()

    compare(Model, lambda m: (twice(m), twice(m), m.step))


def test_a_counter_that_matters() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def middle(self, y: Tensor) -> Tensor:
            self.step += 1
            return y.relu() * self.step if self.step > 2 else y

    compare(Model, lambda m: [once(m) for _ in range(5)])


def test_a_warm_up_that_ends() -> None:
    class Model(Net):
        seen, warmup = 0, 4

        def middle(self, y: Tensor) -> Tensor:
            if self.training:
                self.seen = min(self.seen + 1, self.warmup)
            return y.relu() * (self.seen / self.warmup)

    def loop(model: nn.Module) -> Any:
        found = [once(model) for _ in range(6)]
        return found, model.eval()(image()), model.seen

    compare(Model, loop)


def test_a_counter_in_a_part_that_runs_twice() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, y: Tensor) -> Tensor:
            self.calls += 1
            return y * self.calls

    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.counted = Counted()

        def middle(self, y: Tensor) -> Tensor:
            return self.counted(self.counted(y))

    compare(Model, lambda m: [once(m) for _ in range(3)])


def test_every_second_call_is_another() -> None:
    class Model(Net):
        flip = False

        def middle(self, y: Tensor) -> Tensor:
            self.flip = not self.flip
            return -y if self.flip else y.relu()

    compare(Model, lambda m: [once(m) for _ in range(4)])


def test_a_counter_that_is_a_buffer() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def middle(self, y: Tensor) -> Tensor:
            self.calls += 1
            return y.relu() * self.calls

    compare(Model, lambda m: [once(m) for _ in range(3)])


def test_an_iterator_on_the_module() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.ticks = itertools.cycle([1, 2, 3])

        def middle(self, y: Tensor) -> Tensor:
            return y.relu() * next(self.ticks)

    exact_or_refused(Model, lambda m: [once(m) for _ in range(4)])


CALLS = 0


class GlobalCount(Net):
    def middle(self, y: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return y.relu() * CALLS


def test_a_global_counter() -> None:
    def loop(model: nn.Module) -> Any:
        global CALLS
        CALLS = 0
        return [once(model) for _ in range(3)], CALLS

    exact_or_refused(GlobalCount, loop)


def test_a_counter_of_the_class() -> None:
    class Model(Net):
        calls = 0

        def middle(self, y: Tensor) -> Tensor:
            type(self).calls += 1
            return y.relu() * self.calls

    def loop(model: nn.Module) -> Any:
        Model.calls = 0
        return [once(model) for _ in range(3)], Model.calls

    exact_or_refused(Model, loop)


def test_a_counter_in_a_closure() -> None:
    def make() -> nn.Module:
        calls = 0

        def tick(y: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return y.relu() * calls

        net = Net()
        net.middle = tick
        return net

    exact_or_refused(make, lambda m: [once(m) for _ in range(3)])


KEPT: list[Tensor] = []


class KeepsOutside(Net):
    def middle(self, y: Tensor) -> Tensor:
        KEPT.append(y)
        return y.relu()


def test_a_tensor_kept_in_a_global_list() -> None:
    def loop(model: nn.Module) -> Any:
        KEPT.clear()
        out = model(image())
        (out.sum() + 2 * KEPT[-1].sum()).backward()
        found = (len(KEPT), KEPT[-1].detach().clone())
        once(model)
        return out, found, len(KEPT)

    try:
        exact_or_refused(KeepsOutside, loop)
    finally:
        KEPT.clear()


def test_training_flags_changed_in_forward() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = conv(2, 2), nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            self.norm.eval()
            return self.norm(self.conv(x))

    compare(lambda: Model().double(), lambda m: (backward(m(photo())), m.norm.training), tolerance=CLOSE)


def test_an_attribute_deleted_in_forward() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            self.scratch = y
            z = self.scratch.relu()
            del self.scratch
            return z

    compare(Model, lambda m: (twice(m), hasattr(m, "scratch")))


# Things made at the first call


def test_a_grid_made_when_it_is_first_needed() -> None:
    class Model(Net):
        grid: Tensor | None = None

        def middle(self, y: Tensor) -> Tensor:
            if self.grid is None:
                self.grid = torch.arange(y.shape[-1], dtype=y.dtype)
            return y.relu() + self.grid

    compare(Model, lambda m: (twice(m), m.grid))


def test_a_grid_made_anew_when_the_size_changes() -> None:
    class Model(Net):
        grid: Tensor | None = None

        def middle(self, y: Tensor) -> Tensor:
            if self.grid is None or self.grid.shape[-1] != y.shape[-1]:
                self.grid = torch.arange(y.shape[-1], dtype=y.dtype)
            return y.relu() + self.grid

    compare(Model, lambda m: [(backward(m(image(1, 2, 16, w))), m.grid) for w in (16, 20, 16)])


def test_grids_by_size() -> None:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.grids: dict[tuple[int, ...], Tensor] = {}

        def middle(self, y: Tensor) -> Tensor:
            key = tuple(y.shape[-2:])
            if key not in self.grids:
                self.grids[key] = torch.ones(key, dtype=y.dtype).cumsum(0)
            return y.relu() + self.grids[key]

    compare(Model, lambda m: [backward(m(image(1, 2, 16, w))) for w in (16, 20, 16, 12)])


def test_a_buffer_registered_in_forward() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            if "grid" not in self._buffers:
                self.register_buffer("grid", torch.arange(y.shape[-1], dtype=y.dtype), persistent=False)
            return y.relu() + self.grid

    compare(Model, lambda m: (twice(m), m.grid))


def test_a_layer_made_in_the_first_call() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            if not hasattr(self, "extra"):
                self.extra = conv(y.shape[1], 4)
            return self.extra(y)

    exact_or_refused(Model, twice)


def test_a_cached_property() -> None:
    class Model(Net):
        @functools.cached_property
        def kernel(self) -> Tensor:
            return torch.ones(4, 1, 3, 3, dtype=torch.float64)

        def middle(self, y: Tensor) -> Tensor:
            return F.conv2d(y, self.kernel, padding=1, groups=4)

    compare(Model, lambda m: (twice(m), original(m)(image())))


@functools.lru_cache
def cached_grid(width: int) -> Tensor:
    return torch.arange(width, dtype=torch.float64)


class CachedGrid(Net):
    def middle(self, y: Tensor) -> Tensor:
        return y.relu() + cached_grid(y.shape[-1])


def test_a_function_with_a_cache() -> None:
    def loop(model: nn.Module) -> Any:
        cached_grid.cache_clear()
        found = twice(model)
        return found, original(model)(image()), cached_grid(16)

    try:
        exact_or_refused(CachedGrid, loop)
    finally:
        cached_grid.cache_clear()


GRIDS: dict[int, Tensor] = {}


class GlobalGrid(Net):
    def middle(self, y: Tensor) -> Tensor:
        width = y.shape[-1]
        if width not in GRIDS:
            GRIDS[width] = torch.arange(width, dtype=y.dtype)
        return y.relu() + GRIDS[width]


def test_a_global_cache() -> None:
    def loop(model: nn.Module) -> Any:
        GRIDS.clear()
        found = twice(model)
        return found, original(model)(image()), dict(GRIDS)

    try:
        exact_or_refused(GlobalGrid, loop)
    finally:
        GRIDS.clear()
