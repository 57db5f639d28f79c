"""Ctrl-C while planning: the best so far that fits, an interrupt where nothing does, and always the second time."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tilegrad
from tilegrad.planners import Effort, Planner, Problem, Proposal, TrainingStep, plan_step, tile
from tilegrad.planners.recompute import Recompute
from tilegrad.planners.segments import Segments
from tilegrad.planners.stages import model
from tilegrad.progress import stop
from tilegrad.sim.machine import CPU
from training_graphs import chain_graph

BUDGET = 330_000


@pytest.fixture
def problem() -> Problem:
    step = TrainingStep(chain_graph([1 << 16] * 8), CPU, Effort(0.1, 0.0))
    return Problem(int(0.8 * step.keep.peak_bytes), step)


def interrupt(self: Planner, problem: Problem) -> Iterator[Proposal]:
    raise KeyboardInterrupt
    yield  # a generator, as planners are


def test_the_best_so_far(problem: Problem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(Recompute, "propose", interrupt)
    monkeypatch.setattr(Recompute, "fastest_s", lambda self, problem: 0.0)
    found = plan_step(problem)
    assert found.stopped and found.chosen.planner == "segments" and found.chosen.peak_bytes <= problem.budget
    assert "planning was stopped" in caplog.text


def test_nothing_fits_yet(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segments, "propose", interrupt)
    with pytest.raises(KeyboardInterrupt):
        plan_step(problem)


def test_the_second_time(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that ended with what it had is at its end when the next one comes."""
    propose = Segments.propose

    def impatient(self: Segments, problem: Problem) -> Iterator[Proposal]:
        yield from propose(self, problem)
        stop()
        raise KeyboardInterrupt

    monkeypatch.setattr(Segments, "propose", impatient)
    with pytest.raises(KeyboardInterrupt):
        plan_step(problem)


def test_nobody_else_is_asked(problem: Problem) -> None:
    class Patient(Planner):
        """Ends with what it has."""

        name, effort = "patient", 0

        def propose(self, problem: Problem) -> Iterator[Proposal]:
            stop()
            yield from Segments().propose(problem)

    try:
        found = plan_step(problem)
        assert found.stopped and {c.planner for c in found.candidates} == {"keep", "patient"}
    finally:
        del Patient
        gc.collect()


def test_the_solver_ends_with_what_it_has(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    class Solver:
        """Finds no end, and is told to."""

        waits = 0

        def startSolve(self) -> None: ...

        def cancelSolve(self) -> None: ...

        def wait(self, seconds: float) -> tuple[bool]:
            self.waits += 1
            if self.waits == 1:
                raise KeyboardInterrupt
            return (True,)

    def solve(self: Recompute, problem: Problem) -> Iterator[Proposal]:
        assert model._run(Solver())
        yield from Segments().propose(problem)

    monkeypatch.setattr(Recompute, "propose", solve)
    monkeypatch.setattr(Segments, "fastest_s", lambda self, problem: 1e9)
    found = plan_step(problem, planner="recompute")
    assert found.stopped and found.chosen.planner == "recompute"


def test_tiles_that_were_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that fit will do; and what was stopped is not kept on disk."""
    monkeypatch.delenv("TILEGRAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()))).double()

    def impatient(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tile.TileSearch, "dialled", impatient)
    plan = tilegrad.tile(net, budget=BUDGET, planner="tile").plan_for(torch.zeros(1, 4, 48, 48).double())
    assert plan.planning is not None and plan.planning.stopped
    assert plan.schedule.predicted["total_bytes"] <= BUDGET
    assert not (tmp_path / "tilegrad").exists()


def test_news(problem: Problem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("tilegrad.progress.MOMENT", 0.0)
    with caplog.at_level(logging.INFO, "tilegrad"):
        plan_step(problem)
    assert any(m.startswith("planning: segments at work, 1 candidates, none fits yet") for m in caplog.messages)
    assert "chosen" in caplog.messages[-1] and "s a step" in caplog.messages[-1]
