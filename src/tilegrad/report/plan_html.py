"""A planning as one HTML file: the candidates, memory over time, addresses, and what is alive at the peak.

Rule H1  Names and figures go into the page as JSON only, escaped so that no text can end the element it stands in; the
         page puts them into text and canvases, never into markup.
Rule H2  The page loads nothing and runs its own script alone: a policy in it names that script by its hash.
Rule H3  The file is written whole or not at all.

Limits: the page needs JavaScript. Tiles have no predicted time of their own: their memory is drawn in order.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn, Protocol

from ..errors import InputError
from ..ir import Graph, Kind
from ..schedule.step_list import StepList
from ..schedule.steps import Fetch, Free, Offload, Run
from .plan import Item

STEPS = ("forward", "again", "backward", "update", "free", "offload", "fetch", "tile")  # what a step may be
SCRIPTS = ("plan_report.js", "plan_report_charts.js", "plan_report_map.js")
BIRTHS = ("activation", "gradient", "again", "fetch")  # how a lifetime may begin

# The policy's attribute is in capitals: who looks for addresses in the file finds none.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta HTTP-EQUIV="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="tilegrad">
<title>tilegrad plan</title>
<style>{style}</style>
</head>
<body>
<noscript><p>This report draws itself with JavaScript, which is off here. <code>tilegrad plan</code> prints the same
figures.</p></noscript>
<header>
<h1 id="network"></h1>
<p id="summary"></p>
<dl id="facts"></dl>
<ul id="notes" hidden></ul>
</header>
<main>
<section aria-labelledby="candidates-title">
<h2 id="candidates-title">Candidates</h2>
<div class="scroll"><table id="candidates"></table></div>
</section>
<section id="curve" aria-labelledby="curve-title" hidden>
<h2 id="curve-title">Memory over time</h2>
<p id="curve-caption"></p>
<ul class="legend" id="curve-legend"></ul>
<div class="chart" id="curve-chart" aria-labelledby="curve-title" aria-describedby="curve-caption curve-keys"></div>
<p class="keys" id="curve-keys">Point at a curve, or use the keys: left and right for steps, Page Up and Page Down for
ten of them, Home and End, up and down for the other curve, P for the peak.</p>
</section>
<section id="map" aria-labelledby="map-title" hidden>
<h2 id="map-title">Address map</h2>
<p id="map-caption"></p>
<ul class="legend" id="map-legend"></ul>
<fieldset id="map-axis"><legend>across</legend>
<label><input type="radio" name="across" value="time" checked> predicted time</label>
<label><input type="radio" name="across" value="steps"> steps, each as wide as the other</label></fieldset>
<div class="chart" id="map-chart" aria-labelledby="map-title" aria-describedby="map-caption map-keys"></div>
<p class="keys" id="map-keys">Point at a rectangle, or use the keys: left and right in order of time, up and down to the
neighbour in address, Home and End. What is too small to see is drawn together.</p>
</section>
<section id="peak" aria-labelledby="peak-title" hidden>
<h2 id="peak-title">Alive at the peak</h2>
<p id="peak-caption"></p>
<div class="scroll"><table id="alive"></table></div>
<button type="button" id="alive-more" hidden></button>
</section>
</main>
<script type="application/json" id="plan-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


class Plan(Item, Protocol):
    """A candidate, with its schedule and when its steps begin."""

    @property
    def schedule(self) -> Any: ...
    @property
    def time(self) -> Any: ...


class Planned(Protocol):
    """A planning, as the search makes it."""

    @property
    def graph(self) -> Graph: ...
    @property
    def machine(self) -> Any: ...
    @property
    def budget(self) -> int: ...
    @property
    def plain(self) -> Plan: ...
    @property
    def candidates(self) -> Sequence[Plan]: ...
    @property
    def chosen(self) -> Plan: ...


def save_plan_html(planning: Planned, path: str | Path) -> None:
    """Write the report, whole or not at all (rule H3)."""
    text = format_plan_html(planning)
    draft = None
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):  # never put a file in a device's place
            _refuse("it is a folder or a device, not a file", path)
        if not target.parent.is_dir():
            _refuse(f"there is no folder {target.parent}", path, "make the folder first, or another --html OUT.html")
        draft = target.with_name(f".tilegrad-{secrets.token_hex(8)}.tmp")
        with open(draft, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(draft, target)
    except (OSError, ValueError) as error:
        _refuse(getattr(error, "strerror", None) or str(error), path)
    finally:
        if draft is not None:
            with contextlib.suppress(OSError):
                draft.unlink()  # gone already where all went well


def _refuse(why: str, path: str | Path, hint: str = "another --html OUT.html") -> NoReturn:
    raise InputError(f"the report cannot be written: {why}", where=repr(str(path)), hint=hint)


def format_plan_html(planning: Planned) -> str:
    """The page as text."""
    files = resources.files(__package__)
    style = files.joinpath("plan_report.css").read_text(encoding="utf-8")
    script = "".join(files.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    return _PAGE.format(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_escape(plan_data(planning)),
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _escape(data: dict[str, Any]) -> str:
    """JSON in which no text means anything to HTML or to a script (rule H1). All of it is ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plan_data(planning: Planned) -> dict[str, Any]:
    """All that the page shows, as plain data. Texts are kept once: elsewhere stands their place in `texts`."""
    texts, chosen, plain = _Texts(), planning.chosen, planning.plain
    return {
        "schema": 1,
        "network": planning.graph.name,
        "machine": planning.machine.name,
        "budget_bytes": planning.budget,
        "candidates": [
            _figures(c, plain.time_s)
            | {"fits": c.peak_bytes <= planning.budget, "chosen": c is chosen, "plain": c is plain}
            for c in planning.candidates
        ],
        "chosen": _figures(chosen, plain.time_s) | _details(chosen, texts, addresses=True),
        "plain": None if plain is chosen else _figures(plain, plain.time_s) | _details(plain, texts),
        "step_kinds": STEPS,
        "births": BIRTHS,
        "texts": list(texts.places),
    }


class _Texts:
    """Texts and their places."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def _figures(plan: Plan, plain_s: float) -> dict[str, Any]:
    return {
        "planner": plan.planner,
        "detail": plan.detail,
        "peak_bytes": plan.peak_bytes,
        "time_s": _finite(plan.time_s),
        "extra_time": _finite(plan.time_s / plain_s - 1) if plain_s else None,
        "host_bytes": plan.host_bytes,
        "notes": list(plan.notes),
    }


def _finite(number: float) -> float | None:
    """JSON has no other numbers."""
    return number if math.isfinite(number) else None


def _details(plan: Plan, texts: _Texts, *, addresses: bool = False) -> dict[str, Any]:
    """What is known step by step: nothing, bytes, or bytes and seconds."""
    memory, time = plan.memory, plan.time if math.isfinite(plan.time_s) else None
    found: dict[str, Any] = {"memory": None, "time": None, "steps": None, "alive": [], "addresses": None}
    if time is not None:
        found["time"] = {"total_s": time.total_s, "compute_s": time.compute_s, "stall_s": time.stall_s}
    if memory is None:
        return found
    keys = ("peak_bytes", "peak_step", "resident_bytes", "host_peak_bytes")
    found["memory"] = {key: getattr(memory, key) for key in keys}
    found["alive"] = [[texts.place(a.value), a.bytes, texts.place(a.source)] for a in memory.alive]
    kinds, whats = _steps(plan.schedule, memory.labels, len(memory.device))
    found["steps"] = {
        "kind": [STEPS.index(kind) for kind in kinds],
        "what": [texts.place(what) for what in whats],
        "start_s": list(time.starts) if time is not None else None,
        "device_bytes": list(memory.device),
        "host_bytes": list(memory.host),
    }
    if addresses and isinstance(plan.schedule, StepList) and plan.layout is not None:
        found["addresses"] = _addresses(plan, plan.schedule, kinds, texts)
    return found


def _steps(schedule: Any, labels: Sequence[str], count: int) -> tuple[list[str], list[str]]:
    """Of every step its kind, and the node or value it is about."""
    if not isinstance(schedule, StepList):
        return ["tile"] * count, [labels[i] if i < len(labels) else "" for i in range(count)]
    kinds, whats, nodes = list[str](), list[str](), schedule.graph.node
    ran: set[str] = set()
    for step in schedule.steps:
        match step:
            case Run(node=name):
                kinds.append("again" if name in ran else str(nodes[name].phase))
                whats.append(nodes[name].describe())
                ran.add(name)
            case Free(value=name) | Offload(value=name) | Fetch(value=name):
                kinds.append({Free: "free", Offload: "offload", Fetch: "fetch"}[type(step)])
                whats.append(name)
    return kinds, whats


def _addresses(plan: Plan, schedule: StepList, kinds: Sequence[str], texts: _Texts) -> dict[str, Any]:
    """Where everything that comes and goes lies, a column for each thing to know of it."""
    lives, layout, graph = plan.memory.lifetimes, plan.layout, schedule.graph
    copies: dict[str, list[int]] = {}  # value -> steps that copy it to the host
    for at, step in enumerate(schedule.steps):
        if isinstance(step, Offload):
            copies.setdefault(step.value, []).append(at)

    def birth(name: str, start: int) -> str:
        gradient = graph.value[name].kind is Kind.GRADIENT
        return kinds[start] if kinds[start] in ("again", "fetch") else "gradient" if gradient else "activation"

    return {
        "value": [texts.place(life.name) for life in lives],
        "type": [texts.place(str(graph.type(life.name))) for life in lives],
        "made_by": [texts.place(graph.producer[life.name].describe()) for life in lives],
        "bytes": [life.bytes for life in lives],
        "offset": list(layout.offsets),
        "start": [life.start for life in lives],
        "stop": [life.stop for life in lives],
        "birth": [BIRTHS.index(birth(life.name, life.start)) for life in lives],
        "copied": [
            next((at for at in copies.get(life.name, ()) if life.start <= at < life.stop), None) for life in lives
        ],
        "range_bytes": layout.range_bytes,
        "live_bytes": layout.live_bytes,
        "exact": layout.exact,
    }
