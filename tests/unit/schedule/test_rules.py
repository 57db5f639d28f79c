"""Each rule of `check_schedule`, on tiles and on fused plans: a sound schedule with one thing broken names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from schedule_edits import (
    Edit,
    backward_phases_reversed,
    backward_reversed,
    both,
    drop,
    each,
    early,
    forward_reversed,
    halos,
    inside,
    island,
    keep,
    moved,
    phases_reversed,
    put,
    renamed,
    shifted,
    smaller,
    steps,
    swap,
)
from torch import nn

from tilegrad.bounds import lower_graph
from tilegrad.errors import InternalError
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.planners import plan_keep, plan_tiles
from tilegrad.planners.tiling import make_schedule
from tilegrad.schedule import (
    Again,
    Backward,
    Compute,
    Finish,
    Fold,
    Free,
    Load,
    Move,
    Run,
    Schedule,
    ScheduleStep,
    Store,
    Turn,
    check_schedule,
    fuse,
)
from tilegrad.sim.training import training_graph

FIRST, MEANS, LAST = "conv2d", "batch_norm.moments", "conv2d_1"


@cache
def network() -> Graph:
    """Two convolutions and, between them, statistics of the batch: a walk that folds, whole nodes, another walk."""
    layers = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1)
    return export_module(nn.Sequential(*layers).train(), (torch.zeros(1, 2, 12, 12),)).graph


@cache
def tiles(mode: str = "stream", *, train: bool = True) -> Schedule:
    return plan_tiles(lower_graph(network()), mode, {"h": 4, "w": 6}, train=train)


@cache
def remade() -> Schedule:
    """The first convolution's output is made again for backward."""
    found = tiles()
    return make_schedule(found.graph, found.mode, found.phases, found.storage, True, Again(frozenset({FIRST})))


@cache
def whole(*, apart: bool = True) -> Schedule:
    graph = network()
    plan = plan_keep(training_graph(graph, [v.name for v in graph.of_kind(Kind.INPUT, Kind.PARAMETER)]))
    return fuse(plan, graph, apart=apart)


# -- sound -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])
@pytest.mark.parametrize("train", [False, True])
def test_tiles_are_sound(mode: str, train: bool) -> None:
    schedule = tiles(mode, train=train)
    check_schedule(schedule)
    assert [phase.tiled for phase in schedule.phases] == [True, False, True]
    assert schedule.phases[2].grid == (3, 2) and Finish(MEANS) in schedule.steps
    assert any(island.joins for island in schedule.islands.values()) == (mode == "stream")


def test_what_is_made_again_is_sound() -> None:
    schedule = remade()
    check_schedule(schedule)
    assert schedule.remade == Again(frozenset({FIRST})) and tiles().remade == Again()
    assert schedule.steps.count(Free(FIRST)) == 2 and schedule.steps.count(Run("0:0,1")) == 2


@pytest.mark.parametrize("apart", [False, True])
def test_fused_plans_are_sound(apart: bool) -> None:
    check_schedule(whole(apart=apart))
    assert (len(whole(apart=apart).islands) > 1) == apart


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        ("S8", lambda step, behind: behind and step == Run("0:0,1")),
        ("S1", lambda step, behind: behind and isinstance(step, Run) and step.island[0] == "0" and not step.keep),
        ("S6", lambda step, behind: behind and step == Free(FIRST)),
    ],
    ids=["one tile of it missing", "never made again", "never freed"],
)
def test_what_is_made_again_is_whole(rule: str, gone: Callable[[ScheduleStep, bool], bool]) -> None:
    schedule = remade()
    left = tuple(step for at, step in enumerate(schedule.steps) if not gone(step, at > schedule.turn))
    with pytest.raises(InternalError, match=f"rule {rule}"):
        check_schedule(replace(schedule, steps=left))


# -- broken ------------------------------------------------------------------------------------------------------------

TILES: dict[str, tuple[str, Edit]] = {
    "an island that is not there": ("S1", put(Run("9:9"), Turn())),
    "a value that is not there": ("S1", put(Free("nothing"), Turn())),
    "phases reversed": ("S1|S10", phases_reversed),
    "a free too early": ("S1", early(Free(FIRST), Turn())),
    "a reduction that is freed too early": ("S1", early(Free(MEANS), Turn())),
    "a free twice": ("S1", put(Free(FIRST), Free(FIRST))),
    "no result of a reduction": ("S1|S10", drop(Finish(MEANS))),
    "a result before the last tile": ("S8|S10", early(Finish(MEANS), Run("0:2,1"))),
    "nodes that never run": ("S2", drop(Run("1"), Run("1", keep=True), Backward("1"))),
    "a parameter is freed": ("S3", put(Free("p_0_weight"), Turn())),
    "an input moves": ("S3", put(Move("input", "host"), Turn())),
    "the output is freed": ("S4", put(Free(LAST), Turn())),
    "the output moves": ("S4", put(Move(LAST, "host"), Turn())),
    "a new buffer is freed": ("S4", put(Free("batch_norm.running_stat"), Run("1"))),
    "a new buffer moves": ("S4", put(Move("batch_norm.running_stat", "host"), Run("1"))),
    "fetched from nowhere": ("S5", put(Move(FIRST, "device"), Turn())),
    "a value that is never freed": ("S6", drop(Free(FIRST))),
    "a reduction that is never freed": ("S6", drop(Free(MEANS))),
    "a record that is never used": ("S6", drop(Backward("0:0,0"))),
    "a record that is kept for nothing": (
        "S6",
        both(drop(Run("0:0,0", keep=True), Backward("0:0,0")), swap(Run("0:0,0"), Run("0:0,0", keep=True))),
    ),
    "a box that is loaded too small": (
        "S7",
        each("2:1,0", lambda s: Load(s.value, smaller(s.box)) if isinstance(s, Load) else s),
    ),
    "nothing is loaded": ("S7", each("2:1,0", lambda s: None if isinstance(s, Load) else s)),
    "computed before it is loaded": ("S7", inside("0:1,0", lambda s: [s[1], s[0], *s[2:]])),
    "freed before it is stored": ("S7", inside("0:1,0", lambda s: [*s[:2], Free(FIRST), *s[2:]])),
    "stored more than is made": (
        "S7",
        each("0:1,0", lambda s: Store(s.value, moved(s.box, 1)) if isinstance(s, Store) else s),
    ),
    "folded more than is made": (
        "S7",
        each("0:1,0", lambda s: Fold(s.node, moved(s.box, 1)) if isinstance(s, Fold) else s),
    ),
    "a parameter that is not said to be read": (
        "S7",
        island("2:1,0", lambda found: replace(found, whole=found.whole - {"p_3_weight"})),
    ),
    "held without its halos": (
        "S7|S9",
        both(
            halos("2:0,0", lambda halo: None if halo.axis == 0 else halo, given=True),
            halos("2:1,0", lambda halo: None if halo.axis == 0 else halo),
        ),
    ),
    "a wrong halo, given and taken": (
        "S7|S9",
        both(
            halos("2:0,0", lambda h: replace(h, box=moved(h.box, -1)) if h.axis == 0 else h, given=True),
            halos("2:1,0", lambda h: replace(h, box=moved(h.box, -1)) if h.axis == 0 else h),
        ),
    ),
    "a halo of what is not held": (
        "S7|S9",
        both(
            halos("2:0,0", lambda h: replace(h, box=moved(h.box, 9)) if h.axis == 0 else h, given=True),
            halos("2:1,0", lambda h: replace(h, box=moved(h.box, 9)) if h.axis == 0 else h),
        ),
    ),
    "a tile does not run": ("S8", drop(Run("0:1,0"))),
    "a tile of the last phase does not run": ("S8|S9", drop(Run("2:2,1"))),
    "a tile twice under another name": ("S8", renamed("0:1,0", "0:x")),
    "a box that is not stored": ("S8", each("0:1,0", lambda s: None if isinstance(s, Store) else s)),
    "a box of the output that is not stored": ("S8", each("2:1,0", lambda s: None if isinstance(s, Store) else s)),
    "a box that is not folded": ("S8", each("0:1,0", lambda s: None if isinstance(s, Fold) else s)),
    "a box that is folded twice": (
        "S8",
        inside("0:1,0", lambda found: [new for s in found for new in ([s, s] if isinstance(s, Fold) else [s])]),
    ),
    "a tile one row off": ("S8", each("0:1,0", shifted)),
    "a halo one row off, taken": ("S9", halos("2:1,0", lambda h: replace(h, box=moved(h.box, -1)))),
    "a halo one row off, given": ("S9", halos("2:0,0", lambda h: replace(h, box=moved(h.box, -1)), given=True)),
    "a halo of another tile": ("S9", halos("2:1,0", lambda h: replace(h, peer="2:2,1"))),
    "a halo that is not given": ("S9", halos("2:0,0", lambda h: None, given=True)),
    "tiles in reverse order": ("S9", forward_reversed),
    "a result twice": ("S10", put(Finish(MEANS), Finish(MEANS))),
    "a result again behind the turn": ("S10", put(Finish(MEANS), Turn())),
    "a part that comes too late": ("S10", put(Run("0:2,1"), Finish(MEANS))),
    "two turns": ("S11", put(Turn(), Turn())),
    "no turn": ("S10|S11", drop(Turn())),
    "a backward before the turn": ("S11", early(Turn(), Run("1", keep=True))),
    "a backward without a record": ("S11", steps(lambda f: [Run("1") if s == Run("1", keep=True) else s for s in f])),
    "a backward before its run": ("S6|S11", swap(Run("1", keep=True), Backward("1"))),
    "a backward twice": ("S11", put(Backward("1"), Backward("1"))),
    "no backward of a tile": ("S11", drop(Run("0:1,0", keep=True), Backward("0:1,0"))),
    "backwards of tiles in forward order": ("S11", backward_reversed),
    "backwards of phases in forward order": ("S11", backward_phases_reversed),
}


@pytest.mark.parametrize("case", TILES)
def test_each_rule_of_tiles(case: str) -> None:
    rule, edit = TILES[case]
    check_broken(edit(tiles()), rule)


def check_broken(schedule: Schedule, rule: str) -> None:
    with pytest.raises(InternalError, match=f"schedule breaks rule ({rule}):"):
        check_schedule(schedule)


GATHER: dict[str, tuple[str, Edit]] = {
    "no backward of a tile": ("S11", drop(Run("0:1,0'", keep=True), Backward("0:1,0'"))),
    "a box that is loaded too small": (
        "S7",
        each("2:1,0'", lambda s: Load(s.value, smaller(s.box), s.share) if isinstance(s, Load) else s),
    ),
    "a backward of a tile of the forward pass": ("S11", put(Backward("2:1,0"), Backward("2:1,0'"))),
    "phases in forward order": ("S11", backward_phases_reversed),
}


@pytest.mark.parametrize("case", GATHER)
def test_each_rule_where_backward_has_other_tiles(case: str) -> None:
    rule, edit = GATHER[case]
    check_broken(edit(tiles("gather")), rule)


def test_without_training_there_is_no_backward() -> None:
    schedule = tiles(train=False)
    check_broken(drop(Turn())(schedule), "S11")
    check_broken(put(Turn(), Turn())(schedule), "S11")
    check_broken(drop(Run("2:1,0"))(schedule), "S8|S9")
    check_broken(steps(lambda found: [replace(s, keep=True) if s == Run("1") else s for s in found])(schedule), "S6")


NORM = "batch_norm"
AWAY = both(put(Move(FIRST, "host"), Run(NORM, keep=True)), put(Free(FIRST), Move(FIRST, "host")))
WHOLE: dict[str, tuple[str, Edit]] = {
    "nodes in another order": ("S1", swap(Run(FIRST, keep=True), Run(NORM, keep=True))),
    "a free before the backward that reads it": ("S1", early(Free("relu"), Backward("relu"))),
    "away while backward reads it": ("S1", AWAY),
    "a node that never runs": ("S2", drop(Run("add_"))),
    "a buffer is freed": ("S3", put(Free("b_1_running_mean"), Turn())),
    "the output is freed": ("S4", put(Free(LAST), Turn())),
    "a new counter is freed": ("S4", put(Free("add_"), Run("add_"))),
    "fetched while there": ("S5", put(Move(FIRST, "device"), Turn())),
    "fetched twice": (
        "S5",
        both(AWAY, lambda s: put(Move(FIRST, "device"), Turn())(put(Move(FIRST, "device"), Turn())(s))),
    ),
    "a record that is fetched from nowhere": ("S5", put(Move(f"{NORM}.saved", "device"), Turn())),
    "a record that is away when it is used": (
        "S1|S5|S11",
        both(put(Move(f"{NORM}.saved", "host"), Turn()), put(Free(f"{NORM}.saved"), Move(f"{NORM}.saved", "host"))),
    ),
    "a value that is never freed": ("S6", drop(Free(FIRST))),
    "made while it is there": ("S6", put(Run("relu"), Run("relu", keep=True))),
    "a record that is never used": ("S6", drop(Backward(FIRST))),
    "a value that is not said to be read": (
        "S7",
        island(LAST, lambda found: replace(found, whole=found.whole - {"p_3_weight"})),
    ),
    "nothing is stored": ("S1|S8", each("relu", lambda s: None if isinstance(s, Store) else s)),
    "half is stored": (
        "S8",
        each("relu", lambda s: Store(s.value, smaller(s.box)) if isinstance(s, Store) else s),
    ),
    "two turns": ("S11", put(Turn(), Turn())),
    "a backward before the turn": ("S11", early(Turn(), Backward("relu"))),
    "a backward without a record": ("S11", keep("relu", kept=False)),
    "a backward without the record that was given up": ("S11", put(Free(f"{NORM}.saved"), Turn())),
    "a backward too early": ("S11", swap(Backward(LAST), Backward("relu"))),
    "a backward twice": ("S11", put(Backward(LAST), Backward(LAST))),
    "no backward of a node": ("S11", both(drop(Backward("relu")), keep("relu", kept=False))),
}


@pytest.mark.parametrize("case", WHOLE)
def test_each_rule_of_fused_plans(case: str) -> None:
    rule, edit = WHOLE[case]
    check_broken(edit(whole()), rule)


ALL = "conv2d..conv2d_1"
ONE: dict[str, tuple[str, Edit]] = {
    "no turn": ("S11", drop(Turn())),
    "no backward": ("S6", drop(Backward(ALL))),
    "a backward twice": ("S11", put(Backward(ALL), Backward(ALL))),
    "a backward without a record": ("S11", keep(ALL, kept=False)),
    "the output is not stored": ("S1|S8", each(ALL, lambda s: None if isinstance(s, Store) else s)),
    "a node is left out": ("S2|S7", each(ALL, lambda s: None if isinstance(s, Compute) and s.node == "relu" else s)),
}


@pytest.mark.parametrize("case", ONE)
def test_one_island_for_all(case: str) -> None:
    rule, edit = ONE[case]
    check_broken(edit(whole(apart=False)), rule)
