"""How long, and how much memory, `tilegrad analyze FILE` takes in a fresh process: prints JSON.

    python bench/analyze.py                       a MegEngine profile, and the same repeated to 200,000 operators
    python bench/analyze.py --operators 20000     or to fewer
    python bench/analyze.py --runs 5 --option=--json=/tmp/x.json     the fastest of five; more for the command line

Exit code 1: a bar was missed. The large profile is made of the records of the small one, again and again under new ids,
each time later.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "tests" / "data" / "resnet50_megengine.json"
MIB = 2**20
SMALL_BAR = (2.0, 300 * MIB)  # seconds, bytes
LARGE_BAR = (60.0, 2048 * MIB)

Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """The fastest of some runs, and the largest memory of any."""

    operators: int
    file_bytes: int
    seconds: float
    cpu_s: float  # what the process itself used, however busy the machine was
    peak_rss_bytes: int
    bar_s: float
    bar_bytes: int

    @property
    def kept(self) -> bool:
        return self.seconds < self.bar_s and self.peak_rss_bytes < self.bar_bytes


class Repeated:
    """A MegEngine profile, several times over."""

    def __init__(self, source: Mapping[str, Any], copies: int):
        self.profiler, self.graph, self.copies = source["profiler"], source["graph_exec"], copies
        ids = [int(id) for part in ("operator", "var") for id in self.graph[part]]
        self.step = max(ids) + 1
        spans = [span for side in ("host", "device") for op in self.profiler[side].values() for span in op.values()]
        self.seconds = max(s["end"] for s in spans) - min(s["start"] for s in spans)

    def write(self, path: Path) -> None:
        """One part after the other, record by record: the whole would not fit in memory."""
        parts: dict[str, dict[str, Callable[[str, Any, int], tuple[str, Any]]]] = {
            "profiler": {"host": self._times, "opr_footprint": self._footprint, "device": self._times},
            "graph_exec": {"mem_chunk": self._chunk, "var": self._var, "operator": self._operator},
        }
        with open(path, "w") as file:
            sequence = [self._id(id, copy) for copy in range(self.copies) for id in self.graph["comp_seq"]]
            for section, makers in parts.items():
                file.write(
                    "{" if section == "profiler" else f'}}, "graph_exec": {{"comp_seq": {json.dumps(sequence)}, '
                )
                file.write('"profiler": {"opr_internal_pf": {}, ' if section == "profiler" else "")
                for at, (part, make) in enumerate(makers.items()):
                    file.write(f'{", " if at else ""}"{part}": {{')
                    records = self.profiler[part] if section == "profiler" else self.graph[part]
                    for place, (key, record) in enumerate(self._repeat(records, make)):
                        file.write(f"{', ' if place else ''}{json.dumps(key)}: {json.dumps(record)}")
                    file.write("}")
            file.write("}}\n")

    def _repeat(
        self, records: Mapping[str, Any], make: Callable[[str, Any, int], tuple[str, Any]]
    ) -> Iterator[tuple[str, Any]]:
        for copy in range(self.copies):
            for key, record in records.items():
                yield make(key, record, copy)

    def _id(self, id: str, copy: int) -> str:
        return str(int(id) + copy * self.step)

    def _ids(self, ids: list[str], copy: int) -> list[str]:
        return [self._id(id, copy) for id in ids]

    def _times(self, key: str, lanes: Record, copy: int) -> tuple[str, Record]:
        later = copy * self.seconds
        moved = {lane: {what: second + later for what, second in span.items()} for lane, span in lanes.items()}
        return self._id(key, copy), moved

    def _footprint(self, key: str, record: Record, copy: int) -> tuple[str, Record]:
        return self._id(key, copy), record

    def _chunk(self, key: str, record: Record, copy: int) -> tuple[str, Record]:
        owner = self._id(record["owner_var"], copy)
        return f"chk{owner}", record | {"id": f"chk{owner}", "owner_var": owner}

    def _var(self, key: str, record: Record, copy: int) -> tuple[str, Record]:
        id, plan, source = self._id(key, copy), record["mem_plan"], record["mem_readonly_fwd_src"]
        if plan is not None:
            plan = plan | {"mem_chunk_id": f"chk{id}"}
        if source is not None:
            source = self._id(source, copy)
        return id, record | {"id": id, "mem_plan": plan, "mem_readonly_fwd_src": source}

    def _operator(self, key: str, record: Record, copy: int) -> tuple[str, Record]:
        id, reads, writes = self._id(key, copy), self._ids(record["input"], copy), self._ids(record["output"], copy)
        return id, record | {"id": id, "input": reads, "output": writes}


def measure(path: Path, operators: int, options: list[str], runs: int, bar: tuple[float, int]) -> Row:
    words = [sys.executable, "-m", "tilegrad", "analyze", str(path), *options]
    times, cpus, peaks = list[float](), list[float](), list[int]()
    for _ in range(runs):
        began = time.perf_counter()
        actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        pid = os.posix_spawn(words[0], words, os.environ, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
        times.append(time.perf_counter() - began)
        cpus.append(used.ru_utime + used.ru_stime)
        peaks.append(used.ru_maxrss * 1024)
        if status:
            sys.exit(f"tilegrad analyze ended with {os.waitstatus_to_exitcode(status)}")
    return Row(operators, path.stat().st_size, round(min(times), 2), round(min(cpus), 2), max(peaks), *bar)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=200_000, help="of the large profile; 0: none")
    parser.add_argument("--runs", type=int, default=1, help="of each (default: 1)")
    parser.add_argument("--option", action="append", default=[], help="for tilegrad analyze; may repeat")
    args = parser.parse_args()
    source = json.loads(SOURCE.read_text())
    ran = len(source["graph_exec"]["comp_seq"])
    rows = [measure(SOURCE, ran, args.option, args.runs, SMALL_BAR)]
    if args.operators:
        copies = -(-args.operators // ran)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "repeated.json"
            Repeated(source, copies).write(path)
            rows.append(measure(path, ran * copies, args.option, args.runs, LARGE_BAR))
    print(json.dumps([asdict(row) | {"kept": row.kept} for row in rows], indent=2))
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
