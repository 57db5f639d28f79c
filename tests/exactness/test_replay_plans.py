"""Replay of an imported graph: the same gradients under every kind of plan, for its own graph and for the imported one.

Whole nodes run the kernels that plain runs, in the same order: gradients are equal to the last bit. Tiles add up in
another order, in single precision: 1e-5 of the largest entry.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from step_plans import Choose, at_random, plans

import tilegrad
from tilegrad.errors import ModelError
from tilegrad.ir import Build, Graph, Kind, TensorType, check_graph
from tilegrad.modules.replayed import Outcome, Replay
from tilegrad.planners import plan_keep, plan_tiles
from tilegrad.planners.segments import plan_sqrt
from tilegrad.schedule import Move, Schedule, check_schedule, fuse
from tilegrad.schedule.whole import whole_schedule
from tilegrad.sim.predict import measure_memory, predict
from tilegrad.testing.exact import size_of

DUMP = Path(__file__).parents[1] / "data" / "unet_chainer.txt"


@cache
def dump() -> Graph:
    return tilegrad.load(DUMP)


@cache
def small() -> tuple[Replay, Outcome]:
    net = tilegrad.replay(dump(), batch=1, image=188)
    return net, net.plain()


def assert_equal(found: Outcome, wanted: Outcome) -> None:
    assert found.grads.keys() == wanted.grads.keys() and found.grads
    for name, grad in wanted.grads.items():
        assert torch.equal(found.grads[name], grad), name
    assert all(torch.equal(a, b) for a, b in zip(found.outputs, wanted.outputs, strict=True))


def fused_on(net: Replay, plan: Schedule) -> Schedule:
    """The plan with what is kept anyway in one piece; by itself `Replay.run` leaves nodes apart."""
    fused = fuse(net.adapt(plan), net.forward)
    check_schedule(fused)
    return fused


PLANS: dict[str, Choose] = {
    "keep": plan_keep,
    "sqrt": lambda graph: plan_sqrt(graph, dict.fromkeys(graph.node, 1.0)),
    "reruns": at_random(0, drop=0.05, move=0.0),
    "moves": at_random(1, drop=0.0, move=0.8),
    "both": at_random(2, drop=0.05, move=0.3),
}


@pytest.mark.parametrize("plan", PLANS)
def test_plans_for_its_own_graph(plan: str) -> None:
    net, plain = small()
    schedule = PLANS[plan](net.graph)
    fused = fused_on(net, schedule)
    apart = predict(fuse(schedule, net.forward, apart=True), net.graded).total_bytes
    for one, predictions in (
        (schedule, (measure_memory(schedule).peak_bytes, apart)),
        (fused, (predict(fused, net.graded).total_bytes,)),
    ):
        found = net.run(one)
        assert_equal(found, plain)
        for predicted in predictions:
            assert 0.95 * predicted <= found.peak_bytes <= predicted + 4096


@pytest.mark.parametrize("plan", PLANS)
def test_plans_for_the_imported_graph(plan: str) -> None:
    """Recorded on other sizes, with another framework's idea of what backward keeps: moves that would take away what
    this one reads in between are left out."""
    net, plain = small()
    adapted = net.adapt(PLANS[plan](dump()))
    check_schedule(adapted)
    assert_equal(net.run(adapted), plain)
    assert_equal(net.run(fused_on(net, adapted)), plain)
    moves = Counter(step.store for step in adapted.steps if isinstance(step, Move))
    assert moves["host"] == moves["device"] and (moves["device"] > 10 or plan not in ("moves", "both"))


def test_planners_plans_for_the_imported_graph() -> None:
    net, plain = small()
    found = [c for _, c in plans(dump(), (0.45,), ("segments", "recompute", "offload"))]
    assert {c.planner for c in found} >= {"recompute", "offload"}
    for candidate in found:
        assert_equal(net.run(candidate.schedule), plain)
        assert_equal(net.run(fused_on(net, candidate.schedule)), plain)


def test_another_batch_image_and_seed() -> None:
    net = tilegrad.replay(dump(), batch=2, image=204, seed=3)
    assert {v.type.shape for v in net.forward.of_kind(Kind.INPUT)} == {(2, 1, 204, 204), (2, 20, 20)}
    schedule, plain = PLANS["sqrt"](net.graph), net.plain()
    assert_equal(net.run(schedule), plain)
    assert_equal(net.run(fused_on(net, schedule)), plain)


def test_another_precision() -> None:
    net = tilegrad.replay(dump(), batch=1, image=188, dtype=torch.float64)
    schedule = PLANS["moves"](net.graph)
    _, plain = small()
    for found in (net.run(schedule), net.run(fused_on(net, schedule))):
        for name, grad in plain.grads.items():
            assert found.grads[name].dtype is torch.float64
            # the same numbers but for the rounding of single precision, forty layers deep
            assert size_of(found.grads[name] - grad) <= 1e-3 * size_of(grad), name


def test_tiles() -> None:
    net, plain = small()
    found = net.run(plan_tiles(net.lowered, "stream", {"h": 64}))
    assert found.grads.keys() == plain.grads.keys()
    floor = 1e-3 * max(map(size_of, plain.grads.values()))
    for name, grad in plain.grads.items():
        assert size_of(found.grads[name] - grad) <= 1e-5 * max(floor, size_of(grad)), name


@pytest.mark.parametrize("image", [200, 205, 100, 20])
def test_an_image_that_the_graph_cannot_take(image: int) -> None:
    with pytest.raises(ModelError, match=r"does not run on this batch and image.*\n.*unet_chainer.txt:\d+") as error:
        tilegrad.replay(dump(), batch=1, image=image)
    assert "halves all come out even" in str(error.value)


@pytest.mark.parametrize(("what", "count"), [("image", 0), ("image", -4), ("batch", 0), ("batch", -1)])
def test_no_image_at_all(what: str, count: int) -> None:
    with pytest.raises(ModelError, match=f"a {what} of {count}"):
        tilegrad.replay(dump(), **{what: count})


def test_a_plan_for_another_graph() -> None:
    net, _ = small()
    build = Build("other")
    x = build.value("x", TensorType((1, 2, 8, 8)), Kind.INPUT)
    other = tilegrad.replay(build.graph([build.emit("relu", [("self", x)], build.type(x), {}, "aten.relu.default")]))
    with pytest.raises(ModelError, match="the plan runs 'relu', which this graph does not have"):
        net.run(plan_keep(other.graph))
    with pytest.raises(ModelError, match="which this graph does not have"):
        other.run(plan_keep(net.graph))
    with pytest.raises(ModelError, match="the plan does not run 'relu', which this graph has"):
        other.run(whole_schedule(net.graph, "keep", ()))


def test_parameters_that_nothing_depends_on() -> None:
    build = Build("spare")
    x = build.value("x", TensorType((1, 2, 8, 8)), Kind.INPUT)
    w = build.value("w", TensorType((2, 2, 3, 3)), Kind.PARAMETER, "w")
    build.value("spare", TensorType((3,)), Kind.PARAMETER, "spare")
    y = build.emit("conv2d", [("input", x), ("weight", w)], TensorType((1, 2, 6, 6)), {}, "aten.conv2d.default")
    z = build.emit("add", [("self", y), ("other", y)], build.type(y), {}, "aten.add.Tensor")
    graph = build.graph([build.emit("relu", [("self", z)], build.type(y), {}, "aten.relu.default")])
    check_graph(graph)
    net = tilegrad.replay(graph)
    assert net.plain().grads.keys() == {"w"}
    for choose in (plan_keep, at_random(0, drop=1.0)):
        schedule = choose(net.graph)
        assert_equal(net.run(schedule), net.plain())
        assert_equal(net.run(fused_on(net, schedule)), net.plain())
