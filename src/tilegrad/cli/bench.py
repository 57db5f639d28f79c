"""`tilegrad bench machine`: how fast this machine computes and moves bytes, measured once and kept."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from ..report.terminal import make_table
from ..sim.machine import Machine, save_machine
from ..sim.measure import Recall, recall_machine
from ..units import format_bytes
from .console import make_console
from .parser import add_shared


def register(bench: argparse.ArgumentParser) -> None:
    subjects = bench.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    parser = subjects.add_parser("machine", help="arithmetic, memory and link of this machine")
    add_shared(parser, again=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what to measure (default: cpu)")
    parser.add_argument("--out", metavar="FILE.toml", help="write a machine file, too")
    parser.add_argument("--force", action="store_true", help="measure again, even if there is a measurement")
    parser.add_argument("--json", action="store_true", help="JSON on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = recall_machine(args.device, force=args.force)
    if args.out:
        save_machine(found.machine, args.out)
    if args.json:
        print(json.dumps(_as_json(found, args.device)))
        return 0
    console = make_console()
    _print_machine(found.machine, console)
    lines = [f"note: {found.note}"] if found.note else []
    if found.path is not None:
        known = "measured now, kept in" if found.measured else "as measured before, kept in"
        lines.append(f"{known} {found.path}")
    lines += [f"written to {args.out}"] if args.out else []
    for line in lines:
        console.print(Text(line), soft_wrap=True)  # a path is not markup, and not cut
    return 0


def _as_json(found: Recall, device: str) -> dict[str, object]:
    return {
        "device": device,
        "machine": asdict(found.machine),
        "measured": found.measured,
        "kept": None if found.path is None else str(found.path),
        "note": found.note,
    }


def _print_machine(machine: Machine, console: Console) -> None:
    table = make_table(Text(machine.name), ("what", "figure"), left=("what",), no_wrap=True)
    for what, figure in _rows(machine):
        table.add_row(what, figure)
    console.print(table)


def _rows(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "arithmetic, float32", _scaled(machine.flops_per_s, "FLOP/s")
    for dtype, rate in machine.rates.items():
        yield f"arithmetic, {dtype}", _scaled(rate, "FLOP/s")
    yield "memory, read and written", _scaled(machine.bytes_per_s, "B/s")
    yield "link, device to host", _scaled(machine.to_host_per_s, "B/s")
    yield "link, host to device", _scaled(machine.from_host_per_s, "B/s")
    yield "overhead of an operator", f"{machine.launch_s * 1e6:.1f} µs"
    if machine.fresh_bytes_per_s is not None:
        yield "memory, new from the system", _scaled(machine.fresh_bytes_per_s, "B/s")
    if machine.serial_per_s is not None:
        yield "elements, one after another", _scaled(machine.serial_per_s, "/s")
    for what, size in (("device memory", machine.device_bytes), ("host memory", machine.host_bytes)):
        yield what, "not known" if size is None else format_bytes(size)


def _scaled(rate: float, unit: str) -> str:
    """Three figures and a decimal prefix: rates are counted in powers of 1000."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if rate < 999.5 or prefix == "P":
            break
        rate /= 1000
    return f"{rate:.{0 if rate >= 99.95 else 1 if rate >= 9.995 else 2}f} {prefix}{unit}"
