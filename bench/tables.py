"""Tables of the documentation, made from the figures in bench/results.

    python bench/tables.py              writes them into README.md and docs/benchmarks.md

A table stands between `<!-- table NAME -->` and `<!-- end -->`; NAME is a file in bench/results and ends with the
name of the bench. Where there is no such file there is no table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from measure import RESULTS

PAGES = tuple(Path(__file__).parents[1] / name for name in ("README.md", "docs/benchmarks.md"))
MARKED = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Rows = list[dict[str, Any]]


def main() -> None:
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))


def with_tables(text: str, results: Path = RESULTS) -> str:
    return MARKED.sub(lambda found: found[1] + table(results / f"{found[2]}.json") + found[4], text)


def table(path: Path) -> str:
    if not path.exists():
        return ""
    figures = json.loads(path.read_text())
    lines = "\n".join(_line(cells) for cells in TABLES[path.stem.rpartition("_")[2]](figures["rows"]))
    about = f"`{figures['command']}`: {figures['device']}, torch {figures['torch']}."
    return f"\n{lines}\n\n{about}\n\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(*cells: str) -> Iterator[Sequence[str]]:
    yield cells
    yield ["---"] * len(cells)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def regret(rows: Rows) -> Iterator[Sequence[str]]:
    shares = [_percent(choice["share"]) for choice in rows[0]["choices"]]
    times = ("time predicted / measured", "within 20 %", "within 20 %, as times of plain's")
    yield from _head(
        "network", "plans", *(f"regret at {s}" for s in shares), *times, "bytes off by", "reserved / predicted"
    )
    for row in rows:
        found = row["figures"]
        regrets = [_percent(choice["regret"]) for choice in row["choices"]]
        shares = [_percent(found[name]) for name in ("near", "near_scaled", "bytes")]
        name = f"{row['net']}, {row['size']}²"
        yield [name, str(len(row["plans"])), *regrets, _ratio(found["time"]), *shares, _ratio(found["reserved"])]


def methods(rows: Rows) -> Iterator[Sequence[str]]:
    ways = list(dict.fromkeys(row["way"] for row in rows))
    yield from _head("network", *ways)
    for net, size in dict.fromkeys((row["net"], row["size"]) for row in rows):
        cells = {row["way"]: _method(row) for row in rows if row["net"] == net}
        yield [f"{net}, {size}²", *(cells.get(way, "-") for way in ways)]


def _method(row: dict[str, Any]) -> str:
    if row["error"] is not None:
        return "does not fit"
    reserved = "" if row["reserved"] is None else f" ({_percent(row['reserved'])})"
    return f"{_ratio(row['ratio'])} × time, {_percent(row['peak'])}{reserved}"


def dial(rows: Rows) -> Iterator[Sequence[str]]:
    yield from _head("budget, of plain's peak", "time, times plain's", "allocated, of the budget", "plan")
    for row in rows:
        yield [_percent(row["share"]), _ratio(row["ratio"]), _percent(row["kept"]), row["plan"]]


def largest(rows: Rows) -> Iterator[Sequence[str]]:
    ways = list(dict.fromkeys(row["way"] for row in rows))
    yield from _head("network", "memory", *ways)
    for net, memory in dict.fromkeys((row["net"], row["memory"]) for row in rows):
        cells = {row["way"]: row for row in rows if (row["net"], row["memory"]) == (net, memory)}
        sides = [f"{cells[way]['side']}²{' or more' if cells[way]['bound'] else ''}" for way in ways]
        yield [net, f"{memory:g} GiB", *sides]


def peers(rows: Rows) -> Iterator[Sequence[str]]:
    yield from _head("library", "time, times plain's", "memory, of plain's", "gradients differ by")
    for row in rows:
        yield [row["way"], _ratio(row["ratio"]), _percent(row["peak"]), f"{row['error']:.0e}"]


TABLES: dict[str, Callable[[Rows], Iterator[Sequence[str]]]] = {
    "regret": regret, "methods": methods, "dial": dial, "largest": largest, "peers": peers,
}  # fmt: skip

if __name__ == "__main__":
    main()
