"""Keep everything: what plain PyTorch does. The yardstick of all other plans."""

from __future__ import annotations

from ..ir import Graph
from ..schedule.step_list import StepList, list_steps


def plan_keep(graph: Graph) -> StepList:
    """Every node once, every value until its last use."""
    return StepList(graph, "keep", tuple(list_steps(graph, [n.name for n in graph.nodes])))
