"""Seconds: walk a schedule with one compute stream and one copy stream each way.

A host that runs ahead of its device (`Machine.kernel_s`) works while the device does, and what takes longer counts.
Copies run beside computing, one after another in each direction. A node waits for what it reads to be fetched; giving
back the device memory of what was moved away waits for its copy.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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
from .cost import Cost, fresh_bytes, serial_elements
from .machine import PEER, Machine
from .rehearsal import shape_of

PYTHON = 8.0  # launches: Python around one operator on a box, forward; about the same again backward
JOIN = 4.0  # times the bytes: a tensor is put together of parts at a quarter of the speed at which one is read
CALLS = 2.0  # for a halo that is given or received: it is cut out and kept, or found and joined
MORE_KERNELS = 2.0  # in the backward of an operator: gradients of its weights, and their sums
ENGINE = 30.0  # launches: autograd's engine, which has a thread for a device, is entered for an island's backward
RELAID = 3.0  # passes over weights that are read, laid out as a CPU's kernels want them, and read so
FOLDS = 8.0  # calls for a tile's part of a reduction: small numbers, and many of them
DENSE, OTHER = 2.0, 1.5  # backward against forward: two products instead of one; three tensors moved instead of two


class Spent(NamedTuple):
    """Seconds that host and device take over something."""

    host: float
    device: float

    def plus(self, other: Spent, times: float = 1.0) -> Spent:
        return Spent(self.host + times * other.host, self.device + times * other.device)


FREE = Spent(0.0, 0.0)


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
    now = issued = out_free = in_free = compute = stall = 0.0
    gone: dict[str, float] = {}  # value -> when its copy to the host is done
    there: dict[str, float] = {}  # value -> when its copy from the host is done
    moved, starts = 0, list[float]()
    for at, step in enumerate(schedule.steps):
        wait, spent = 0.0, FREE
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
                spent = Spent(0.0, message + sent / rate)
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
        issued += spent.host
        now = now + sum(spent) if machine.kernel_s is None else max(now + spent.device, issued)
        compute += machine.elapsed(*spent)
    return Time(now, compute, stall, moved + clock.moved, tuple(starts))


class _Known:
    """Seconds of nodes are given."""

    moved = 0

    def __init__(self, seconds: Mapping[str, float]):
        self.seconds = seconds

    def forward(self, island: Island, again: bool, alone: bool) -> Spent:
        return Spent(0.0, sum(self.seconds[node] for node in island.nodes))

    def backward(self, island: Island) -> Spent:
        return Spent(0.0, sum(self.seconds.get(f"{node}.backward", 0.0) for node in island.nodes))


class _Counted:
    """Arithmetic and bytes of every box, joins and what is read from elsewhere included."""

    def __init__(self, schedule: Schedule, machine: Machine):
        self.graph, self.machine = schedule.graph, machine
        self.far = schedule.storage != Storage.DEVICE
        self.moved = 0
        self._known: dict[Hashable, tuple[Spent, Spent, Spent, Spent, int]] = {}
        self._runs: dict[tuple[int, bool, bool], tuple[Spent, int]] = {}  # of a kind of islands

    def forward(self, island: Island, again: bool, alone: bool) -> Spent:
        """`again`: folds are made already; `alone`: it runs for its backward alone."""
        key = id(island.kind), again, alone
        if key not in self._runs:
            seconds, folds, unread, _, moved = self._count(island)
            seconds = seconds if again else seconds.plus(folds)
            self._runs[key] = seconds.plus(unread, -1.0) if alone else seconds, moved
        seconds, moved = self._runs[key]
        self.moved += moved
        return seconds

    def backward(self, island: Island) -> Spent:
        _, _, _, seconds, moved = self._count(island)
        self.moved += moved
        return seconds

    def _count(self, island: Island) -> tuple[Spent, Spent, Spent, Spent, int]:
        """Forward but for folds, folds, what need not run for backward alone, backward, and the bytes moved to or from
        elsewhere."""
        key = shape_of(island)
        if key not in self._known:
            forward = folds = skipped = FREE
            unread = unread_nodes(self.graph, island)
            moved, call, back = 0, call_of_python(self.machine), entered(self.machine)
            more = Spent(0.0, MORE_KERNELS * call.device)
            for step in island.steps:
                match step:
                    case Compute(node=name, out=out):
                        of = call_of(self.graph, self.graph.node[name])
                        whole, factor = whole_seconds(of, self.machine)
                        share = out.volume / max(1, of.out.size)
                        once = Spent(0.0, whole * share + max(0.0, 1 - share) * weights_seconds(of, self.machine))
                        new = Spent(0.0, self.machine.extra_s(fresh_bytes(out.volume * of.out.item_bytes)))
                        new = FREE if find(of.node).view else new
                        forward = forward.plus(once).plus(call).plus(new)
                        skipped = skipped.plus(once) if name in unread else skipped
                        back = back.plus(once, factor).plus(call).plus(more).plus(new)
                        if len(out) > 2 and out[-1].size < of.out.shape[-1]:
                            laid = Spent(0.0, laid_seconds(of, self.machine) * share)
                            forward, back = forward.plus(laid), back.plus(laid)
                    case Join(value=value, held=held, receives=receives, gives=gives):
                        size = self.graph.type(value).item_bytes
                        copied = JOIN * ((2 * held.volume if receives else 0) + 2 * sum(h.box.volume for h in gives))
                        spent = Spent(0.0, copied * size / self.machine.bytes_per_s)
                        spent = spent.plus(call, CALLS * (len(receives) + len(gives)))
                        forward, back = forward.plus(spent), back.plus(spent)
                        moved += sum(h.box.volume for h in (*receives, *gives)) * size if self.far else 0
                    case Fold(node=name, box=box):
                        value = self.graph.node[name].reads[0]
                        passed = 2 * box.volume * self.graph.type(value).item_bytes / self.machine.bytes_per_s
                        folds = folds.plus(Spent(0.0, passed)).plus(call, FOLDS)
                        back = back.plus(Spent(0.0, 2 * passed)).plus(call, FOLDS)
                    case Load(value=value, box=box) | Store(value=value, box=box):
                        if self.far and self.graph.value[value].kind.computed and len(box) > 2:
                            moved += box.volume * self.graph.type(value).item_bytes
            link = Spent(0.0, moved / self.machine.link_per_s)
            self._known[key] = (forward.plus(link), folds, skipped, back.plus(link), moved)
        return self._known[key]


def call_of_python(machine: Machine) -> Spent:
    """One operator on a box: Python around it, its launch, and the least that the device takes."""
    return Spent((1 + PYTHON) * machine.launch_s, machine.kernel_s or 0.0)


def entered(machine: Machine) -> Spent:
    """What it takes to begin a backward."""
    return FREE if machine.kernel_s is None else Spent(ENGINE * machine.launch_s, 0.0)


def weights_seconds(call: Call, machine: Machine) -> float:
    """Weights are read anew for every box; `whole_seconds` counts a share of that. A CPU lays them out anew as well."""
    if not find(call.node).dense:
        return 0.0
    passes = 1.0 if machine.kernel_s is not None else RELAID
    return passes * sum(t.bytes for t in call.inputs[1:]) / machine.bytes_per_s


def laid_seconds(call: Call, machine: Machine) -> float:
    """What a GPU's libraries read must lie together. Where tiles cut the last axis it does not, and is copied."""
    if machine.kernel_s is None or not call.inputs or not find(call.node).dense:
        return 0.0
    return JOIN * 2 * call.inputs[0].bytes / machine.bytes_per_s


def whole_seconds(call: Call, machine: Machine) -> tuple[float, float]:
    """All of a node's output, without the call; and how much longer backward takes. A part takes its share. What a CPU
    looks at one by one it looks at in backward, if at all (`kernels/comparing_pool.py`)."""
    op = find(call.node)
    moved = sum(t.bytes for t in (*call.inputs, *call.outputs))
    flops = op.flops(call) * call.out.size if op.dense else 0.0
    cost = Cost(flops, moved, call.out.dtype, op.reach, op.rate(call) if flops else 1.0)
    swift, serial = cost.seconds(machine) - machine.launch_s, machine.extra_s(0.0, serial_elements(call))
    factor = DENSE if op.dense else OTHER
    return swift, factor + serial / swift if serial else factor
