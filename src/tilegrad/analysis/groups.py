"""Operators by type, module or shape, their rates, and how near those come to what a machine can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Literal

from ..profile import Operator
from ..sim.machine import Machine

By = Literal["type", "module", "shape", "phase", "stream"]
TimeOf = Literal["kernel", "total"]
BYS: tuple[By, ...] = ("type", "module", "shape", "phase", "stream")


@dataclass(frozen=True)
class Rates:
    """What was done in some seconds of kernels; None where nobody says how much. `roof_share`: the least time the
    machine could take, of the time it took; None where nothing is known of the work, or of the machine."""

    kernel_s: float
    flops: int | None
    bytes: int | None
    roof_share: float | None = None
    bound: str | None = None  # by "compute" or "memory", whichever takes the machine longer

    @property
    def flops_per_s(self) -> float | None:
        return None if self.flops is None or not self.kernel_s else self.flops / self.kernel_s

    @property
    def bytes_per_s(self) -> float | None:
        return None if self.bytes is None or not self.kernel_s else self.bytes / self.kernel_s

    def to_json(self) -> dict[str, Any]:
        keys = ("kernel_s", "flops", "bytes", "flops_per_s", "bytes_per_s", "roof_share", "bound")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class OperatorGroup:
    key: str
    count: int
    total_s: float
    share: float  # of the kernel time of all
    rates: Rates

    def seconds(self, time: TimeOf) -> float:
        return self.rates.kernel_s if time == "kernel" else self.total_s

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "total_s": self.total_s, "share": self.share, **self.rates.to_json()}


def operator_seconds(op: Operator, time: TimeOf) -> float:
    span = op.span
    return 0.0 if span is None else span.kernel_s if time == "kernel" else span.total_s


def find_rates(operators: Iterable[Operator], machine: Machine | None) -> Rates:
    """Of all these operators together."""
    found = list(operators)
    flops, moved = _total(op.flops for op in found), _total(op.bytes for op in found)
    seconds = fsum(operator_seconds(op, "kernel") for op in found)
    if machine is None or not seconds or not (flops or moved):
        return Rates(seconds, flops, moved)
    least = fsum(max((op.flops or 0) / machine.flops_per_s, (op.bytes or 0) / machine.bytes_per_s) for op in found)
    bound = "compute" if (flops or 0) / machine.flops_per_s > (moved or 0) / machine.bytes_per_s else "memory"
    return Rates(seconds, flops, moved, least / seconds, bound)


def _total(counts: Iterable[int | None]) -> int | None:
    """Of those that are known; None where none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def group_operators(operators: Sequence[Operator], by: By, machine: Machine | None = None) -> list[OperatorGroup]:
    """Groups, the one with most kernel time first."""
    key, members = _KEYS[by], dict[str, list[Operator]]()
    for op in operators:
        members.setdefault(key(op), []).append(op)
    whole = fsum(operator_seconds(op, "kernel") for op in operators)
    found = []
    for name, ops in members.items():
        rates = find_rates(ops, machine)
        total = fsum(operator_seconds(op, "total") for op in ops)
        found.append(OperatorGroup(name, len(ops), total, rates.kernel_s / whole if whole else 0.0, rates))
    return sorted(found, key=lambda g: (-g.rates.kernel_s, g.key))


def format_shapes(shapes: Iterable[Sequence[int]]) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)


_KEYS: dict[By, Callable[[Operator], str]] = {
    "type": lambda op: op.type,
    "module": lambda op: op.module or "(none)",
    "shape": lambda op: f"{op.type} {format_shapes(op.in_shapes)} -> {format_shapes(op.out_shapes)}",
    "phase": lambda op: str(op.phase or "(unknown)"),
    "stream": lambda op: op.stream if op.device is not None else op.thread,
}
