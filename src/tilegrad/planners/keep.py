"""Keep everything: what plain PyTorch does. The yardstick of all other plans."""

from __future__ import annotations

from collections.abc import Iterator

from .problem import Planner, Problem, Proposal, plan_keep


class Keep(Planner):
    name = "keep"

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        if problem.step is not None:
            yield Proposal(plan_keep(problem.step.graph), "everything")
