"""`tilegrad compare`: two profiles, or two plans, side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..analysis import Analysis, analyze
from ..analysis.comparison import Comparison, Pair, compare_plans, compare_profiles
from ..analysis.groups import BYS
from ..errors import FormatError, InputError
from ..files import save_text
from ..importers.head import read_head
from ..importers.json_walk import open_json
from ..report.terminal import make_table, plain
from ..units import format_bytes, format_seconds
from .analyze import read_profile
from .console import make_console

_PLAN_KEYS = {"plain", "plan", "candidates", "budget_bytes"}


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", help="a profile as for `tilegrad analyze`, or JSON of `tilegrad plan`")
    parser.add_argument("after", metavar="B", help="another one")
    parser.add_argument("--by", choices=BYS, default="type", help="what to group operators by (default: type)")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="groups to show (default: 20)")
    parser.add_argument("--json", nargs="?", const="-", metavar="PATH", help="JSON, on standard output")
    parser.add_argument("--html", metavar="PATH", help="a report of both profiles")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.top < 0:
        raise InputError(f"--top {args.top} is not possible", hint="--top 20")
    plans = [_read_plan(file) for file in (args.before, args.after)]
    if plans[0] is not None and plans[1] is not None:
        found = compare_plans((Path(args.before).name, Path(args.after).name), plans[0], plans[1])
        if args.html:
            raise InputError("plans have a report of their own", hint="tilegrad plan --html OUT.html")
    elif plans[0] is None and plans[1] is None:
        one, two = (analyze(read_profile(file)) for file in (args.before, args.after))
        found = compare_profiles(one, two, args.by)
        if args.html:
            _save_page(found, one, two, args.html)
    else:
        raise InputError("a plan and a profile cannot be compared", hint="two profiles, or two plans")
    text = json.dumps(found.to_json(), allow_nan=False)
    if args.json and args.json != "-":
        save_text(text + "\n", args.json, "the JSON")
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
    console = make_console()
    title = "seconds of kernels" if found.by != "planner" else "seconds of the fastest that fits"
    for name, pairs in ((None, found.totals), (f"{title} by {found.by}, largest change first", found.groups[:top])):
        if not pairs:
            continue
        names = ("", "before", "after", "change", "ratio")
        table = make_table(plain(name or f"{found.before} -> {found.after}"), names, left=("",), overflow="fold")
        for pair in pairs:
            ratio = "-" if pair.ratio is None else f"{pair.ratio:.3f} x"
            table.add_row(plain(pair.name), _show(pair, pair.before), _show(pair, pair.after), _change(pair), ratio)
        console.print(table)


def _show(pair: Pair, number: float | None) -> str:
    if number is None:
        return "-"
    match pair.unit:
        case "seconds":
            return format_seconds(number)
        case "bytes":
            return format_bytes(number)
        case "share":
            return f"{number:.1%}"
    return f"{number:g}"


def _change(pair: Pair) -> str:
    if pair.before is None or pair.after is None:
        return "-"
    change = pair.after - pair.before
    return ("+" if change > 0 else "") + _show(pair, change)


def _save_page(found: Comparison, before: Analysis, after: Analysis, path: str) -> None:
    from ..report.html import save_page
    from ..report.profile_page import comparison_page

    save_page(comparison_page(found, before, after), path)
