"""Where nothing fits: the least that works, what decides it, and what would lower it.

What would help is weighed in closed form, never searched for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..errors import BudgetError
from ..ir import Graph, Kind
from ..schedule import Schedule, Storage
from ..units import format_bytes, round_up
from .offload import least_by_copies
from .problem import Candidate, Problem
from .tile import Fit, TileSearch
from .tiling import axis_lengths, cut_tiles, total_stride

WORTH = 0.95  # of what is needed: what saves less than that is not worth a word
ALONG = 5  # tiles along each axis, with which norms that do not wait are weighed: near the least for most networks


def nothing_fits(problem: Problem, least: int, where: str, found: Sequence[Candidate], planner: str) -> BudgetError:
    """`least`: the smallest budget that works, `where` its peak is; `found`: what the planners came up with."""
    tiled = min((c for c in found if c.planner in ("tile", "mesh")), key=lambda c: c.peak_bytes, default=None)
    graph = problem.tiles.graph if problem.tiles is not None else problem.graph
    anyway = _there_anyway(graph, problem.graded, None if problem.ranks is None else found[0].schedule)
    ways = [_budget(least)]
    if planner not in ("auto", "mesh") and not (planner == "tile" and problem.tiles and problem.tiles.mode != "auto"):
        ways.append('planner="auto"')
    if sum(anyway.values()) <= problem.budget:
        ways += _copies(problem, least)
        ways += _less_in_tiles(problem.tiles, tiled, problem.storages, least) if tiled is not None else ()
    ways += _less_of_it(problem, graph, anyway)
    place = "" if problem.ranks is None else " on a rank"
    what = f"nothing fits {format_bytes(problem.budget)}{place}: the smallest plan found needs {format_bytes(least)}"
    what += f" ({least} bytes){_no_plan_can(anyway, problem.budget)}"
    return BudgetError(what, where=where, hint=_listed(ways), least_bytes=least)


def tiles_too_large(search: TileSearch, fit: Fit, budget: int, least: int) -> BudgetError:
    """Of tiles that were asked for, none of them kept. `least`: the smallest budget that they fit in."""
    schedule, found = fit.planned, fit.prediction
    tiles = Candidate("tile", "", schedule, found.total_bytes, 0.0, memory=found.memory)
    anyway, ways = _there_anyway(search.graph, search.graded), [_budget(least)]
    if sum(anyway.values()) <= budget:
        ways += ["a smaller tile=", "budget= alone"]
        ways += _less_in_tiles(search, tiles, (schedule.storage,), found.total_bytes)
    ways += _less_of_it(Problem(budget, tiles=search), search.graph, anyway)
    need = f"these tiles need {format_bytes(found.total_bytes)}, more than {format_bytes(budget)}"
    what = f"{need}, with none of them kept{_no_plan_can(anyway, budget)}"
    where = f"{found.worst}, {found.worst_node}".strip(", ")
    return BudgetError(what, where=where, hint=_listed(ways), least_bytes=least)


def _budget(least: int) -> str:
    return f'budget="{round_up(least)}"'


def _there_anyway(graph: Graph, graded: Sequence[str], rank: Schedule | None = None) -> dict[str, int]:
    """Bytes at the end of any step, by what they are. `rank`: where each has its own part of them."""
    found = dict.fromkeys(("parameters", "their gradients", "inputs", "buffers"), 0)
    names = {Kind.PARAMETER: "parameters", Kind.INPUT: "inputs"}
    for value in graph.values:
        if not value.kind.computed:
            size = value.type.bytes if rank is None else rank.owned(value.name).volume * value.type.item_bytes
            found[names.get(value.kind, "buffers")] += size
            found["their gradients"] += size if value.kind is Kind.PARAMETER and value.name in graded else 0
    return {name: size for name, size in found.items() if size}


def _no_plan_can(anyway: Mapping[str, int], budget: int) -> str:
    if sum(anyway.values()) <= budget:
        return ""
    large = [f"{name} ({format_bytes(size)})" for name, size in anyway.items() if size > (1 - WORTH) * budget]
    return f"; no plan can, for {_listed(large, 'and')} are there in any case"


# -- what would lower it -----------------------------------------------------------------------------------------------


def _copies(problem: Problem, least: int) -> Iterator[str]:
    """Whole values away from the device, where there is no host that a planner may use unasked."""
    if (step := problem.step) is not None and not step.hosted and step.graph.nodes:
        needed, _ = least_by_copies(step.graph)
        if needed < WORTH * least:
            yield f'planner="offload" ({format_bytes(needed)}, values wait in a file)'


def _less_in_tiles(search: TileSearch | None, tiles: Candidate, storages: Sequence[str], least: int) -> Iterator[str]:
    """Halos elsewhere, norms that need not wait for the whole image, an operator that runs whole."""
    if search is not None and tuple(storages) == (Storage.DEVICE,):
        away = search.scale.weigh(tiles.schedule.phases, Storage.DISK).total_bytes
        if away < WORTH * least:
            yield f'halos="disk" (about {format_bytes(away)})'
    if search is not None and search.train:
        frozen = _with_frozen_norms(search, storages[-1])
        if frozen < WORTH * least:
            yield f"batch norms in .eval() (about {format_bytes(frozen)})"
    if (name := _barrier(tiles)) is not None:
        yield f"other axes or another operator for {name}, which runs whole (docs/operators.md#barriers)"


def _with_frozen_norms(search: TileSearch, storage: str) -> float:
    """Bytes if batch norms took their running statistics: as nodes are the same, so is what each of them needs."""
    graph = search.graph
    stats = {n.outputs[0] for n in graph.nodes if n.op == "moments" and 0 in n.attrs["dim"]}
    if not stats:
        return float("inf")
    gone = {n.outputs[0] for n in graph.nodes if n.op == "running_stat"}
    values = [replace(v, kind=Kind.BUFFER) if v.name in stats else v for v in graph.values if v.name not in gone]
    nodes = [n for n in graph.nodes if n.outputs[0] not in stats | gone]
    updates = tuple((old, new) for old, new in graph.updates if new not in gone)
    frozen = replace(search, graph=replace(graph, values=tuple(values), nodes=tuple(nodes), updates=updates))
    lengths = axis_lengths(frozen.graph, frozen.axes)
    unit = total_stride(frozen.graph, frozen.axes)
    sizes = {axis: min(n, -(-n // (ALONG * unit)) * unit) for axis, n in lengths.items()}
    sizes |= {"n": 1} if _batch(frozen.graph) > 1 else {}
    phases = cut_tiles(frozen.walks, frozen.modes[-1], sizes, frozen.machine)
    return search.scale.weigh(phases, storage).total_bytes


def _barrier(tiles: Candidate) -> str | None:
    """The node that runs whole where the peak is."""
    memory = tiles.memory
    if memory is None or not memory.labels:
        return None
    place = memory.labels[memory.peak_step].rpartition(" ")[2]
    whole = [phase for phase in tiles.schedule.phases if not phase.tiled and phase.name(()) == place]
    nodes = [node for phase in whole for node in phase.nodes]
    graph = tiles.schedule.graph
    sizes = {n.name: sum(graph.type(v).bytes for v in {*n.reads, *n.outputs}) for n in nodes}
    return graph.node[max(sizes, key=sizes.__getitem__)].describe() if sizes else None


def _less_of_it(problem: Problem, graph: Graph, anyway: Mapping[str, int]) -> Iterator[str]:
    """A smaller model where its parameters alone are too much, else a smaller input."""
    if anyway.get("parameters", 0) + anyway.get("their gradients", 0) > problem.budget:
        if "their gradients" in anyway:
            yield "fewer parameters with requires_grad"
        yield "a smaller model"
        return
    if problem.ranks is not None:
        yield "more ranks"
    batch = _batch(graph) if problem.tiles is not None or problem.ranks is not None else 1
    yield f"fewer than {batch} samples" if batch > 1 else "a smaller input"


def _batch(graph: Graph) -> int:
    return axis_lengths(graph, ("n",)).get("n", 1)


def _listed(parts: Sequence[str], word: str = "or") -> str:
    return f"{', '.join(parts[:-1])} {word} {parts[-1]}" if len(parts) > 1 else "".join(parts)
