"""`tiled.plan`: what will run, to print, to show in a notebook, and as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..planners import Planning
from ..schedule import Schedule, format_plan, plan_to_json
from ..schedule.text import format_title
from ..sim.memory import Memory
from ..sim.predict import predict
from ..units import format_bytes, units_like
from .plan_picture import draw_plan


@dataclass(frozen=True, repr=False)
class Plan:
    """What will run: printable, with its schedule for those who want every step."""

    schedule: Schedule
    planning: Planning | None = None  # all candidates, where a budget was given
    budget: int | None = None
    decimal: bool = False  # was it given in powers of 1000?
    graded: tuple[str, ...] = field(default=())  # outside values that need a gradient

    def __str__(self) -> str:
        with units_like(self.decimal):
            plain = None if self.planning is None else self.planning.plain.peak_bytes
            return format_plan(self.schedule, self.budget, plain)

    def __repr__(self) -> str:
        with units_like(self.decimal):
            peak = self.schedule.predicted.get("total_bytes")
            need = "" if peak is None else f", peak {format_bytes(peak)}"
            return f"<Plan for {self.schedule.graph.name}: {format_title(self.schedule)}{need}>"

    def _repr_html_(self) -> str:
        """For a notebook: the same words, the tiles over the image, memory over time and the budget."""
        with units_like(self.decimal):
            return draw_plan(self.schedule, str(self), self._memory, self.budget)

    @cached_property
    def _memory(self) -> Memory | None:
        """Step by step; plain PyTorch has no steps of ours."""
        return None if self.schedule.mode == "none" else predict(self.schedule, self.graded).memory

    def to_json(self) -> dict[str, Any]:
        """Mode, phases with their grids, and predicted figures, as plain data."""
        return plan_to_json(self.schedule)
