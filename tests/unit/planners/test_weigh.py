"""Tiles weighed in closed form come near what a rehearsal finds: bytes, seconds, and what kept tiles hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from thorough import crossed
from tilegrad.bounds import lower_graph
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.models import NETWORKS, example_shape
from tilegrad.planners import TileSearch
from tilegrad.planners.tiling import Scale, Walks, cut_tiles, fit_tiles, keep_last, make_schedule
from tilegrad.planners.tiling import seconds as closed
from tilegrad.schedule import Storage
from tilegrad.sim import clock
from tilegrad.sim.clock import FREE, measure_time
from tilegrad.sim.machine import CPU, PRESETS, Machine
from tilegrad.sim.predict import predict
from tilegrad.sim.rehearsal import Rehearsals


@cache
def lowered(name: str, *, train: bool, size: int = 256) -> tuple[Graph, tuple[str, ...]]:
    net = NETWORKS[name](width=0.25, **({"head": "pool"} if name == "vgg16" else {}))
    net.train(train)
    graph = lower_graph(export_module(net, (torch.zeros(example_shape(name, size)),), {}).graph)
    return graph, tuple(v.name for v in graph.of_kind(Kind.PARAMETER))


NETS = [("unet", True), ("vgg16", True), ("resnet18", True), ("resnet18", False), ("efficientnet_b0", False)]
MODES = ["auto", "stream", "scatter", "gather"]


@pytest.mark.parametrize(
    ("name", "train", "mode", "tile"), crossed(NETS, MODES, [{"h": 64}, {"h": 64, "w": 128}]), ids=str
)
def test_bytes_and_seconds(name: str, train: bool, mode: str, tile: dict[str, int]) -> None:
    graph, graded = lowered(name, train=train)
    phases = cut_tiles(Walks(graph), mode, tile, CPU)
    weight = Scale(graph, graded, True, CPU).weigh(phases)
    schedule = make_schedule(graph, "stream" if mode == "auto" else mode, phases, Storage.DEVICE, True)
    table = Rehearsals(schedule, graded)
    found = predict(schedule, graded, table).total_bytes
    # Small images: what tiles at the border pad by themselves is not weighed, nor how far tiles overlap in gather mode.
    assert weight.total_bytes == pytest.approx(found, rel=0.5 if mode == "gather" else 0.25)
    if mode != "gather":
        assert weight.seconds == pytest.approx(measure_time(schedule, None, CPU).total_s, rel=0.45)
        half = len(weight.kept_bytes) // 2
        kept = predict(keep_last(schedule, half), graded, table).total_bytes
        assert weight.with_kept(half) == pytest.approx(kept, rel=0.4)


@pytest.mark.parametrize(
    ("term", "nothing", "machine"),
    [
        ("weights_seconds", lambda call, machine: 0.0, CPU),
        ("weights_seconds", lambda call, machine: 0.0, PRESETS["h200"].recorded),
        ("laid_seconds", lambda call, machine: 0.0, PRESETS["h200"].recorded),
        ("entered", lambda machine: FREE, replace(PRESETS["h200"], bytes_per_s=1e18, flops_per_s=1e20, rates={})),
    ],
)
def test_what_the_clock_adds_is_weighed_alike(
    term: str, nothing: object, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds are counted island by island and in closed form: by both, each term is worth the same."""
    graph, graded = lowered("vgg16", train=True)
    phases = cut_tiles(Walks(graph), "stream", {"h": 64, "w": 64}, machine)
    schedule = make_schedule(graph, "stream", phases, Storage.DEVICE, True)

    def seconds() -> tuple[float, float]:
        return Scale(graph, graded, True, machine).weigh(phases).seconds, measure_time(schedule, None, machine).total_s

    weighed, counted = seconds()
    monkeypatch.setattr(clock, term, nothing)
    monkeypatch.setattr(closed, term, nothing)
    without_weighed, without_counted = seconds()
    assert counted > 1.001 * without_counted
    assert weighed - without_weighed == pytest.approx(counted - without_counted, rel=0.1)


def test_rows_where_a_gpu_would_copy_squares() -> None:
    graph, _ = lowered("unet", train=True, size=512)
    machine = PRESETS["h200"].recorded

    def seconds(tile: dict[str, int]) -> float:
        phases = cut_tiles(Walks(graph), "stream", tile, machine)
        return measure_time(make_schedule(graph, "stream", phases, Storage.DEVICE, True), None, machine).total_s

    assert seconds({"h": 32}) < seconds({"h": 128, "w": 128})


def test_where_values_are_kept_elsewhere() -> None:
    """Halos and what lies between phases do not count, and moving them takes time."""
    graph, graded = lowered("resnet18", train=True)
    phases, scale = cut_tiles(Walks(graph), "stream", {"h": 64}, CPU), Scale(graph, graded, True, CPU)
    near, far = scale.weigh(phases), scale.weigh(phases, Storage.DISK)
    assert far.total_bytes < 0.8 * near.total_bytes and far.seconds > near.seconds
    assert scale.floor(phases, Storage.DISK) < scale.floor(phases, Storage.DEVICE) < near.total_bytes
    schedule = make_schedule(graph, "stream", phases, Storage.DISK, True)
    assert far.total_bytes == pytest.approx(predict(schedule, graded).total_bytes, rel=0.15)


def test_inference() -> None:
    graph, _ = lowered("unet", train=False)
    phases = cut_tiles(Walks(graph), "auto", {"h": 32}, CPU)
    weight = Scale(graph, (), False, CPU).weigh(phases)
    schedule = make_schedule(graph, "stream", phases, Storage.DEVICE, False)
    assert weight.total_bytes == pytest.approx(predict(schedule, ()).total_bytes, rel=0.15)


@pytest.mark.parametrize("name", ["unet", "mobilenet_v2"])
def test_more_memory_is_never_slower(name: str) -> None:
    """What fits a budget fits a larger one, and the plan for it takes no longer; the same question, the same answer."""
    graph, graded = lowered(name, train=name != "mobilenet_v2", size=128)
    search = TileSearch(graph, ("h", "w"), "auto", graded, True, lambda: 0, PRESETS["a100"])
    plain = search.scale.weigh(cut_tiles(search.walks, "none", {})).total_bytes
    latest, seconds = None, float("inf")
    for share in (0.2, 0.35, 0.5, 0.65, 0.8, 0.95):
        fit = fit_tiles(search, int(share * plain), [Storage.DEVICE])
        assert fit is not None or latest is None
        if fit is not None:
            assert fit.prediction.total_bytes <= share * plain
            assert fit.seconds(search) <= 1.03 * seconds
            latest, seconds = fit, min(seconds, fit.seconds(search))
    assert latest is not None
    again = fit_tiles(TileSearch(graph, ("h", "w"), "auto", graded, True, lambda: 0, PRESETS["a100"]),
                      int(0.95 * plain), [Storage.DEVICE])  # fmt: skip
    assert again is not None and again.schedule.steps == latest.schedule.steps
