"""What lies between phases: the books of what is made again agree with the schedule's, and budgets are met by it."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from functools import cache

import pytest
import torch

from tilegrad.bounds import lower_graph
from tilegrad.execution import Executor, Pass
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.models import NETWORKS, example_shape
from tilegrad.planners import TileSearch
from tilegrad.planners.tile import Fit
from tilegrad.planners.tiling import (
    Between,
    Scale,
    Walks,
    cut_tiles,
    fit_tiles,
    keep_last,
    keepable,
    levels,
    make_schedule,
)
from tilegrad.planners.tiling.again import block_inputs
from tilegrad.schedule import Again, Run, Schedule, Storage, check_schedule
from tilegrad.schedule.schedule import BackwardOrder, places
from tilegrad.schedule.text import format_plan, plan_to_json
from tilegrad.sim.clock import measure_time
from tilegrad.sim.machine import CPU
from tilegrad.sim.peak import PeakBytes
from tilegrad.sim.predict import predict
from tilegrad.sim.rehearsal import Rehearsals


@cache
def lowered(name: str, size: int = 128) -> tuple[Graph, tuple[str, ...]]:
    net = NETWORKS[name](width=0.25).train()
    graph = lower_graph(export_module(net, (torch.zeros(example_shape(name, size)),), {}).graph)
    return graph, tuple(v.name for v in graph.of_kind(Kind.PARAMETER))


@pytest.mark.parametrize("fleeting", [False, True])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_weighed_as_predicted(every: int, fleeting: bool) -> None:
    graph, graded = lowered("resnet18")
    phases, scale = cut_tiles(Walks(graph), "auto", {"h": 32}, CPU), Scale(graph, graded, True, CPU)
    again = Again(frozenset(scale.stock(phases).choices[::every]), fleeting)
    schedule = make_schedule(graph, "stream", phases, Storage.DEVICE, True, again)
    weight = scale.weigh(phases, Storage.DEVICE, again)
    assert weight.total_bytes == pytest.approx(predict(schedule, graded).total_bytes, rel=0.1)
    assert weight.seconds == pytest.approx(measure_time(schedule, None, CPU).total_s, rel=0.3)
    assert schedule.remade.values == again.values


def test_none_is_made_twice_unless_fleeting() -> None:
    graph, graded = lowered("resnet18", 64)
    phases = cut_tiles(Walks(graph), "auto", {"h": 32}, CPU)
    values = frozenset(Scale(graph, graded, True, CPU).stock(phases).choices)
    for fleeting in (False, True):
        steps = make_schedule(graph, "stream", phases, Storage.DEVICE, True, Again(values, fleeting)).steps
        most = max(steps.count(Run(name)) for name in (phase.name((0,)) for phase in phases if phase.tiled))
        assert (most > 2) == fleeting


def slow_order(
    stores: Sequence[Collection[str]], reads: Sequence[tuple[set[str], set[str]]], again: Again
) -> Iterator[tuple[int, set[str]]]:
    """`BackwardOrder`, by name."""
    maker = {name: at for at, names in enumerate(stores) for name in names if name in again.values}
    there, served = set[str](), set[str]()

    def make(names: set[str]) -> Iterator[tuple[int, set[str]]]:
        for name in sorted(names & maker.keys()):
            if name not in there:
                at = maker[name]
                made = {n for n in stores[at] if n in maker and (n in names or not again.fleeting)} - there
                there.update(made)
                yield from make(reads[at][0])
                yield at, made

    for at in reversed(range(len(stores))):
        yield from make(reads[at][1])
        served.update(reads[at][1])
        there.intersection_update(served if again.fleeting else there)
        yield at, set()


@pytest.mark.parametrize("fleeting", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_made_again_in_which_order(seed: int, fleeting: bool) -> None:
    draw = random.Random(seed)
    stores = [[f"v{draw.randrange(1000)}.{at}.{k}" for k in range(draw.randrange(3))] for at in range(12)]
    reads = []
    for at in range(12):
        before = [name for names in stores[:at] for name in names]
        forward = {name for name in before if draw.random() < 0.4}
        reads.append((forward, {name for name in {*forward, *stores[at]} if draw.random() < 0.7}))
    every = [name for names in stores for name in names]
    again = Again(frozenset(name for name in every if draw.random() < 0.6), fleeting)
    order = BackwardOrder(stores, reads)
    found = [(at, {order.names[place] for place in places(bits)}) for at, bits in order(again)]
    assert found == list(slow_order(stores, reads, again))


def test_phases_are_cut_once_whatever_lies_between() -> None:
    graph, graded = lowered("resnet18")
    walks, scale = Walks(graph), Scale(graph, graded, True, CPU)
    usual = cut_tiles(walks, "auto", {"h": 32}, CPU)
    between = levels(graph, scale.stock(usual))[2]
    shared, alone = (cut_tiles(w, "auto", {"h": 32}, CPU, between=between) for w in (walks, Walks(graph)))
    assert [(p.number, p.stores, p.grid) for p in shared] == [(p.number, p.stores, p.grid) for p in alone]
    assert {id(p.forward) for p in shared if p.tiled} & {id(p.forward) for p in usual}
    found, fresh = scale.weigh(shared), Scale(graph, graded, True, CPU).weigh(alone)
    assert (found.total_bytes, found.cost, found.turn_bytes) == (fresh.total_bytes, fresh.cost, fresh.turn_bytes)
    steps = [make_schedule(graph, "stream", phases, Storage.DEVICE, True) for phases in (shared, alone)]
    assert steps[0].steps == steps[1].steps and dict(steps[0].islands) == dict(steps[1].islands)


def test_rungs_need_less_and_less() -> None:
    graph, graded = lowered("resnet50")
    phases, scale = cut_tiles(Walks(graph), "auto", {"h": 32}, CPU), Scale(graph, graded, True, CPU)
    base = scale.weigh(phases)
    tight = scale.weigh_within(phases, Storage.DEVICE, 0.0)[-1][1]
    assert scale.floor(phases, Storage.DEVICE) <= tight.total_bytes < base.total_bytes and tight.seconds > base.seconds
    for share in (0.2, 0.5, 0.8):
        budget = tight.total_bytes + share * (base.total_bytes - tight.total_bytes)
        found = scale.weigh_within(phases, Storage.DEVICE, budget)
        assert found[0][1].total_bytes <= budget and found[0][1].seconds <= tight.seconds


def test_levels_store_inputs_of_blocks() -> None:
    graph, graded = lowered("resnet18")
    walks, scale = Walks(graph), Scale(graph, graded, True, CPU)
    stock = scale.stock(cut_tiles(walks, "auto", {"h": 32}, CPU))
    assert block_inputs(graph)[:3] == ["max_pool2d", "relu__2", "relu__4"]
    found = levels(graph, stock)
    assert found[0] == Between() and found[1] == Between(frozenset({"max_pool2d"}), frozenset({"conv2d"}))
    phases = cut_tiles(walks, "auto", {"h": 32}, CPU, between=found[2])
    stores = {name for phase in phases for name in phase.stores}
    assert found[2].fluid.isdisjoint(stores) and found[2].stored <= stores


def test_budgets_are_met() -> None:
    """Far less than what all stored values need: a plan, checked, in words; more memory is no slower."""
    graph, graded = lowered("resnet18", 256)
    search = TileSearch(graph, ("h", "w"), "auto", graded, True, lambda: 0, CPU)
    kept = search.scale.weigh(cut_tiles(search.walks, "auto", {"h": 32}, CPU)).total_bytes
    floor = search.scale.outside + sum(graph.type(name).bytes for name in graded)  # and the gradients of weights
    seconds = float("inf")
    for share in (0.6, 0.75, 0.9):
        budget = int(floor + share * (kept - floor))
        fit = fit_tiles(search, budget, [Storage.DEVICE])
        assert fit is not None and fit.prediction.total_bytes <= budget
        check_schedule(fit.schedule)
        assert fit.seconds(search) <= 1.05 * seconds
        seconds = min(seconds, fit.seconds(search))
        if fit.schedule.remade.values:
            assert "stored values" in format_plan(fit.schedule)
        assert plan_to_json(fit.schedule)["remade"] == sorted(fit.schedule.remade.values)


def measured_bytes(graph: Graph, schedule: Schedule, graded: Sequence[str]) -> int:
    """What a step allocates, with data."""
    outside = [v for v in graph.values if not v.kind.computed]
    tensors = {v.name: torch.zeros(v.type.shape, dtype=getattr(torch, v.type.dtype)) for v in outside}
    for name in graded:
        tensors[name].requires_grad_()
    with PeakBytes("cpu") as peak:
        step = Pass(Executor(schedule, "cpu"), tensors, torch.device("cpu"), seed=0)
        outputs, _ = step.forward()
        step.backward([torch.ones_like(out) for out in outputs])
    return peak.bytes + sum(t.nbytes for t in tensors.values())


@pytest.mark.parametrize("fleeting", [False, True])
def test_tiles_are_kept_though_values_are_made_again(fleeting: bool) -> None:
    """A kept record may hold the memory of a value that was freed: once it is made again, it is there twice."""
    graph, graded = lowered("resnet18", 256)
    search = TileSearch(graph, ("h",), "auto", graded, True, lambda: 0, CPU)
    phases = cut_tiles(search.walks, "auto", {"h": 64}, CPU)
    again = Again(frozenset(search.scale.stock(phases).choices), fleeting)
    schedule = make_schedule(graph, "stream", phases, Storage.DEVICE, True, again)
    table = Rehearsals(schedule, graded)
    for count in (0, 60, len(keepable(schedule))):
        kept = keep_last(schedule, count)
        assert predict(kept, graded, table).total_bytes == pytest.approx(measured_bytes(graph, kept, graded), rel=0.01)
    fit = search.dialled(Fit(schedule, predict(schedule, graded, table)), 1 << 40)
    assert len(fit.schedule.kept) == len(keepable(schedule))
