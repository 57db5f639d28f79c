"""Seconds: walk a schedule with one compute stream and one copy stream each way.

Copies run beside computing, one after another in each direction. A node waits for what it reads to be fetched; giving
back the device memory of what was moved away waits for its copy.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from ..bounds import call_of
from ..ops import Call, find
from ..progress import tick
from ..schedule import (
    Backward,
    Compute,
    Exchange,
    Fold,
    Free,
    Island,
    Join,
    Load,
    Move,
    Run,
    Schedule,
    Storage,
    Store,
    unread_nodes,
)  # fmt: skip
from ..schedule.whole import roots_of
from .machine import PEER, Machine
from .rehearsal import shape_of

PYTHON = 8.0  # launches: Python around one operator on a box, forward; about the same again backward
JOIN = 4.0  # times the bytes: a tensor is put together of parts at a quarter of the speed at which one is read
CALLS = 2.0  # for a halo that is given or received: it is cut out and kept, or found and joined
FOLDS = 8.0  # calls for a tile's part of a reduction: small numbers, and many of them
DENSE, OTHER = 2.0, 1.5  # backward against forward: two products instead of one; three tensors moved instead of two


@dataclass(frozen=True)
class Time:
    """Predicted time of a schedule."""

    total_s: float
    compute_s: float  # all nodes, reruns included
    stall_s: float  # waiting for copies
    host_bytes: int  # copied, both ways together
    starts: tuple[float, ...] = field(repr=False)  # of each step


def measure_time(schedule: Schedule, seconds: Mapping[str, float] | None, machine: Machine) -> Time:
    """`seconds`: of every node of a training graph; None: what islands do is counted."""
    tick()
    clock = _Counted(schedule, machine) if seconds is None else _Known(seconds)
    roots = roots_of(schedule.graph)
    now = out_free = in_free = compute = stall = 0.0
    gone: dict[str, float] = {}  # value -> when its copy to the host is done
    there: dict[str, float] = {}  # value -> when its copy from the host is done
    moved, starts = 0, list[float]()
    for at, step in enumerate(schedule.steps):
        wait = spent = 0.0
        match step:
            case Run(island=name):
                island = schedule.islands[name]
                again = at > schedule.turn
                spent = clock.forward(island, again, again and schedule.is_for_backward(at))
                if there:
                    reads = {roots.root[v] for v in island.reads(schedule.graph)}
                    wait = max((there.get(v, 0.0) for v in reads), default=0.0)
            case Backward(island=name):
                spent = clock.backward(schedule.islands[name])
                if there:
                    island = schedule.islands[name]
                    reads = {roots.root[v] for v in island.reads_back(schedule.graph)} | {island.saved}
                    wait = max((there.get(v, 0.0) for v in reads), default=0.0)
            case Exchange(gives=gives, takes=takes) if gives or takes:
                sent = sum(s.box.volume * schedule.graph.type(s.value).item_bytes for s in (*gives, *takes))
                rate = machine.peer_bytes_per_s or PEER[0]
                message = PEER[1] if machine.message_s is None else machine.message_s
                spent = message + sent / rate
            case Free(value=value):
                wait = max(gone.pop(value, 0.0), there.pop(value, 0.0))
            case Move(value=value, store=Storage.DEVICE):
                size = roots.bytes.get(value, 0)
                in_free = there[value] = max(now, in_free) + size / machine.from_host_per_s
                moved += size
            case Move(value=value):
                size = roots.bytes.get(value, 0)
                out_free = gone[value] = max(now, out_free) + size / machine.to_host_per_s
                moved += size
        stall += max(0.0, wait - now)
        now = max(now, wait)
        starts.append(now)
        now += spent
        compute += spent
    return Time(now, compute, stall, moved + clock.moved, tuple(starts))


class _Known:
    """Seconds of nodes are given."""

    moved = 0

    def __init__(self, seconds: Mapping[str, float]):
        self.seconds = seconds

    def forward(self, island: Island, again: bool, alone: bool) -> float:
        return sum(self.seconds[node] for node in island.nodes)

    def backward(self, island: Island) -> float:
        return sum(self.seconds.get(f"{node}.backward", 0.0) for node in island.nodes)


class _Counted:
    """Arithmetic and bytes of every box, joins and what is read from elsewhere included."""

    def __init__(self, schedule: Schedule, machine: Machine):
        self.graph, self.machine = schedule.graph, machine
        self.far = schedule.storage != Storage.DEVICE
        self.moved = 0
        self._known: dict[Hashable, tuple[float, float, float, float, int]] = {}

    def forward(self, island: Island, again: bool, alone: bool) -> float:
        """`again`: folds are made already; `alone`: it runs for its backward alone."""
        seconds, folds, unread, _, moved = self._count(island)
        self.moved += moved
        return seconds + (0.0 if again else folds) - (unread if alone else 0.0)

    def backward(self, island: Island) -> float:
        _, _, _, seconds, moved = self._count(island)
        self.moved += moved
        return seconds

    def _count(self, island: Island) -> tuple[float, float, float, float, int]:
        """Forward but for folds, folds, what need not run for backward alone, backward, and the bytes moved to or from
        elsewhere."""
        key = shape_of(island)
        if key not in self._known:
            forward = back = folds = skipped = 0.0
            unread = unread_nodes(self.graph, island)
            moved, call_s = 0, PYTHON * self.machine.launch_s
            for step in island.steps:
                match step:
                    case Compute(node=name, out=out):
                        call = call_of(self.graph, self.graph.node[name])
                        whole, factor = whole_seconds(call, self.machine)
                        once = self.machine.launch_s + whole * out.volume / max(1, call.out.size)
                        forward += once + call_s
                        skipped += once if name in unread else 0.0
                        back += factor * once + call_s
                    case Join(value=value, held=held, receives=receives, gives=gives):
                        size = self.graph.type(value).item_bytes
                        copied = JOIN * ((2 * held.volume if receives else 0) + 2 * sum(h.box.volume for h in gives))
                        spent = self.machine.seconds(0.0, copied * size, self.graph.type(value).dtype)
                        spent += CALLS * call_s * (len(receives) + len(gives))
                        forward += spent
                        back += spent
                        moved += sum(h.box.volume for h in (*receives, *gives)) * size if self.far else 0
                    case Fold(node=name, box=box):
                        value = self.graph.node[name].reads[0]
                        spent = self.machine.seconds(0.0, 2 * box.volume * self.graph.type(value).item_bytes)
                        folds += spent + FOLDS * call_s
                        back += 2 * spent + FOLDS * call_s
                    case Load(value=value, box=box) | Store(value=value, box=box):
                        if self.far and self.graph.value[value].kind.computed and len(box) > 2:
                            moved += box.volume * self.graph.type(value).item_bytes
            link = moved / min(self.machine.to_host_per_s, self.machine.from_host_per_s)
            self._known[key] = (forward + link, folds, skipped, back + link, moved)
        return self._known[key]


def whole_seconds(call: Call, machine: Machine) -> tuple[float, float]:
    """All of a node's output, without the call; and how much longer backward takes. A part takes its share."""
    op = find(call.node)
    moved = sum(t.bytes for t in (*call.inputs, *call.outputs))
    flops = op.flops(call) * call.out.size if op.dense else 0.0
    return machine.seconds(flops, moved, call.out.dtype) - machine.launch_s, DENSE if op.dense else OTHER
