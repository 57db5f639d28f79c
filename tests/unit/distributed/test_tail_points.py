"""Behind which points ranks may run whole maps, and which the planner takes. Without processes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from test_mesh_plan import graph_of, mesh, weights
from torch import Tensor, nn

from tilegrad.bounds.mesh import Mesh
from tilegrad.models import resnet18, unet, vgg16
from tilegrad.planners import MeshProblem
from tilegrad.planners.mesh import plan_rank
from tilegrad.planners.ranks.exchange import choose_exchanged
from tilegrad.planners.ranks.plan import plan_mesh
from tilegrad.planners.ranks.tail import NO_POINT, TailPoint, choose_tail, tails
from tilegrad.schedule import Exchange, Sum, check_schedule, format_schedule, parse_schedule
from tilegrad.schedule.rules import check_peers
from tilegrad.sim.machine import PRESETS

SMALL = graph_of(resnet18(), 1, 3, 192, 192)
TWO = mesh(h=2)


def chosen(size: int, **how: object) -> TailPoint:
    graph = SMALL if size == 192 else graph_of(resnet18(), 1, 3, size, size)
    ranks = MeshProblem(graph, TWO, 0, weights(graph), **how)  # type: ignore[arg-type]
    return choose_tail(ranks, choose_exchanged(ranks))


def test_small_images_have_a_tail_and_large_ones_none() -> None:
    assert chosen(192) in tails(SMALL, ("h",))
    assert chosen(1024) == NO_POINT
    graph = graph_of(vgg16(width=0.25, head="pool"), 1, 3, 1024, 1024)
    ranks = MeshProblem(graph, TWO, 0, weights(graph))
    assert choose_tail(ranks, choose_exchanged(ranks)) == NO_POINT


@pytest.mark.parametrize("how", [{"exchange": "layer"}, {"exchange": "segment"}, {"machine": PRESETS["h200"]}], ids=str)
def test_who_says_how_halos_move_has_no_tail(how: dict[str, object]) -> None:
    assert chosen(192, **how) == NO_POINT


def test_one_rank_has_none() -> None:
    assert choose_tail(MeshProblem(SMALL, mesh(h=1), 0, weights(SMALL)), ()) == NO_POINT


def test_all_ranks_choose_alike() -> None:
    found = [choose_tail(MeshProblem(SMALL, TWO, rank, weights(SMALL)), ()) for rank in range(2)]
    assert found[0] == found[1] != NO_POINT


def test_points_lie_where_one_value_crosses() -> None:
    """In front of each block, and of the pool: inside of a block two values cross."""
    points = tails(SMALL, ("h",))
    assert len(points) == 8 + 1
    assert all(a.nodes == b.nodes[-len(a.nodes) :] for a, b in pairwise(points))


def test_no_point_lies_before_an_output_that_is_cut() -> None:
    assert tails(graph_of(unet(width=1 / 16, depth=2), 1, 1, 32, 32), ("h",)) == []
    assert tails(SMALL, ("n",)) == []  # the logits of each sample lie with it

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            first = self.b(self.a(x))
            return first, self.c(first.relu()).sum((2, 3))

    (point,) = tails(graph_of(Two(), 1, 4, 16, 16), ("h",))  # behind what is given out as a part
    assert point.value == "relu"


def test_a_budget_that_has_no_room_for_whole_maps() -> None:
    graph = graph_of(resnet18(width=0.5), 1, 3, 192, 192)
    problem = MeshProblem(graph, TWO, 0, weights(graph))
    free, parts = plan_rank(problem, None), plan_rank(MeshProblem(graph, TWO, 0, weights(graph), "segment"), None)
    assert free.mesh_plan.placement.whole and "run whole on every rank" in str(free)
    most = free.schedule.predicted["total_bytes"]
    assert parts.schedule.predicted["total_bytes"] < most
    tight = plan_rank(problem, int(most) - 1)
    assert not tight.mesh_plan.placement.whole
    assert tight.schedule.predicted["total_bytes"] < most


@pytest.mark.parametrize("on", [TWO, mesh(h=2, w=2), mesh(w=3, h=2)], ids=lambda m: str(m.sizes))
def test_gradients_of_what_crosses_come_from_the_first_rank(on: Mesh) -> None:
    """Which sends and never takes; every other rank is told its own box, or all of a line that it hands on."""
    for point in tails(SMALL, on.axes)[::4]:
        plan = plan_mesh(SMALL, on, whole=point.nodes)
        needs = {v.name for v in SMALL.values}
        check_peers({on.rank(c): plan.exchange_steps(c, needs) for c in on.coords()})
        for coords in on.coords():
            back = [s for s in plan.exchange_steps(coords, needs) if s.gradient and point.value in s.values]
            takes = [strip for step in back for strip in step.takes if strip.value == point.value]
            assert len(takes) == (0 if not any(coords) else 1)


def test_a_schedule_with_a_tail_reads_back() -> None:
    plan = plan_mesh(SMALL, TWO, whole=tails(SMALL, ("h",))[0].nodes)
    schedule = plan.schedule((1,), weights(SMALL))
    check_schedule(schedule)
    again = parse_schedule(format_schedule(schedule), schedule.graph)
    assert again.steps == schedule.steps and again.seat == schedule.seat
    assert any(isinstance(step, Sum) and step.first for step in again.steps)
    assert any(isinstance(step, Exchange) and step.gradient for step in again.steps)
