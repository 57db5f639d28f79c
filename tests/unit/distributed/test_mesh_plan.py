"""Plans on a mesh, without processes: who owns what, what moves, and what the planner chooses."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tilegrad.bounds import lower_graph
from tilegrad.distributed.account import imbalance, make_accounts
from tilegrad.distributed.mesh import Mesh, name_axes
from tilegrad.distributed.plan import MeshPlan, plan_mesh
from tilegrad.distributed.rank_plan import plan_rank, predict_bytes
from tilegrad.distributed.segments import choose_exchanged, layer_inputs
from tilegrad.errors import BudgetError, GridError, InputError
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind

CPU = torch.device("cpu")


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
    first, second = plan.moves(source)
    assert (first.box[2], second.box[2]) == ((8, 10), (6, 8))  # two layers of 3x3 reach two rows
    assert plan.needed(source, (0,))[2] == (0, 10)


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
    assert choose_exchanged(small, mesh(h=2), "auto", True, "cpu") == ()
    assert len(choose_exchanged(large, mesh(h=2), "auto", True, "cpu")) >= 3
    assert len(choose_exchanged(small, mesh(h=2), "layer", True, "cpu")) == 5


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
    graded = [v.name for v in graph.of_kind(Kind.PARAMETER)]
    kept = predict_bytes(plan_mesh(graph, mesh(h=2)), graded, kept=True)
    plain = plan_rank(graph, mesh(h=2), 0, graded, kept, "segment", CPU)
    assert plain.kept and plain.schedule.predicted["total_bytes"] == kept
    tight = plan_rank(graph, mesh(h=2), 0, graded, kept // 2, "segment", CPU)
    assert not tight.kept and tight.to_json()["tiles"] > 1
    assert tight.schedule.predicted["total_bytes"] <= kept // 2
    with pytest.raises(BudgetError, match="smallest plan found needs"):
        plan_rank(graph, mesh(h=2), 0, graded, 1000, "segment", CPU)


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
