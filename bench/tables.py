"""Tables of the documentation, made from the figures in bench/results.

    python bench/tables.py              writes them into README.md and the pages below docs

A table stands between `<!-- table NAME -->` and `<!-- end -->`; NAME is a file in bench/results and ends with the
name of the bench, or it is the name of the bench alone, and all files of it are one table. What `bench/compare.py`
wrote has names of its own; `comparison` is a short table of `h200_speed`. Where there is no file there is no table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from measure import RESULTS

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MARKED = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NAMES = {"vgg16": "VGG-16", "unet": "U-Net", "resnet50_frozen": "ResNet-50, norms frozen",
         "resnet50_train": "ResNet-50, norms in training", "convnext": "ConvNeXt-T",
         "convnext_depth": "ConvNeXt-T, stochastic depth"}  # fmt: skip
Rows = list[dict[str, Any]]
SEVENTH = 0.15  # of plain's memory


def main() -> None:
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))


def with_tables(text: str, results: Path = RESULTS) -> str:
    return MARKED.sub(lambda found: found[1] + _named(found[2], results) + found[4], text)


def _named(name: str, results: Path) -> str:
    if name == "comparison":
        return comparison(results / "h200_speed.json")
    one = results / f"{name}.json"
    return table(*([one] if one.exists() else sorted(results.glob(f"*_{name}.json"))))


def table(*paths: Path) -> str:
    """Of all these files, which are of one bench."""
    if not paths:
        return ""
    found = [json.loads(path.read_text()) for path in paths]
    if "arguments" in found[0]:
        return "\n" + "\n".join(map(_line, compared(found[0]["rows"]))) + "\n\n"
    rows = [row for figures in found for row in figures["rows"]]
    lines = "\n".join(_line(cells) for cells in TABLES[paths[0].stem.rpartition("_")[2]](rows))
    commands = [each["command"] if len(found) == 1 else each["command"].partition(" --")[0] for each in found]
    told = [f"`{said}` ({each['device']}, torch {each['torch']})" for said, each in zip(commands, found, strict=True)]
    about = "; ".join(dict.fromkeys(told))
    return f"\n{lines}\n\n{about}.\n\n"


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
    yield from _head("budget, of plain's peak", "time, times plain's", "allocated, of the budget", "held", "plan")
    for row in rows:
        used = (_percent(row["kept"]), _percent(row["reserved"]))
        yield [_percent(row["share"]), _ratio(row["ratio"]), *used, row["plan"]]


def largest(rows: Rows) -> Iterator[Sequence[str]]:
    """What was measured stands before what was predicted."""
    ways, mixed = list(dict.fromkeys(row["way"] for row in rows)), len({row["measured"] for row in rows}) > 1
    yield from _head("network", "memory of the card", *ways)
    for net, memory in dict.fromkeys((row["net"], row["memory"]) for row in rows):
        here = [row for row in rows if (row["net"], row["memory"]) == (net, memory)]
        cells = {row["way"]: row for row in sorted(here, key=lambda row: row["measured"])}
        sides = [_side(cells[way], mixed) if way in cells else "–" for way in ways]
        yield [NAMES.get(net) or net, f"{memory:g} GiB", *sides]


def _side(row: dict[str, Any], mixed: bool) -> str:
    more, how = " or more" if row["bound"] else "", " (predicted)" if mixed and not row["measured"] else ""
    return f"{row['side']:,}²{more}{how}"


def memory(rows: Rows) -> Iterator[Sequence[str]]:
    yield from _head(
        "network (batch 1, float32)", "input", "asked for", "plain peak", "predicted", "measured",
        "time, times plain's", "gradients differ by",
    )  # fmt: skip
    for row in rows:
        sizes = [f"{row[key] / 2**20:.1f} MiB" for key in ("plain_bytes", "predicted_bytes", "measured_bytes")]
        yield [row["words"], row["input"], row["options"], *sizes, _ratio(row["ratio"]), f"{row['error']:.0e}"]


def compared(rows: Rows) -> Iterator[Sequence[str]]:
    """What `bench/compare.py` writes; ratios are to the first way, if there are several."""
    ratios = len(rows) > 1
    more = ["ratio"] if ratios else []
    yield from _head("way", "training step", *more, "inference", *more, "peak", *more)
    for row in rows:
        cells = [row["way"]]
        figures = (f"{row['train_s']:.3f} s", f"{row['infer_s']:.3f} s", _size(row["peak_bytes"]))
        for key, figure in zip(("train", "infer", "peak"), figures, strict=True):
            cells += [figure, _ratio(row[f"{key}_ratio"])] if ratios else [figure]
        yield cells


def comparison(path: Path) -> str:
    """Seconds and GiB of a step: plain, and in the budget that was measured next to a seventh of that."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    next_to = {(row["net"], row["size"]): row for row in sorted(rows, key=lambda row: -abs(row["share"] - SEVENTH))}
    lines = list(_head("a training step on one H200", "plain PyTorch", "tilegrad"))
    for (net, size), row in sorted(next_to.items(), key=lambda found: found[1]["ratio"]):
        ours = _step(row["ratio"] * row["plain_s"], row["peak"] * row["plain_bytes"])
        lines.append([f"{NAMES.get(net) or net}, {size:,}²", _step(row["plain_s"], row["plain_bytes"]), ours])
    return "\n" + "\n".join(map(_line, lines)) + "\n\n" if rows else ""


def _step(seconds: float, peak: float) -> str:
    return f"{seconds:.2g} s, {_size(peak)}"


def _size(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 1000 * 2**20 else f"{count / 2**20:.3g} MiB"


def speed(rows: Rows) -> Iterator[Sequence[str]]:
    heads = ("network", "budget, of plain's", "time, times plain's", "allocated, of plain's", "held, of the budget")
    yield from _head(*heads, "plan")
    for row in rows:
        figures = _percent(row["share"]), _ratio(row["ratio"]), f"{row['peak']:.1%}", _percent(row["reserved"])
        yield [f"{row['net']}, {row['size']}²", *figures, row["plan"]]


def peers(rows: Rows) -> Iterator[Sequence[str]]:
    yield from _head("library", "time, times plain's", "memory, of plain's", "gradients differ by")
    for row in rows:
        yield [row["way"], _ratio(row["ratio"]), _percent(row["peak"]), f"{row['error']:.0e}"]


def recompute(rows: Rows) -> Iterator[Sequence[str]]:
    shares = list(dict.fromkeys(row["share"] for row in rows))
    yield from _head("network", *(f"{_percent(share)} of plain's peak" for share in shares))
    for net, size in dict.fromkeys((row["net"], row["size"]) for row in rows):
        cells = {row["share"]: _rerun(row) for row in rows if (row["net"], row["size"]) == (net, size)}
        yield [f"{net}, {size}²", *(cells.get(share, "–") for share in shares)]


def _rerun(row: dict[str, Any]) -> str:
    return "none" if row["extra"] is None else f"{row['extra']:.2%}, {row['gap']:.2%}, {row['cpu_s']:.1f} s"


def searched(rows: Rows) -> Iterator[Sequence[str]]:
    yield from _head("budget", "optimum", "found in", "heuristic", "found in")
    for row in rows:
        figures = (f"{row['found']:.2%}", f"{row['found_s']:.1f} s", f"{row['quick']:.2%}", f"{row['quick_s']:.1f} s")
        yield [f"{row['budget']:,} B", *figures]


def planning(rows: Rows) -> Iterator[Sequence[str]]:
    """CPU seconds without the capture, by share of plain's peak."""
    shares = list(dict.fromkeys(row["share"] for row in rows))
    yield from _head("network", "capture", *map(_percent, shares))
    for net, size in dict.fromkeys((row["net"], row["size"]) for row in rows):
        here = {row["share"]: row for row in rows if (row["net"], row["size"]) == (net, size)}
        spent = [f"{here[share]['planning_s']:.1f} s{'' if here[share]['passes'] else ' (!)'}" for share in shares]
        yield [f"{net}, {size:,}²", f"{here[shares[0]]['capture_s']:.1f} s", *spent]


def process(rows: Rows) -> Iterator[Sequence[str]]:
    yield from _head("", "allocator", "`TILEGRAD_MALLOC`", "growth", "budget", "predicted", "page faults", "CPU time")
    for row in rows:
        predicted = row["predicted_process_bytes"] or row["predicted_bytes"]
        sizes = (_size(row["growth_bytes"]), row["budget"] or "–", _size(predicted) if predicted else "–")
        name = row["allocator"].removeprefix("lib").partition("_")[0]
        way = f"{row['net']}, {row['way']}"
        yield [way, name, row["malloc"] or "–", *sizes, f"{row['faults']:,}", f"{row['cpu_s']:.2f} s"]


def slide(rows: Rows) -> Iterator[Sequence[str]]:
    yield from _head("slide", "batch norm", "budget", "a step", "reading", "anonymous memory", "on the card")
    for row in sorted(rows, key=lambda row: (row["card_bytes"] is not None, row["size"])):
        card = "–" if row["card_bytes"] is None else _size(row["card_bytes"])
        norm = {"train": "in training, stored values on disk"}.get(row["norm"]) or row["norm"]
        times = (f"{row['step_s']:.0f} s", f"{row['read_s']:.1f} s")
        yield [f"{row['size']:,}²", norm, row["budget"], *times, _size(row["anonymous_bytes"]), card]


def far(rows: Rows) -> Iterator[Sequence[str]]:
    yield from _head("trained on", "updates", "a step's tensors", "time", "right, of new slides")
    for row in rows:
        right = f"{row['right']:.0%} of {row['new_slides']}"
        yield [row["way"], str(row["updates"]), _size(row["peak_bytes"]), f"{row['seconds']:.0f} s", right]


def ranks(rows: Rows) -> Iterator[Sequence[str]]:
    counts = ("calls", "messages", "gathers", "sums")
    yield from _head("", "size", "ranks", "one process", "ranks", "times faster", "by CPU time", *counts)
    for row in rows:
        name = {"resnet18_train": "ResNet-18", "vgg16": "VGG-16, quarter width"}.get(row["net"]) or row["net"]
        times = (f"{row['one_s'] * 1e3:.0f} ms", f"{row['ranks_s'] * 1e3:.0f} ms")
        figures = (_ratio(row["speedup"]), _ratio(row["cpu_speedup"]), *(f"{row[key]:,}" for key in counts))
        yield [name, f"{row['size']:,}²", row["mesh"], *times, *figures]


def scaling(rows: Rows) -> Iterator[Sequence[str]]:
    """A step and its efficiency by the number of ranks; of the largest mesh memory and traffic."""
    counts = sorted({row["ranks"] for row in rows})
    groups: dict[tuple[str, ...], dict[int, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["net"], row["kind"], f"{row['of']:,}²", row["link"]), {})[row["ranks"]] = row
    yield from _head("predicted", "link", *(f"{n} GPUs" for n in counts), f"memory on {counts[-1]}", "sent")
    for (net, kind, size, link), found in groups.items():
        cells = [_scaled(found[n]) if n in found else "does not fit" for n in counts]
        most = found.get(counts[-1])
        cells += ["–", "–"] if most is None else [_size(most["peak_bytes"]), _size(most["sent_bytes"])]
        yield [f"{NAMES.get(net) or net}, {kind}, {size}", link, *cells]


def _scaled(row: dict[str, Any]) -> str:
    return f"{row['step_s']:.3f} s, {row['efficiency']:.0%}" + f", {row['tiles']} tiles" * (row["tiles"] > 1)


TABLES: dict[str, Callable[[Rows], Iterator[Sequence[str]]]] = {
    "regret": regret, "methods": methods, "dial": dial, "largest": largest, "peers": peers, "speed": speed,
    "memory": memory, "recompute": recompute, "searched": searched, "planning": planning, "process": process,
    "slide": slide, "far": far, "ranks": ranks, "scaling": scaling,
}  # fmt: skip

if __name__ == "__main__":
    main()
