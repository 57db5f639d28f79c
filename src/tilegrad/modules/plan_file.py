"""Plans on disk: the second run of a program starts without planning.

One SQLite file in the user's cache folder. A plan is found by all that it was made from: the graph, what needs a
gradient, what was asked for, the budget, the machine, and the versions of torch and tilegrad. What is read is checked
like what is planned. Whatever is wrong with the file, the folder or the disk, the plan is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..execution.stores import stores
from ..files import cache_folder
from ..ir import Graph, format_graph
from ..kernels import kernels
from ..ops import find
from ..planners import Candidate, Planning, planners
from ..schedule import Schedule, pack_schedule, unpack_schedule
from ..sim.machine import Machine

NAME = "plans-1.sqlite"  # another layout is another file
MOST_PLANS, MOST_BYTES = 256, 64 << 20
WAIT_S = 1.0  # for another process that writes
_SOURCE = Path(__file__).parents[1]
Planned = tuple[Schedule, Planning | None]
_log = logging.getLogger("tilegrad")

# The journal is SQLite's default, not a write-ahead log: that needs shared memory, which network file systems lack.
_TABLE = """
CREATE TABLE IF NOT EXISTS plans (key TEXT PRIMARY KEY, used REAL NOT NULL, digest TEXT NOT NULL, plan BLOB NOT NULL)
"""
_TRIM = """
DELETE FROM plans WHERE key IN (
    SELECT key FROM (
        SELECT key, row_number() OVER latest AS rank, sum(length(plan)) OVER latest AS held
        FROM plans WINDOW latest AS (ORDER BY used DESC, key)
    ) WHERE rank > ? OR held > ?
)
"""


def plan_once(
    graph: Graph, machine: Machine, budget: int | None, asked: Sequence[Any], plan: Callable[[], Planned]
) -> Planned:
    """The plan that is on disk, or a new one, which then is. `asked`: what else it depends on."""
    folder = cache_folder()
    if folder is None or not _is_ours(graph):
        return plan()
    path, key = folder / NAME, _key(format_graph(graph), machine, budget, *asked)
    found = _read(path, key, graph, machine, budget)
    if found is not None:
        return found
    schedule, planning = plan()
    if schedule.mode != "none" and (planning is None or not planning.stopped):
        _write(path, key, schedule, planning)
    return schedule, planning


def _is_ours(graph: Graph) -> bool:
    """Is all that decides about a plan torch's or our own? Code of the user's may change from run to run."""
    ops = [find(node) for node in graph.nodes]
    own = all(type(each).__module__.startswith("tilegrad.") for each in (*ops, *planners().values(), *kernels()))
    return own and all(node.target.startswith("aten.") or not node.target for node in graph.nodes)


def _key(*parts: Any) -> str:
    return _digest("\0".join(map(repr, (_version(), torch.__version__, *parts))).encode())


@cache
def _version() -> str:
    """Of tilegrad: its source itself, since who works on it has no new number for each change."""
    return _digest(b"\0".join(path.read_bytes() for path in sorted(_SOURCE.rglob("*.py"))))


# -- the file ----------------------------------------------------------------------------------------------------------


def _read(path: Path, key: str, graph: Graph, machine: Machine, budget: int | None) -> Planned | None:
    try:
        if not path.exists():
            return None
        with _opened(path) as file:
            row = file.execute("SELECT digest, plan FROM plans WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        if row[0] != _digest(row[1]):
            raise ValueError("the text is not what was written")
        found = _unpack(json.loads(row[1]), graph, machine, budget)
    except Exception as error:  # whatever a file can hold, it is no reason not to run
        _log.debug("the plan in %s cannot be used: %s", path, error)
        return None
    _change(path, ("UPDATE plans SET used = ? WHERE key = ?", (time.time(), key)))
    return found


def _write(path: Path, key: str, schedule: Schedule, planning: Planning | None) -> None:
    try:
        text = json.dumps(_pack(schedule, planning)).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, TypeError) as error:  # TypeError: what someone's planner said is no plain data
        _log.debug("no plan is kept in %s: %s", path, error)
        return
    row = key, time.time(), _digest(text), text
    # The first has a say in a new file alone: what is deleted then leaves it.
    add = "INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?)", row
    _change(path, ("PRAGMA auto_vacuum = FULL", ()), (_TABLE, ()), add, (_TRIM, (MOST_PLANS, MOST_BYTES)))


def _change(path: Path, *statements: tuple[str, Sequence[Any]]) -> None:
    """A plan that is not kept costs time, nothing else."""
    try:
        with _opened(path) as file, file:
            for statement in statements:
                file.execute(*statement)
    except (sqlite3.Error, OSError) as error:
        _log.debug("no plan is kept in %s: %s", path, error)
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            with contextlib.suppress(OSError):
                path.unlink()  # no database, or a broken one: the next run begins a new one


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    file = sqlite3.connect(path, timeout=WAIT_S)
    try:
        yield file
    finally:
        file.close()


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


# -- what is kept ------------------------------------------------------------------------------------------------------


def _pack(schedule: Schedule, planning: Planning | None) -> dict[str, Any]:
    data: dict[str, Any] = {"schedule": pack_schedule(schedule), "candidates": None}
    if planning is not None:
        which = [planning.candidates.index(c) for c in (planning.plain, planning.chosen)]
        data |= {"candidates": [_figures(c) for c in planning.candidates], "which": which}
    return data


def _figures(candidate: Candidate) -> dict[str, Any]:
    names = "planner", "detail", "peak_bytes", "time_s", "host_bytes", "notes", "where"
    return {name: getattr(candidate, name) for name in names} | {"gap": candidate.schedule.gap}


def _unpack(data: dict[str, Any], graph: Graph, machine: Machine, budget: int | None) -> Planned:
    """Of the candidates that were not chosen there are figures, but no steps."""
    schedule = unpack_schedule(data["schedule"], tuple(stores()))
    if data["candidates"] is None or budget is None:
        return schedule, None
    found = []
    for figures in data["candidates"]:
        outline = Schedule(graph, figures["planner"], gap=figures.pop("gap"))
        found.append(Candidate(**{**figures, "schedule": outline, "notes": tuple(figures["notes"])}))
    plain, chosen = data["which"]
    found[chosen] = replace(found[chosen], schedule=schedule)
    return schedule, Planning(graph, machine, budget, found[plain], tuple(found), found[chosen])
