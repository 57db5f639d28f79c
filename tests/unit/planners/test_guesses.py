"""Footprints told from tables: the peak is that of rehearsing every island, and few are rehearsed."""

from __future__ import annotations

import pytest
from test_again import lowered

from thorough import crossed
from tilegrad.planners.tile import TileSearch
from tilegrad.planners.tiling import Guesses, keep_last, keepable
from tilegrad.schedule import Schedule
from tilegrad.sim.clock import measure_time
from tilegrad.sim.machine import CPU
from tilegrad.sim.predict import predict
from tilegrad.sim.rehearsal import Rehearsals

TILES = [("resnet18", 256, {"h": 32}), ("resnet18", 256, {"h": 64, "w": 64}), ("unet", 188, {"h": 32, "w": 32}),
         ("mobilenet_v2", 256, {"h": 32}), ("convnext_tiny", 256, {"h": 64, "w": 64})]  # fmt: skip


def schedules(name: str, size: int, tile: dict[str, int], storage: str) -> tuple[TileSearch, list[Schedule]]:
    graph, graded = lowered(name, size)
    search = TileSearch(graph, ("h", "w"), "auto", graded, True, lambda: 0, CPU)
    found = search.cut(tile, storage)
    count = len(keepable(found))
    return search, [keep_last(found, kept) for kept in (0, count // 3, count)]


@pytest.mark.parametrize(("name", "size", "tile", "storage"), crossed(TILES, ["device", "host"]))
def test_the_peak_is_that_of_rehearsals(name: str, size: int, tile: dict[str, int], storage: str) -> None:
    search, plans = schedules(name, size, tile, storage)
    for plan in plans:
        exact, table = Rehearsals(plan, search.graded), Rehearsals(plan, search.graded)
        expected = predict(plan, search.graded, exact)
        found = Guesses(plan, search.scale, table).predict(plan)
        assert found.total_bytes == pytest.approx(expected.total_bytes, rel=0.01)
        assert len(table._known) < len(exact._known)


@pytest.mark.parametrize("about", [0.9, 1.0, 1.1])
@pytest.mark.parametrize(("name", "size", "tile"), TILES[:4])
def test_what_comes_near_the_peak_is_rehearsed_on_the_way(
    name: str, size: int, tile: dict[str, int], about: float
) -> None:
    """Whatever was thought of the peak before, it is that of rehearsals."""
    search, plans = schedules(name, size, tile, "device")
    for plan in plans:
        expected = predict(plan, search.graded, Rehearsals(plan, search.graded))
        table = Guesses(plan, search.scale, Rehearsals(plan, search.graded))
        found = table.predict(plan, about * expected.total_bytes)
        assert found.total_bytes == pytest.approx(expected.total_bytes, rel=0.01)


def test_no_tiles_are_faster_than_the_least() -> None:
    for name, size, tile in TILES:
        search, plans = schedules(name, size, tile, "device")
        assert all(measure_time(plan, None, search.machine).total_s >= search.least_seconds for plan in plans)


def test_what_is_at_the_peak_was_rehearsed() -> None:
    """Tables that are wrong by a fifth are found out where it matters."""
    search, (plan, *_) = schedules("resnet18", 256, {"h": 32}, "device")
    true = search.scale.tile_bytes

    def wrong(phase: object, near: bool) -> object:
        found = true(phase, near)  # type: ignore[arg-type]
        for sizes in (found.plain, found.graded, found.back):
            sizes *= 0.8
        return found

    search.scale.tile_bytes = wrong  # type: ignore[assignment]
    found = Guesses(plan, search.scale, Rehearsals(plan, search.graded)).predict(plan)
    expected = predict(plan, search.graded, Rehearsals(plan, search.graded))
    assert found.total_bytes == pytest.approx(expected.total_bytes, rel=0.01)
