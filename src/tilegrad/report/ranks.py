"""A plan on a mesh, worker by worker: boxes, bytes owned and moved, work; as JSON and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from ..planners.ranks.account import Account, imbalance, make_accounts
from ..planners.ranks.plan import MeshPlan
from ..planners.ranks.way import Forecast
from ..units import format_bytes, format_predicted, format_rate
from .terminal import make_table


def ranks_json(plan: MeshPlan) -> dict[str, Any]:
    accounts = make_accounts(plan)
    sent = Counter[tuple[str, ...]]()
    for coords in plan.mesh.coords():
        for step in plan.exchange_steps(coords):
            sent[step.values] += len({strip.rank for strip in step.gives})
    return {
        "schema": 1,
        "mesh": dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True)),
        "phases": len(plan.walks),
        "exchanges": [
            {"before": at, "values": list(values), "messages": sent[values]}
            for at, values in enumerate(plan.exchanges.values())
            if sent[values]
        ],
        "imbalance": imbalance(accounts),
        "workers": [account.to_json() | {"boxes": _boxes(plan, account)} for account in accounts],
    }


def _boxes(plan: MeshPlan, account: Account) -> dict[str, Any]:
    """Of inputs and outputs: what a worker owns, and what it reads."""
    names = dict.fromkeys((*plan.graph.inputs, *plan.graph.outputs))
    return {n: {"owned": plan.owned(n, account.coords), "read": plan.needed(n, account.coords)} for n in names}


def print_ranks(plan: MeshPlan, console: Console) -> None:
    accounts = make_accounts(plan)
    mesh = " x ".join(f"{size} along {axis}" for axis, size in zip(plan.mesh.axes, plan.mesh.sizes, strict=True))
    moved = f"{len(plan.walks)} phases, halos move {len(plan.moved)} times"
    console.print(f"{plan.graph.name} on {mesh}: {moved}", highlight=False)
    names = ("rank", "place", "input", "owned", "weights", "halos", "sent", "received", "messages", "forward work")
    table = make_table("workers, for a training step", names, left=("place", "input"), no_wrap=True)
    source = plan.graph.inputs[0] if plan.graph.inputs else None
    for a in accounts:
        table.add_row(
            str(a.rank),
            ",".join(map(str, a.coords)),
            repr(plan.owned(source, a.coords)).removeprefix("Box") if source else "",
            *map(format_bytes, (a.owned_bytes, a.weight_bytes, a.halo_bytes, a.sent_bytes, a.received_bytes)),
            str(a.messages),
            format_rate(a.work_flops, "FLOP"),
        )
    console.print(table)
    console.print(f"imbalance   {imbalance(accounts):.3f} (the most work of a worker over the mean)", highlight=False)


def print_forecasts(title: str, forecasts: Sequence[Forecast], console: Console) -> None:
    """One row for each link."""
    names = ("link", "step", "compute", "halos", "folds", "sums", "memory", "sent", "summed", "messages", "tiles")
    table = make_table(title, names, left=("link",), no_wrap=True)
    for f in forecasts:
        spent = (f.step_s, f.compute_s, f.halo_s, f.fold_s, f.sum_s)
        memory = format_bytes(f.peak_bytes) + ("" if f.fits else " (too much)")
        moved = (format_bytes(f.sent_bytes), format_bytes(f.summed_bytes), str(f.messages), str(f.tiles))
        table.add_row(f.link, *map(format_predicted, spent), memory, *moved)
    console.print(table)
