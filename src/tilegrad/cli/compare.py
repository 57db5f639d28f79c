"""`tilegrad compare`: two profiles, or two plans, side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from ..analysis import analyze
from ..analysis.comparison import Comparison, Pair, compare_plans, compare_profiles
from ..analysis.groups import BYS
from ..errors import FormatError, InputError
from ..files import save_text
from ..importers.head import read_head
from ..importers.json_walk import open_json
from ..report.html import save_page
from ..report.profile_page import comparison_page
from ..report.terminal import make_table, plain
from ..units import (
    MEASURED,
    PREDICTED,
    UNKNOWN,
    format_bytes,
    format_predicted,
    format_ratio,
    format_seconds,
    units_like,
)
from .analyze import read_profile
from .console import make_console
from .parser import refuse_idle

BAR = 20  # characters
_PLAN_KEYS = {"plain", "plan", "candidates", "budget_bytes"}


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", help="a profile as for `tilegrad analyze`, or JSON of `tilegrad plan`")
    parser.add_argument("after", metavar="B", help="another one")
    parser.add_argument("--by", choices=BYS, default="type", help="what to group operators by (default: type)")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="groups to show (default: 20)")
    parser.add_argument("--json", nargs="?", const="-", metavar="PATH", help="JSON, on standard output")
    parser.add_argument("--html", metavar="PATH", help="a report of both, bars first")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.top < 0:
        raise InputError(f"--top {args.top} is not possible", hint="--top 20")
    if args.json == "-":
        refuse_idle(args, ["top"], "on JSON, which has all groups", "--json PATH")
    plans = [_read_plan(file) for file in (args.before, args.after)]
    if plans[0] is not None and plans[1] is not None:
        refuse_idle(args, ["by"], "on plans, which are grouped by planner", "two profiles")
        found = compare_plans((Path(args.before).name, Path(args.after).name), plans[0], plans[1])
        page = partial(comparison_page, found)
    elif plans[0] is None and plans[1] is None:
        one, two = (analyze(read_profile(file)) for file in (args.before, args.after))
        found = compare_profiles(one, two, args.by)
        page = partial(comparison_page, found, (one, two))
    else:
        raise InputError("a plan and a profile cannot be compared", hint="two profiles, or two plans")
    text = json.dumps(found.to_json(), allow_nan=False)
    if args.json and args.json != "-":
        save_text(text + "\n", args.json, "the JSON")
    with units_like(any(plan is not None and plan.get("decimal") is True for plan in plans)):
        if args.html:
            save_page(page(), args.html)
        if args.json == "-":
            print(text)
        else:
            _print(found, args.top)
    return 0


def _read_plan(file: str) -> dict[str, Any] | None:
    """What `tilegrad plan --json` wrote; None if the file is something else."""
    head = read_head(Path(file)).lstrip()
    if not head.startswith(b'{"schema"') or b'"budget_bytes"' not in head:
        return None
    walk = open_json(file)
    found = walk.value()
    walk.end()
    if not isinstance(found, dict) or not found.keys() >= _PLAN_KEYS or not isinstance(found["candidates"], list):
        raise FormatError(
            "a plan without its parts", where=Path(file).name, hint="tilegrad plan ... --json > plan.json"
        )
    parts = (found["plain"], found["plan"], *found["candidates"])
    if not all(isinstance(part, dict) for part in parts):
        raise FormatError("a plan with parts that are no objects", where=Path(file).name)
    return found


def _print(found: Comparison, top: int) -> None:
    """Bars first: who wants the figures reads on."""
    console, say = make_console(), partial(_show, time=format_predicted if found.predicted else format_seconds)
    for name, pairs in ((f"{found.before} -> {found.after}", found.totals), (found.what, found.groups[:top])):
        if not pairs:
            continue
        names = ("", "", "before", "after", "change", "ratio")
        table = make_table(plain(name), names, left=("",), overflow="fold")
        for pair in pairs:
            most = max((abs(n) for p in pairs if p.unit == pair.unit for n in (p.before or 0, p.after or 0)), default=0)
            figures = PREDICTED if found.predicted and pair.unit == "seconds" else MEASURED
            ratio = UNKNOWN if pair.ratio is None else f"{format_ratio(pair.ratio, figures)} x"
            shown = (say(pair, pair.before), say(pair, pair.after))
            change = _change(pair, say, found.predicted)
            table.add_row(plain(pair.name), _bars(pair, most), *shown, change, Text(ratio, _colour(pair)))
        console.print(table)


def _bars(pair: Pair, most: float) -> Text:
    """Before above, after below; a count is no length."""
    if pair.unit == "count" or not most or pair.before is pair.after is None:
        return Text()
    before, after = (_bar(0 if number is None else number / most) for number in (pair.before, pair.after))
    return Text.assemble((before, "dim"), "\n", (after, _colour(pair)))


def _bar(share: float) -> str:
    """Eighths of a character; what is not nothing is seen."""
    whole, rest = divmod(max(round(share * BAR * 8), int(share > 0)), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[rest].strip()


def _colour(pair: Pair) -> str:
    """Less is better, of seconds and of bytes; a budget is what was asked for."""
    known = pair.before is not None and pair.after is not None
    if pair.unit not in ("seconds", "bytes") or pair.name == "budget" or not known:
        return ""
    change = (pair.after or 0) - (pair.before or 0)
    return "green" if change < 0 else "red" if change > 0 else ""


def _show(pair: Pair, number: float | None, time: Callable[[float], str]) -> str:
    if number is None:
        return UNKNOWN
    match pair.unit:
        case "seconds":
            return time(number)
        case "bytes":
            return format_bytes(number)
        case "share":
            return f"{number:.1%}"
    return f"{number:g}"


def _change(pair: Pair, say: Callable[[Pair, float], str], predicted: bool) -> Text:
    if pair.before is None or pair.after is None:
        return Text(UNKNOWN)
    change = pair.after - pair.before
    if predicted and pair.unit == "seconds":
        change = float(f"{pair.after:.1e}") - float(f"{pair.before:.1e}")  # of what is shown
    return Text(("+" if change > 0 else "") + say(pair, change), _colour(pair))
