"""The dispatch mode of a recording: sees every operator of the thread and of its backward passes, and notes it down.

What happens here is paid for in every step, so operators are only noted; a profile is made of the notes afterwards.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import is_grad_enabled

from ..torch_private import TorchDispatchMode
from .device import DeviceClock, Mark
from .flops import UNKNOWN_FLOPS, count_flops, knows_flops
from .memory import ACTIVATION, GRADIENT, INPUT, NO_MAKER, UNKNOWN, Birth, Ledger, Uses
from .scope import BACKWARD, FORWARD, Scope


class RawOperator(NamedTuple):
    """One run of one operator, as noted."""

    number: int
    func: int  # place in `RecordMode.abouts`
    begin: int  # ns
    end: int
    module: int  # place in `RecordMode.modules`
    phase: int
    again: int  # run to be differentiated, in backward
    thread: int
    flops: int  # or UNKNOWN_FLOPS
    line: int  # place in `RecordMode.lines`
    reads: Uses
    results: Uses
    written: Uses  # arguments


_PACKAGE = Path(__file__).parents[1]
_NOT_THEIRS = (
    str(Path(torch.__file__).parent),
    # of ours, networks and layers are what a user would look at
    *(f"{folder}/" for folder in sorted(_PACKAGE.iterdir()) if folder.is_dir() and folder.name not in ("models", "nn")),
)
_HEAD = len(RawOperator._fields) - 3  # numbers before those of the uses


class About(NamedTuple):
    """What is known of an operator by itself."""

    place: int  # among all
    func: Any
    writes: bool  # to arguments
    places: tuple[int, ...]  # of arguments that it writes to without returning them
    names: tuple[str, ...]
    flops: bool  # can be counted


# An argument that is not known was there before; what it is for depends on who reads it first. By phase.
_BEFORE: tuple[Birth, ...] = ((0, INPUT, NO_MAKER), (0, UNKNOWN, NO_MAKER), (0, UNKNOWN, NO_MAKER))
_BORN = (ACTIVATION, GRADIENT, UNKNOWN)


class RecordMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self, ledger: Ledger, scope: Scope, devices: DeviceClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger, self.scope, self.devices = ledger, scope, devices
        self.abouts: list[About] = []
        self.modules: dict[str, int] = {}
        self.lines: dict[tuple[str, int], int] = {("", 0): 0}  # of the user's code: file, number
        self._rows = array("q")  # of every operator: how many numbers are reads, results and writes, then all numbers
        self.marks: dict[int, tuple[Mark | None, Mark | None]] = {}
        self._known: dict[Any, About] = {}
        self._numbers = count()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ledger = self.ledger
        clock = ledger.clock
        if ledger.dead:
            ledger.bury(len(clock))  # the tick of this operator
        module, phase, thread = self.scope.where()
        before = _BEFORE[phase]
        reads = ledger.uses(args, before)
        if kwargs:
            reads += ledger.uses(kwargs.values(), before)
        else:
            kwargs = {}
        number = next(self._numbers)
        device = self.devices.of(args, kwargs) if self.devices.present else None
        mark = self.devices.mark(device) if device is not None else None
        begin = perf_counter_ns()
        tick = len(clock)
        clock.append(begin)
        result = func(*args, **kwargs)
        end = perf_counter_ns()
        if device is not None:
            self.marks[number] = mark, self.devices.mark(device)
        if ledger.dead:  # died meanwhile, before the results are counted
            tick = ledger.tick()
            ledger.bury(tick)
        again = phase == BACKWARD and is_grad_enabled()
        birth = tick, _BORN[FORWARD if again else phase], number
        results = ledger.uses(result if isinstance(result, (list, tuple)) else (result,), birth)
        if not reads and not results:
            return result  # not about tensors
        about = self._known.get(func) or self._look_up(func)
        place = self.modules.get(module)
        if place is None:
            place = self.modules.setdefault(module, len(self.modules))
        written = self._written(about, args, kwargs, before) if about.names else []
        flops = count_flops(func, args, kwargs, result) if about.flops else UNKNOWN_FLOPS
        sizes = [len(reads), len(results), len(written)]
        line = self._line() if phase == FORWARD else 0  # of backward only the line that called it would be found
        head = [number, about.place, begin, end, place, phase, again, thread, flops, line]
        self._rows.fromlist(sizes + head + reads + results + written)  # at once: other threads may do the same
        return result

    def operators(self) -> Iterator[RawOperator]:
        rows, at = self._rows.tolist(), 0
        while at < len(rows):
            first = at + 3 + _HEAD
            second, third = first + rows[at], first + rows[at] + rows[at + 1]
            last = third + rows[at + 2]
            uses = tuple(rows[first:second]), tuple(rows[second:third]), tuple(rows[third:last])
            yield RawOperator._make((*rows[at + 3 : first], *uses))
            at = last

    def _line(self) -> int:
        """Where in the user's code an operator runs: the innermost line that is neither torch's nor ours."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THEIRS):
            frame = frame.f_back
        place = frame.f_code.co_filename, frame.f_lineno
        return self.lines.setdefault(place, len(self.lines))

    def _written(self, about: About, args: Any, kwargs: Any, before: Birth) -> list[int]:
        items = [args[at] for at in about.places if at < len(args)]
        items += [kwargs[name] for name in about.names if name in kwargs]
        return self.ledger.uses(items, before)

    def _look_up(self, func: Any) -> About:
        schema = getattr(func, "_schema", None)
        arguments = schema.arguments if schema is not None else ()
        returned = {name for result in schema.returns for name in _alias(result)} if schema is not None else set()
        written = [(at, a) for at, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        others = [(at, a.name) for at, a in written if not returned & _alias(a)]
        places, names = tuple(at for at, _ in others), tuple(name for _, name in others)
        about = About(len(self.abouts), func, bool(written), places, names, knows_flops(func))
        self._known[func] = about
        self.abouts.append(about)
        return about


def _alias(item: Any) -> set[str]:
    return set(item.alias_info.before_set) if item.alias_info is not None else set()
