"""Plans of whole nodes give plain's outputs, gradients and buffers: any legal order, not only what planners find."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from step_plans import Graphs, Stepped, at_random, both, fixed, graph_for, plans

import thorough
import tilegrad
from deep_networks import each
from drawn_networks import RandomNetwork, networks
from reference_graphs import SMALL
from tilegrad.errors import CaptureError
from tilegrad.models import NETWORKS, example_shape
from tilegrad.planners import Effort, Problem, TrainingStep, candidates, planners
from tilegrad.schedule import fuse
from tilegrad.sim.machine import PRESETS
from tilegrad.testing import run_step
from tilegrad.testing.exact import assert_same

MANY = 200  # nodes
DUMP = Path(__file__).parents[1] / "data" / "unet_chainer.txt"


@pytest.mark.parametrize("name", each(NETWORKS))
def test_reference_networks(name: str) -> None:
    """Dropout draws by its place, so one plan is the measure of the others; where there is none, plain is."""
    torch.manual_seed(0)
    kwargs, size = SMALL[name]
    net = NETWORKS[name](**kwargs).double().train()
    x = torch.randn(example_shape(name, size), dtype=torch.float64)
    dropout = any(isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p for m in net.modules())
    _, graph = graph_for(net, (x.clone().requires_grad_(),))
    drop = 0.02 if name == "densenet121" else 0.5  # there, to forget a map is to run all layers before it again
    choices = [at_random(0, drop=drop)]
    choices += [fixed(c.schedule) for _, c in plans(graph, (0.8,), ("recompute",))]
    wanted = None if dropout else run_step(copy.deepcopy(net), [x])
    graphs = Graphs()
    ways = [way for choose in choices for way in both(choose)]
    # the random plan fused, the planner's apart; each in both ways with --slow
    for way in ways if thorough.slow or len(graph.nodes) < MANY else (ways[0], ways[-1]):
        torch.manual_seed(1)
        found = run_step(Stepped(copy.deepcopy(net), way, graphs), [x])
        wanted = wanted or found
        assert_same(found, wanted, exact=False, tolerance=1e-9)


@given(network=networks(), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_networks(network: RandomNetwork, seed: int) -> None:
    inputs, graphs = network.inputs(), Graphs()
    wanted = run_step(copy.deepcopy(network), inputs)
    for way in both(at_random(seed)):
        try:
            found = run_step(Stepped(copy.deepcopy(network), way, graphs), inputs)
        except CaptureError as error:
            assume("in-place write that cannot be made pure" not in str(error))
            raise
        assert_same(found, wanted, exact=False, tolerance=1e-9)


def test_replay() -> None:
    graph = tilegrad.load(DUMP)
    net = tilegrad.replay(graph, batch=1, image=188)
    plain = net.plain()
    effort, machine = Effort(work=50_000, nodes=0), PRESETS["v100"]
    imported = TrainingStep(graph, machine, effort)
    schedules = [TrainingStep(net.graph, machine, effort).keep.schedule]
    problem, names = Problem(3_500_000_000, imported), ("segments", "recompute", "offload")
    schedules += [c.schedule for name in names for c in candidates(problem, planners()[name])]
    assert len(schedules) >= 4
    for schedule in schedules:
        for found in (net.run(schedule), net.run(fuse(net.adapt(schedule), net.forward))):
            assert found.grads.keys() == plain.grads.keys() and len(found.grads) == 46
            for key, grad in plain.grads.items():
                assert torch.equal(found.grads[key], grad), (schedule.mode, key)
