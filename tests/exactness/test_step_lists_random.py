"""Random networks under random plans: no planner's taste between the executor and its mistakes.

On integers every number must be equal. On floats, with norms, gates, heads and losses, all must agree to 1e-10 of the
largest. Every step allocates what is predicted, to the last scalar.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from step_plans import Apart, Choose, Planned, at_random, both, graph_for, peaks, run_on, runner_of
from torch import Tensor, nn

from drawn_networks import RandomNetwork, networks
from thorough import often
from tilegrad.bounds import lower_graph
from tilegrad.errors import CaptureError, GridError
from tilegrad.execution import stretch
from tilegrad.importers import Captured, export_module
from tilegrad.ir import Graph, Kind
from tilegrad.planners import plan_tiles
from tilegrad.planners.mixed import cut_graph, join_schedules
from tilegrad.planners.segments import plan_segments, plan_sqrt
from tilegrad.schedule import Move, Schedule, fuse
from tilegrad.sim.predict import measure_memory
from tilegrad.sim.training import training_graph
from tilegrad.testing import assert_same, run_step
from tilegrad.testing.exact import size_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
SCALARS = 256  # bytes


@pytest.fixture(autouse=True, scope="module")
def every_byte_counts() -> Iterator[None]:
    """Of a small loss the memory for all that it reduces is left as it is, which would count among these networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretch, "SMALL", 0)
        yield


def some(count: int, *, derandomize: bool = True) -> settings:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count, derandomize=derandomize, suppress_health_check=quiet, database=None)


@st.composite
def any_plan(draw: st.DrawFn) -> Choose:
    kind = draw(st.sampled_from(["random"] * 6 + ["sqrt", "segments"]))
    if kind == "random":
        drop, move = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0])), draw(st.sampled_from([0.0, 0.3, 1.0]))
        return at_random(draw(st.integers(0, 10**6)), drop=drop, move=move)
    share = draw(st.floats(0.5, 1.0))
    return lambda graph: _planned(graph, kind, share)


def _planned(graph: Graph, kind: str, share: float) -> Schedule:
    seconds = dict.fromkeys(graph.node, 1.0)
    whole = plan_sqrt(graph, seconds)
    if kind == "sqrt":
        return whole
    return plan_segments(graph, seconds, int(share * measure_memory(whole).peak_bytes), work=10_000) or whole


class Running(nn.Module):
    """A module with the names of another, run by a runner."""

    module: nn.Module
    runner: Planned

    def __init__(self, module: nn.Module, runner: Planned):
        super().__init__()
        for part in ("_parameters", "_buffers", "_modules"):
            self.__dict__[part] = module.__dict__[part]
        self.__dict__.update(module=module, runner=runner)

    def forward(self, *inputs: Tensor) -> Any:
        return run_on(self.runner, self.module, inputs)


def leaves(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]


def check(network: RandomNetwork, choose: Choose) -> None:
    inputs = network.inputs()
    wanted = run_step(copy.deepcopy(network), inputs)
    if not network.exact:
        assume(max(map(size_of, wanted.gradients.values())) > 1e-6)  # otherwise there is nothing but rounding
    try:
        captured, graph = graph_for(network, leaves(inputs))
    except CaptureError as error:
        assume("in-place write that cannot be made pure" not in str(error))  # into permuted channels
        raise
    for way in both(choose):
        runner = runner_of(captured, graph, way)
        found = run_step(Running(copy.deepcopy(network), runner), inputs)
        assert_same(found, wanted, exact=network.exact, quiet=1.0)
        measured, predictions = peaks(runner, graph, copy.deepcopy(network), inputs)
        run, *planned = predictions
        assert abs(measured - run) <= SCALARS, (measured, predictions)
        # A gradient that shared its memory and went to the host comes back alone: a plan's nodes do not know that.
        moved = any(isinstance(step, Move) for step in runner.schedule.steps)
        more = max(value.type.bytes for value in graph.values) if moved else 0
        assert all(-SCALARS <= p - measured <= SCALARS + more for p in planned), (measured, predictions)


@some(often(50, 120))
@given(network=networks(), choose=any_plan())
def test_integer_networks_are_equal(network: RandomNetwork, choose: Choose) -> None:
    check(network, choose)


@some(often(40, 80))
@given(network=networks(exact=False, ends=True), choose=any_plan())
def test_float_networks_agree(network: RandomNetwork, choose: Choose) -> None:
    check(network, choose)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@some(3000, derandomize=False)
@given(network=networks(layers=8), choose=any_plan())
def test_thousands_of_integer_networks(network: RandomNetwork, choose: Choose) -> None:
    check(network, choose)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@some(2000, derandomize=False)
@given(network=networks(exact=False, ends=True, layers=8), choose=any_plan())
def test_thousands_of_float_networks(network: RandomNetwork, choose: Choose) -> None:
    check(network, choose)


# A first stretch in tiles, whole nodes behind it


@st.composite
def stretches(draw: st.DrawFn, graph: Graph) -> tuple[Schedule, Graph]:
    """A first stretch of nodes, cut into columns, and the graph behind it."""
    cut = cut_graph(graph, draw(st.integers(1, len(graph.nodes))))
    assume(cut is not None)
    assert cut is not None
    inner, rest = cut
    size, mode = draw(st.integers(1, 9)), draw(st.sampled_from(["stream", "scatter", "gather"]))
    try:
        tiles = plan_tiles(lower_graph(inner), mode, {"w": size})
    except GridError:  # no image left to cut
        assume(False)
    return tiles, rest


def stretch_runner(captured: Captured, choose: Choose, tiles: Schedule, rest: Graph) -> Planned:
    graded = [v.name for v in rest.of_kind(Kind.INPUT, Kind.PARAMETER) if v.type.floating]
    whole = fuse(choose(training_graph(rest, graded)), rest, apart=isinstance(choose, Apart))
    return Planned(captured, join_schedules(tiles, whole, captured.graph))


@pytest.mark.parametrize("exact", [True, False])
@some(often(20, 40))
@given(data=st.data())
def test_a_stretch_in_tiles(exact: bool, data: st.DataObject) -> None:
    network = data.draw(networks(exact=exact, ends=not exact, layers=6))
    inputs = network.inputs()
    wanted = run_step(copy.deepcopy(network), inputs)
    assume(exact or max(map(size_of, wanted.gradients.values())) > 1e-6)
    try:
        captured = export_module(network, leaves(inputs))
    except CaptureError as error:
        assume("in-place write that cannot be made pure" not in str(error))
        raise
    tiles, rest = data.draw(stretches(captured.graph))
    for way in both(data.draw(any_plan())):
        runner = stretch_runner(captured, way, tiles, rest)
        found = run_step(Running(copy.deepcopy(network), runner), inputs)
        assert_same(found, wanted, exact=exact, quiet=1.0)


def test_nothing_is_left_to_chance() -> None:
    """The same plan twice is the same step, to the last bit, floats or not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Conv2d(3, 2, 3))
    x = torch.randn(2, 2, 9, 9)
    for way in both(at_random(5)):
        runner = runner_of(*graph_for(net, leaves([x])), way)
        first, second = (run_step(Running(copy.deepcopy(net), runner), [x]) for _ in range(2))
        assert_same(first, second, exact=True)
