"""Of tiles that take about as long: those that store near by, then the fewest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilegrad.planners.tiling.fitting import NEAR, Option, _fastest
from tilegrad.schedule import Storage


def option(storage: str, tiles: int, seconds: float) -> Option:
    weight: Any = SimpleNamespace(total_bytes=10, keep=lambda budget: (0, seconds))
    phase: Any = SimpleNamespace(grid=(tiles,))
    return Option("stream", storage, (phase,), weight)


def chosen(*options: Option) -> Option:
    search: Any = SimpleNamespace(
        loss_bytes=0, rehearse=lambda option: SimpleNamespace(prediction=SimpleNamespace(total_bytes=10), option=option)
    )
    fit: Any = _fastest(search, list(options), 100)
    found: Option = fit.option
    return found


LITTLE, MUCH = (1 + NEAR) / 2, 2 * NEAR - 1


@pytest.mark.parametrize(
    ("host", "storage"),
    [((2, 1.0), Storage.DEVICE), ((2, 1 / LITTLE), Storage.DEVICE), ((8, 1 / MUCH), Storage.HOST)],
    ids=["fewer tiles", "a little faster", "faster"],
)
def test_farther_away_only_where_that_is_faster(host: tuple[int, float], storage: str) -> None:
    assert chosen(option(Storage.DEVICE, 4, 1.0), option(Storage.HOST, *host)).storage == storage


def test_of_one_place_the_fewest() -> None:
    assert chosen(option(Storage.DEVICE, 8, 1.0), option(Storage.DEVICE, 4, LITTLE)).tiles == 4
