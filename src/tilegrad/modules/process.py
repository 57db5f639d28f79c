"""A budget that the whole process keeps, on the CPU: where memory is handed out tightly (`TILEGRAD_MALLOC`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ..errors import BudgetError
from ..execution.heap import hole_bytes, is_tight
from ..sim.process import code_bytes
from ..units import format_bytes
from .options import Options
from .plan_file import Planned

ROUNDS = 5  # smaller tiles have more shapes, so that more room is needed


def plan_for_process(plan: Callable[[Options], Planned], options: Options, device: torch.device) -> Planned:
    """A plan that leaves room for what is no tensor, where memory is handed out so that a process has nothing else."""
    budget = options.budget_on(device)
    schedule, planning = plan(options)
    if budget is None or device.type != "cpu" or not is_tight():
        return schedule, planning
    inside = budget
    for _ in range(ROUNDS):
        need = int(schedule.predicted["total_bytes"]) + code_bytes(schedule) + hole_bytes()
        if need <= budget:
            planning = None if planning is None else replace(planning, budget=budget)
            return replace(schedule, predicted={**schedule.predicted, "process_bytes": need}), planning
        inside -= need - budget
        schedule, planning = plan(replace(options, budget=max(1, inside)))
    raise BudgetError(
        f"tensors, the insides of convolutions and their code need {format_bytes(need)}, more than "
        f"{format_bytes(budget)}",
        hint="a larger budget, or TILEGRAD_MALLOC unset: then it is tensors that are counted",
    )
