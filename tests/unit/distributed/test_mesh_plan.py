"""Plans on a mesh, without processes: who owns what, what moves, and what the planner chooses."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from tilegrad.bounds import lower_graph, needed_gradients
from tilegrad.bounds.mesh import Mesh, name_axes
from tilegrad.errors import BudgetError, GridError, InputError, InternalError
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.planners import MeshProblem
from tilegrad.planners.mesh import plan_rank
from tilegrad.planners.ranks.account import _account, imbalance, make_accounts
from tilegrad.planners.ranks.exchange import choose_exchanged, layer_inputs
from tilegrad.planners.ranks.forecast import OnPaper
from tilegrad.planners.ranks.plan import MeshPlan, plan_mesh
from tilegrad.schedule import Exchange
from tilegrad.schedule.rules import check_peers
from tilegrad.sim.links import LINKS
from tilegrad.sim.machine import CPU


def graph_of(net: nn.Module, *shape: int) -> Graph:
    return lower_graph(export_module(net, (shape,)).graph)


def stack(count: int) -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(count)))


def mesh(**axes: int) -> Mesh:
    count = 1
    for size in axes.values():
        count *= size
    return Mesh(tuple(axes), tuple(axes.values()), tuple(range(count)))


def covered_once(plan: MeshPlan, value: str) -> bool:
    total = sum(plan.owned(value, c).volume for c in plan.mesh.coords())
    apart = all(
        plan.owned(value, a).meet(plan.owned(value, b)).empty for a, b in itertools.combinations(plan.mesh.coords(), 2)
    )
    return apart and total == plan.graph.type(value).size


@pytest.mark.parametrize("axes", [{"h": 3}, {"w": 4}, {"h": 2, "w": 2}, {"n": 2, "h": 2}])
def test_every_element_has_one_owner(axes: dict[str, int]) -> None:
    plan = plan_mesh(graph_of(stack(3), 2, 4, 17, 19), mesh(**axes))
    for value in (*plan.graph.inputs, *plan.graph.outputs):
        assert covered_once(plan, value)


def test_what_moves_is_what_is_needed_and_not_owned() -> None:
    plan = plan_mesh(graph_of(stack(2), 1, 4, 16, 8), mesh(h=2))
    (source,) = plan.graph.inputs
    (first, _), (second, _) = sorted(plan.strips(source, (0,), "h"), key=lambda strip: strip[1])
    assert (first.box[2], second.box[2]) == ((8, 10), (6, 8))  # two layers of 3x3 reach two rows
    assert plan.needed(source, (0,))[2] == (0, 10)


def test_eight_neighbours_cost_four_messages() -> None:
    """Rows, then columns with what the rows brought. Bytes: little more than what is needed and not owned."""
    graph = graph_of(nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))), 1, 4, 192, 192)
    for exchanged in ((), layer_inputs(graph, mesh(h=3, w=3))):
        plan = plan_mesh(graph, mesh(h=3, w=3), exchanged=exchanged)
        needs = needed_gradients(plan.graph, (*weights(plan.graph), *plan.graph.inputs))
        for coords in plan.mesh.coords():
            sent = Counter[tuple[tuple[str, ...], bool]]()
            taken = Counter[str]()
            for step in plan.exchange_steps(coords, needs):
                sent[step.values, step.gradient] += len({strip.rank for strip in step.gives})
                for strip in step.takes if not step.gradient else ():
                    taken[strip.value] += strip.box.volume
            assert 0 < max(sent.values()) <= 4
            least = {v: plan.needed(v, coords).volume - plan.owned(v, coords).volume for v in taken}
            assert all(least[v] <= taken[v] <= 1.05 * least[v] for v in taken)


def test_ranks_that_are_alike_are_counted_once() -> None:
    net = nn.Sequential(stack(1), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Conv2d(4, 4, 5, padding=2))
    for length in (64, 61):
        plan = plan_mesh(graph_of(net, 1, 4, length, 64), mesh(h=5, w=3))
        needs = needed_gradients(plan.graph, weights(plan.graph))
        each = [_account(plan, coords, needs) for coords in plan.mesh.coords()]
        assert make_accounts(plan, weights(plan.graph)) == each


def test_a_forecast_grows_with_slower_links_and_shrinks_with_ranks() -> None:
    graph = graph_of(nn.Sequential(stack(4), nn.BatchNorm2d(4)), 1, 4, 512, 512)
    paper = [OnPaper(MeshProblem(graph, mesh(h=n, w=n), 0, weights(graph), "auto", CPU)) for n in (1, 2, 4)]
    for link in LINKS.values():
        one, four, many = (each.over(link) for each in paper)
        assert one.halo_s == one.messages == one.sent_bytes == 0 < four.halo_s
        assert one.compute_s > four.compute_s > many.compute_s and one.peak_bytes > four.peak_bytes > many.peak_bytes
        assert four.fits and four.tiles == 1
        assert four.step_s == pytest.approx(sum((four.compute_s, four.halo_s, four.fold_s, four.sum_s)))
    slower = [paper[1].over(LINKS[name]).step_s for name in ("nvlink", "infiniband", "ethernet", "loopback")]
    assert slower == sorted(slower)
    tight = OnPaper(paper[0].ranks, int(0.7 * paper[0].over(LINKS["nvlink"]).peak_bytes)).over(LINKS["nvlink"])
    assert tight.tiles > 1 and tight.fits


def weights(graph: Graph) -> tuple[str, ...]:
    return tuple(v.name for v in graph.of_kind(Kind.PARAMETER))


def test_a_segment_sends_many_times_fewer_messages_than_layers() -> None:
    graph = graph_of(stack(16), 1, 4, 128, 64)
    four = mesh(h=4)
    per_segment = make_accounts(plan_mesh(graph, four))
    per_layer = make_accounts(plan_mesh(graph, four, exchanged=layer_inputs(graph, four)))
    for one, many in zip(per_segment, per_layer, strict=True):
        assert many.messages >= 8 * one.messages


def test_the_planner_weighs_messages_against_work() -> None:
    wide = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(6)))
    small, large = graph_of(stack(6), 1, 4, 32, 32), graph_of(wide, 1, 64, 512, 4096)
    assert choose_exchanged(MeshProblem(small, mesh(h=2), 0, weights(small))) == ()
    assert len(choose_exchanged(MeshProblem(large, mesh(h=2), 0, weights(large)))) >= 3
    assert len(choose_exchanged(MeshProblem(small, mesh(h=2), 0, weights(small), "layer"))) == 5


def test_work_is_shared() -> None:
    accounts = make_accounts(plan_mesh(graph_of(stack(2), 1, 4, 64, 64), mesh(h=2, w=2)))
    assert imbalance(accounts) == pytest.approx(1.0)
    whole = make_accounts(plan_mesh(graph_of(stack(2), 1, 4, 64, 64), mesh(h=1)))[0]
    assert sum(a.work_flops for a in accounts) == pytest.approx(whole.work_flops, rel=0.1)
    assert sum(a.work_flops for a in accounts) > whole.work_flops  # the overlap


def test_uneven_cuts_go_with_the_image() -> None:
    uneven = Mesh(("h",), (3,), (0, 1, 2), {"h": ((0, 2, 10, 16), 16)})
    plan = plan_mesh(graph_of(nn.Conv2d(4, 4, 2, stride=2), 1, 4, 16, 16), uneven)
    (out,) = plan.graph.outputs
    assert [plan.owned(out, c)[2] for c in plan.mesh.coords()] == [(0, 1), (1, 5), (5, 8)]


def test_a_budget_buys_tiles() -> None:
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())))
    graph = graph_of(net, 1, 8, 128, 64)
    ranks = MeshProblem(graph, mesh(h=2), 0, weights(graph), "segment")
    kept = int(plan_rank(ranks, None).schedule.predicted["total_bytes"])
    plain = plan_rank(ranks, kept)
    assert plain.kept and plain.schedule.predicted["total_bytes"] == kept
    less = int(0.6 * kept)
    tight = plan_rank(ranks, less)
    assert not tight.kept and tight.to_json()["tiles"] > 1
    assert tight.schedule.predicted["total_bytes"] <= less
    with pytest.raises(BudgetError, match="smallest plan found needs"):
        plan_rank(ranks, 1000)


def test_a_rank_s_plan_in_words() -> None:
    graph = graph_of(stack(4), 1, 4, 64, 64)
    plan = plan_rank(MeshProblem(graph, mesh(h=2, w=2), 1, weights(graph)), None)
    text = str(plan)
    assert len(text.splitlines()) <= 25
    assert "rank        1 of 2 along h, 2 along w" in text
    assert re.search(r"moved       \S+B sent, \S+B received a step; halos \d+ times forward", text)
    assert len(repr(plan)) < 120


def test_bad_meshes() -> None:
    with pytest.raises(GridError, match="5 ranks along h, but input"):
        plan_mesh(graph_of(stack(1), 1, 4, 4, 8), mesh(h=5))
    with pytest.raises(InputError, match="axes"):
        Mesh(("h", "h"), (2, 2), (0, 1, 2, 3))
    with pytest.raises(InputError, match="no named axes"):
        name_axes(None)
    with pytest.raises(InputError, match="'rows'"):
        name_axes(("rows",))


def test_an_operator_without_a_box_rule_is_refused() -> None:
    class Inverts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(nn.functional.avg_pool2d(x, 2))

    with pytest.raises(GridError, match="has no box rule"):
        plan_mesh(graph_of(Inverts(), 1, 4, 8, 8), mesh(w=2))


def exchanges() -> dict[int, list[Exchange]]:
    plan = plan_mesh(graph_of(stack(2), 1, 4, 16, 16), mesh(h=2, w=2))
    needs = needed_gradients(plan.graph, (*weights(plan.graph), *plan.graph.inputs))
    found = {plan.mesh.rank(c): plan.exchange_steps(c, needs) for c in plan.mesh.coords()}
    check_peers(found)
    assert all(found.values())
    return found


def test_what_a_rank_gives_another_takes() -> None:
    """Rule S12, broken in all ways."""
    broken = exchanges()
    broken[2] = broken[2][:-1]
    with pytest.raises(InternalError, match=r"S12.*in turn"):
        check_peers(broken)
    first = exchanges()[0][0]
    for changed in (
        replace(first, gives=first.gives[1:]),
        replace(first, takes=first.takes[1:]),
        replace(first, gives=(replace(first.gives[0], rank=7), *first.gives[1:])),
        replace(first, takes=(replace(first.takes[0], box=first.gives[0].box), *first.takes[1:])),
    ):
        broken = exchanges()
        broken[0] = [changed, *broken[0][1:]]
        with pytest.raises(InternalError, match="S12"):
            check_peers(broken)
