"""What a step on a mesh takes over a link, on paper: the plan that is taken, and what it takes (`way`)."""

from __future__ import annotations

from functools import cached_property

from ...errors import GridError
from ...sim.links import Link
from ..problem import MeshProblem
from .exchange import exchange_options
from .plan import plan_mesh
from .way import Forecast, Way

TILES = (2, 4, 8, 16, 32)  # of a rank's box, that are tried where not everything fits


class OnPaper:
    """A network on a mesh, for any link. `budget`: bytes of each rank (default: its machine's)."""

    def __init__(self, ranks: MeshProblem, budget: int | None = None):
        self.ranks, self.budget = ranks, budget or ranks.machine.device_bytes
        self.ways = [Way(plan, ranks) for plan in exchange_options(ranks).values()]

    def over(self, link: Link) -> Forecast:
        """The fastest where everything is kept; where that does not fit, as few tiles as fit."""
        kept = sorted(self.ways, key=lambda way: way.compute_s + way.halo_s(link) + way.fold_s(link))
        chosen = next((way for way in kept if self._fits(way)), None)
        if chosen is None:
            chosen = next((way for way in self._smaller if self._fits(way)), kept[0])
        return chosen.over(link, self.budget)

    def _fits(self, way: Way) -> bool:
        return self.budget is None or way.peak_bytes <= self.budget

    @cached_property
    def _smaller(self) -> list[Way]:
        axis, found = self.ranks.mesh.axes[0], list[Way]()
        for count in TILES:
            try:
                plan = plan_mesh(self.ranks.graph, self.ranks.mesh, tiles={axis: count})
            except GridError:
                break
            found.append(Way(plan, self.ranks, kept=False, tiles=count))
            if self._fits(found[-1]):
                break
        return found
