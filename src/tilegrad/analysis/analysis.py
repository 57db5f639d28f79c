"""All that can be said of a profile, as figures: `analyze(profile)`, and their JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..profile import Block, Operator, Profile, Span
from ..sim.machine import Machine
from ..sim.offsets import EFFORT
from .addresses import Addresses, find_addresses
from .groups import BYS, OperatorGroup, Rates, TimeOf, find_rates, group_operators, operator_seconds
from .layouts import Layouts, find_layouts
from .live import LiveMemory, alive_at, find_memory, ticks_are_operators
from .savings import Savings, find_savings
from .times import Gaps, Lag, Side, SideTimes, find_gaps, find_lag, side_times

SCHEMA = 1
MOST_PEAKS = 20  # moments of the peak whose blocks are listed


@dataclass(frozen=True)
class Analysis:
    """A profile and what follows from it, worked out when it is asked for."""

    profile: Profile
    machine: Machine | None = None  # whose roofline rates are held against
    layout_effort: int = EFFORT // 10  # for our offsets
    plans: dict[str, Any] | None = field(default=None)  # what tilegrad would do, where it was asked

    @property
    def operators(self) -> Sequence[Operator]:
        return self.profile.operators

    @cached_property
    def side(self) -> Side:
        """Where the work was done."""
        return "device" if any(op.device is not None for op in self.operators) else "host"

    @cached_property
    def device(self) -> SideTimes | None:
        return side_times(self.operators, "device")

    @cached_property
    def host(self) -> SideTimes | None:
        return side_times(self.operators, "host")

    @cached_property
    def gaps(self) -> Gaps:
        return find_gaps(self.operators, self.side)

    @cached_property
    def lag(self) -> Lag | None:
        return find_lag(self.profile)

    @cached_property
    def rates(self) -> Rates:
        return find_rates(self.operators, self.machine)

    @cached_property
    def types(self) -> list[OperatorGroup]:
        return group_operators(self.operators, "type", self.machine)

    @cached_property
    def memory(self) -> dict[str, LiveMemory]:
        return {device: find_memory(self.profile, device) for device in self.profile.devices}

    @cached_property
    def addresses(self) -> dict[str, Addresses | None]:
        return {device: find_addresses(self._owned(device)) for device in self.profile.devices}

    @cached_property
    def layouts(self) -> dict[str, Layouts | None]:
        return {
            device: find_layouts(
                self._owned(device), memory.owned.peak_bytes, self.addresses[device], effort=self.layout_effort
            )
            for device, memory in self.memory.items()
        }

    @cached_property
    def savings(self) -> dict[str, Savings | None]:
        return {device: find_savings(self.profile, device) for device in self.profile.devices}

    def _owned(self, device: str) -> list[Block]:
        return [b for b in self.profile.blocks if b.device == device and b.owned]

    def top(self, count: int, time: TimeOf = "kernel") -> list[int]:
        """Places of the operators that took longest; of equals the earlier first."""
        places = range(len(self.operators))
        return sorted(places, key=lambda at: (-operator_seconds(self.operators[at], time), at))[:count]

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def to_json(self, *, operators: bool = True) -> dict[str, Any]:
        """Everything. Seconds end in `_s`, bytes in `_bytes`; places in the order of operators are called `seq`."""
        profile = self.profile
        return {
            "schema": SCHEMA,
            "kind": "profile",
            "name": profile.name,
            "format": profile.format,
            "notes": list(profile.notes),
            "machine": None if self.machine is None else self.machine.name,
            "counts": self._counts(),
            "time": self._time(),
            "rates": self.rates.to_json(),
            "by": {by: self._groups(by) for by in BYS},
            "top": [self.operators[at].id for at in self.top(10)],
            "top_by_total": [self.operators[at].id for at in self.top(10, "total")],
            "memory": {device: self._memory_json(device) for device in self.memory},
            "plans": self.plans,
            "source": dict(profile.facts),
            "operators": [self.row(at) for at in range(len(self.operators))] if operators else None,
            "idle": [{"id": op.id, "type": op.type, "name": op.name} for op in profile.idle],
        }

    def _counts(self) -> dict[str, Any]:
        ran = Counter(op.type for op in self.operators)
        every = ran + Counter(op.type for op in self.profile.idle)
        modes: dict[str, Counter[str]] = {}
        for op in self.operators:
            if isinstance(mode := op.attrs.get("mode"), str):
                modes.setdefault(op.type, Counter())[mode] += 1
        return {
            "operators": len(self.operators),
            "idle": len(self.profile.idle),
            "blocks": len(self.profile.blocks),
            "without_flops": sum(op.flops is None for op in self.operators),
            "types": dict(ran.most_common()),
            "types_with_idle": dict(every.most_common()),
            "modes": {kind: dict(found.most_common()) for kind, found in modes.items()},
        }

    def _time(self) -> dict[str, Any]:
        return {
            "side": self.side,
            "one_clock": self.profile.one_clock,
            "device": None if self.device is None else self.device.to_json(),
            "host": None if self.host is None else self.host.to_json(),
            "gaps": self.gaps.to_json(self.operators),
            "lag": None if self.lag is None else self.lag.to_json(self.operators),
        }

    def _groups(self, by: Any) -> dict[str, Any]:
        found = self.types if by == "type" else group_operators(self.operators, by, self.machine)
        return {group.key: group.to_json() for group in found}

    def _memory_json(self, device: str) -> dict[str, Any]:
        memory, addresses = self.memory[device], self.addresses[device]
        layouts, savings = self.layouts[device], self.savings[device]
        owned = self._owned(device)
        return {
            "owned": memory.owned.to_json() | {"curve": list(memory.owned.curve)},
            "everything": memory.everything.to_json() | {"curve": list(memory.everything.curve)},
            "without_workspace": memory.without_workspace.to_json(),
            "with_inputs_held_bytes": memory.with_inputs_held,
            "rounded_512_bytes": memory.rounded_512,
            "weight_bytes": memory.weight_bytes,
            "input_bytes": memory.input_bytes,
            "total_bytes": memory.total_bytes,
            "kept_bytes": memory.kept_bytes,
            "workspace": memory.workspace,
            "peaks": [self._peak(owned, tick) for tick in memory.owned.ticks[:MOST_PEAKS]],
            "addresses": None if addresses is None else addresses.to_json(),
            "layouts": None if layouts is None else layouts.to_json(),
            "savings": None if savings is None else savings.to_json(),
        }

    def _peak(self, blocks: Sequence[Block], tick: int) -> dict[str, Any]:
        running = self.operators[tick] if ticks_are_operators(self.profile) else None
        return {
            "tick": tick,
            "second": self.profile.clock[tick],
            "operator": None if running is None else running.id,
            "type": None if running is None else running.type,
            "name": None if running is None else running.name,
            "alive": [self.block_row(block) for block in alive_at(blocks, tick)],
        }

    def block_row(self, block: Block) -> dict[str, Any]:
        maker = None if block.maker is None else self.operators[block.maker]
        return {
            "name": block.name,
            "bytes": block.bytes,
            "kind": str(block.kind),
            "maker": None if maker is None else maker.id,
            "maker_name": None if maker is None else maker.name,
        }

    @cached_property
    def _gap_before(self) -> dict[int, float]:
        return {gap.after: gap.seconds for gap in self.gaps.every}

    def row(self, at: int) -> dict[str, Any]:
        """One operator."""
        op = self.operators[at]
        rates = find_rates((op,), self.machine)
        return {
            "seq": at,
            "id": op.id,
            "name": op.name,
            "type": op.type,
            "module": op.module,
            "source": op.source,
            "phase": None if op.phase is None else str(op.phase),
            "thread": op.thread,
            "stream": op.stream,
            "host": _span_json(op.host),
            "device": _span_json(op.device),
            "total_s": operator_seconds(op, "total"),
            **rates.to_json(),
            "flops": op.flops,
            "bytes": op.bytes,
            "gap_before_s": self._gap_before.get(at),
            "lag_s": None if self.lag is None else self.lag.seconds[at],
            "in_shapes": [list(shape) for shape in op.in_shapes],
            "out_shapes": [list(shape) for shape in op.out_shapes],
            "reads": list(op.reads),
            "writes": list(op.writes),
            "attrs": dict(op.attrs),
        }


def _span_json(span: Span | None) -> dict[str, float | None] | None:
    return None if span is None else {"start_s": span.start_s, "kern_s": span.kern_s, "end_s": span.end_s}


def analyze(profile: Profile, machine: Machine | None = None, *, layout_effort: int = EFFORT // 10) -> Analysis:
    """What a profile says. machine: to hold rates against."""
    return Analysis(profile, machine, layout_effort)
