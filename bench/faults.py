"""Ranks that die, hang or raise, many times over, beside a load: is the right one named?

    python bench/faults.py --runs 200 --load 8     the faults of tests/distributed, beside eight busy processes

`right`: the others stop in time, end in order, say the same and name the rank, as the tests demand; `late`: the same,
but it took longer. `nobody named`: they stop, and say that they do not know. `wrong`: another rank is named. `other`: a
rank did not stop, or they say different things.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measure import write

TESTS = Path(__file__).parent.parent / "tests"
sys.path += [str(TESTS), str(TESTS / "distributed")]

from crews import Crew, Fault, Report  # type: ignore[import-not-found]  # noqa: E402
from test_rank_faults import FAULTS, problems  # type: ignore[import-not-found]  # noqa: E402

OUTCOMES = ("right", "late", "nobody named", "wrong", "other")
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with us, however we end
PATIENCE_S = 600.0  # for a rank to begin, to train and to stop, on a busy machine


@dataclass(frozen=True)
class Row:
    """All runs of one fault."""

    fault: str
    load: int
    runs: int
    right: int
    late: int
    unnamed: int
    wrong: int
    other: int


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--load", type=int, default=8, help="busy processes beside")
    parser.add_argument("--at-once", type=int, default=4, help="runs beside each other: they mostly wait")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(args.load)]
    try:
        found = run(args.runs, args.at_once)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    rows = [Row(str(fault), args.load, sum(count.values()), *(count[o] for o in OUTCOMES)) for fault, count in found]
    write(args.json, rows, "cpu")
    total = sum((count for _, count in found), Counter[str]())
    print(f"{sum(total.values())} runs beside {args.load} busy processes:", dict(total))
    sys.exit(bool(total["wrong"] or total["other"]))


def run(runs: int, at_once: int) -> list[tuple[Any, Counter[str]]]:
    found: dict[Any, Counter[str]] = {fault: Counter() for fault in FAULTS}
    begin = time.monotonic()
    for first in range(0, runs, at_once):
        crews = [Crew(FAULTS[at % len(FAULTS)]) for at in range(first, min(first + at_once, runs))]
        for crew in crews:
            reports = crew.reports(PATIENCE_S)
            outcome, why = judged(crew.fault, reports)
            found[crew.fault][outcome] += 1
            if outcome != "right":
                print(f"{outcome}: {crew.fault}", *why, sep="\n  ", flush=True)
        counts = dict(sum(found.values(), Counter[str]()))
        print(f"{first + len(crews)} runs in {time.monotonic() - begin:.0f} s: {counts}", flush=True)
    return [(fault, count) for fault, count in found.items() if count]


def judged(fault: Fault, reports: dict[int, Report]) -> tuple[str, list[str]]:
    if not (why := list(problems(fault, reports))):
        return "right", why
    in_time = {rank: replace(report, seconds=0.0, exit_code=0) for rank, report in reports.items()}
    if not list(problems(fault, in_time)):
        return "late", why
    if any(set(report.blamed) - {fault.rank} for report in reports.values()):
        return "wrong", why
    stopped = set(reports) == set(fault.mesh.ranks) - {fault.rank}
    unnamed = all(r.kind == "RankError" and not r.blamed for r in reports.values())
    return ("nobody named" if stopped and unnamed else "other"), why


if __name__ == "__main__":
    main()
