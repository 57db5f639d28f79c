"""From the notes of a recording to a profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import torch

from ..profile import Block, Operator, Profile, Span
from .flops import UNKNOWN_FLOPS
from .memory import ALIVE, KINDS, NO_MAKER, NOWHERE, Ledger, Uses
from .mode import RawOperator, RecordMode
from .scope import PHASES

NS = 1e-9  # seconds


def build_profile(name: str, mode: RecordMode) -> Profile:
    peaks = find_peaks(mode.ledger)
    noted = list(mode.operators())
    rows = [op for op in noted if any(block != NOWHERE for block in (*op.reads[::3], *op.results[::3]))]
    left_out = len(noted) - len(rows)
    return Profile(
        name,
        "recorded",
        tuple(_Operators(mode, rows)),
        tuple(_blocks(mode.ledger, rows)),
        tuple((moment - mode.ledger.clock[0]) * NS for moment in accumulate(mode.ledger.clock, max)),
        facts={"torch": torch.__version__, "peaks": {d: {"bytes": b, "tick": t} for d, (b, t) in peaks.items()}},
        notes=(f"{left_out} operators on meta or fake tensors are left out",) if left_out else (),
    )


def find_peaks(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """Of every device: the most bytes born in the recording that were alive in one tick, and the first such tick."""
    changes: dict[int, dict[int, int]] = {}
    for number, stop in enumerate(ledger.stops):
        block = ledger.block(number)
        if block.maker != NO_MAKER:
            at = changes.setdefault(block.device, {})
            at[block.start] = at.get(block.start, 0) + block.bytes
            if stop != ALIVE:
                at[stop] = at.get(stop, 0) - block.bytes
    return {name: _highest(changes[place]) for name, place in ledger.devices.items() if place in changes}


def _highest(changes: dict[int, int]) -> tuple[int, int]:
    now, best, when = 0, 0, 0
    for tick in sorted(changes):
        now += changes[tick]
        if now > best:
            best, when = now, tick
    return best, when


def _block_names(ledger: Ledger) -> list[str]:
    """Parameters and buffers as their module calls them, where no two have the same name; else "t17"."""
    names: dict[str, None] = {}
    for at in range(len(ledger.stops)):
        name = ledger.names.get(at, "")
        if not name or name in names:
            name = f"t{at}"
        while name in names:
            name += "'"
        names[name] = None
    return list(names)


def _blocks(ledger: Ledger, rows: Sequence[RawOperator]) -> Iterator[Block]:
    makers = {op.number: at for at, op in enumerate(rows)}
    names, devices = _block_names(ledger), list(ledger.devices)
    for at, stop in enumerate(ledger.stops):
        raw = ledger.block(at)
        yield Block(
            names[at],
            raw.bytes,
            raw.start,
            len(ledger.clock) if stop == ALIVE else stop,
            KINDS[ledger.kinds.get(at, raw.kind)],
            raw.address or None,
            devices[raw.device],
            makers.get(raw.maker),
            raw.maker != NO_MAKER,
        )


class _Operators:
    """Operators of a recording, one after the other."""

    def __init__(self, mode: RecordMode, rows: Sequence[RawOperator]) -> None:
        self.rows = rows
        self.mode, self.ledger, self.zero = mode, mode.ledger, mode.ledger.clock[0]
        self.names = _block_names(mode.ledger)
        self.shapes = list(mode.ledger.shapes)
        self.modules = list(mode.modules)
        self.sources = [f"{Path(file).name}:{number}" if file else "" for file, number in mode.lines]
        self.sizes = [mode.ledger.block(at).bytes for at in range(len(mode.ledger.stops))]
        funcs = [about.func for about in mode.abouts]
        self.types = [str(func) for func in funcs]
        self.short = [str(getattr(func, "overloadpacket", func)).rpartition(".")[2] for func in funcs]
        self.threads: dict[int, str] = {}
        self.derived: dict[int, str] = {}  # whose parameters a block was made of, where of nothing else

    def __iter__(self) -> Iterator[Operator]:
        for at, op in enumerate(self.rows):
            yield self._operator(str(at), op)

    def _operator(self, id_: str, op: RawOperator) -> Operator:
        device, stream = self._device_span(op.number)
        writes = op.results + _others(op.written, op.results[::3])
        return Operator(
            id_,
            self.short[op.func],
            self.types[op.func],
            Span((op.begin - self.zero) * NS, (op.end - self.zero) * NS),
            self.threads.setdefault(op.thread, str(len(self.threads))),
            device,
            stream,
            None if op.flops == UNKNOWN_FLOPS else op.flops,
            self._bytes_moved(op, writes),
            tuple(self.shapes[shape] for shape in op.reads[1::3]),
            tuple(self.shapes[shape] for shape in op.results[1::3]),
            self._value_names(op.reads),
            self._value_names(writes),
            {"recompute": True} if op.again else {},
            self.modules[op.module] or self._owner(op),
            PHASES[op.phase],
            source=self.sources[op.line],
        )

    def _bytes_moved(self, op: RawOperator, writes: Uses) -> int:
        """Bytes read and written; none for an operator that only looks at memory in another way."""
        if not self.mode.abouts[op.func].writes and op.results and set(op.results[::3]) <= set(op.reads[::3]):
            return 0
        both = op.reads + writes
        return sum(
            min(size, self.sizes[block])  # an expanded tensor is not so large
            for block, size in zip(both[::3], both[2::3], strict=True)
            if block >= 0
        )

    def _value_names(self, uses: Uses) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.names[block] for block in uses[::3] if block >= 0))

    def _owner(self, op: RawOperator) -> str:
        """The one module whose parameters are read, or what was made of them: a weight with a norm folded in."""
        blocks, results = op.reads[::3], op.results[::3]
        known = [self.ledger.owners.get(block) or self.derived.get(block, "") for block in blocks]
        if known and all(known) and all(self.sizes[block] == self.sizes[blocks[0]] for block in results if block >= 0):
            self.derived.update(dict.fromkeys(results, known[0]))
        owners = {self.ledger.owners[block] for block in blocks if block in self.ledger.owners}
        if owners:
            return owners.pop() if len(owners) == 1 else ""
        return next((self.derived[block] for block in blocks if block in self.derived), "")

    def _device_span(self, number: int) -> tuple[Span | None, str]:
        first, last = self.mode.marks.get(number, (None, None))
        if first is None or last is None:
            return None, ""
        begin, end = (self.mode.devices.second(mark) - self.zero * NS for mark in (first, last))
        return Span(begin, max(begin, end)), f"{first[0]} {first[1]}"


def _others(uses: Uses, known: Uses) -> Uses:
    """Without those whose block is among the known."""
    rows = zip(uses[::3], uses[1::3], uses[2::3], strict=True)
    return tuple(number for row in rows if row[0] not in known for number in row)
