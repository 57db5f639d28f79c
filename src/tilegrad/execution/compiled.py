"""Steps of an island as one function of tensors, which `torch.compile` makes one kernel or few of.

All of an island goes into one function, its seams included: halos that it receives are arguments, halos that it gives
are results, and autograd sees the gradients of both go through it. What is random, or whose gradient is a share, stays
outside, and so ends a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from ..kernels import Fused
from ..ops import Call, Place
from ..progress import Progress, tick
from ..region import Box
from ..schedule import Compute, Fold, Free, Island, IslandStep, Join, Load, Store
from ..torch_private import operators_are_watched
from .compilation import Compilation, compilation_of
from .saved import Enter
from .seam import Seam
from .stretch import Stretch, WholeNode, checked

if TYPE_CHECKING:
    from .executor import Executor
    from .record import Record

LEAST = 2  # nodes on images that are worth a function
PartStep = IslandStep | Fused | Stretch | WholeNode
Lookup = Callable[[str, Box], Tensor]


@dataclass(frozen=True)
class Argument:
    """A box of a value that is there before; `writer`: the node that writes to it."""

    value: str
    box: Box
    writer: str = ""


class Compiled:
    """`steps`: what it stands for, and what runs where it does not. In order: `loads`, then the function of
    `arguments` and of the halos that `joins` receive, which gives `makes` and the halos that they give, then
    `behind`."""

    def __init__(self, executor: Executor, island: Island, steps: Sequence[PartStep]):
        self.executor, self.island, self.steps = executor, island.name, tuple(steps)
        self.joins = [step for step in steps if isinstance(step, Join)]
        self.loads = [step for step in steps if isinstance(step, Load)]
        self.behind = [step for step in steps if isinstance(step, Store | Fold | Free)]
        self.nodes = [name for step in steps for name in _nodes(step)]
        self.arguments: list[Argument] = list(dict.fromkeys(self._arguments()))
        self.makes = self._makes()
        self._known: dict[Any, Compilation | None] = {}
        self._what = f"{len(self.nodes)} nodes of {island.name} ({self.nodes[0]} to {self.nodes[-1]})"

    def run(self, arguments: Sequence[Tensor], halos: Sequence[Tensor], unread: frozenset[str]) -> list[Tensor] | None:
        """What is made, then halos; None: it cannot be compiled."""
        tensors = (*arguments, *halos)
        look = unread, tuple((t.shape, t.stride(), t.dtype, t.requires_grad) for t in tensors)
        if look in self._known:
            return _attempt(self._known[look], tensors)
        executor = self.executor
        executor.met.add(self.island)
        with Progress("compiling") as progress:
            progress.tell(self._what, len(executor.met), len(executor.schedule.islands))
            self._known[look] = self._find(tensors, unread)
            return _attempt(self._known[look], tensors)

    def _find(self, tensors: Sequence[Tensor], unread: frozenset[str]) -> Compilation | None:
        options = self.executor.compile
        assert options is not None
        return compilation_of(lambda given: self._play(given, unread), tensors, options, self._what)

    # -- the function --------------------------------------------------------------------------------------------------

    def _play(self, tensors: Sequence[Tensor], unread: frozenset[str]) -> list[Tensor]:
        known = dict(zip(self.arguments, tensors, strict=False))
        halos = iter(tensors[len(self.arguments) :])
        made: dict[str, tuple[Tensor, Box]] = {}
        given: list[Tensor] = []

        def look_up(name: str, box: Box) -> Tensor:
            return narrowed(*made[name], box) if name in made else known[Argument(name, box)]

        for step in self.steps:
            tick()
            match step:
                case Compute(node=node, out=box):
                    call, device = self.executor.calls[node], tensors[0].device
                    place = Place(box, step.reads, 0, device, node in unread)
                    tiles = tiles_of(call, step, look_up)
                    made[call.node.outputs[0]] = self.executor.ops[node].run(call, tiles, place), box
                case Fused(steps=steps):
                    made[self._out(steps[-1])] = run_fused(step, self.executor.calls, look_up), steps[-1].out
                case Stretch():
                    inputs = [known.get(a) if a.writer else look_up(a.value, a.box) for a in self._of_stretch(step)]
                    made |= {name: (tensor, box) for name, tensor, box in step.run(inputs)}  # type: ignore[arg-type]
                case Join(value=value, own=own, held=held):
                    received = [next(halos) for _ in step.receives]
                    mine = None if own.empty else look_up(value, own)
                    made[value] = Seam(step, received, _none, _none).assemble(mine), held
                    given += [made[value][0][halo.box.within(held).slices].clone() for halo in step.gives]
        return [*(checked(made[name][0], box, name) for name, box in self.makes), *given]

    def _arguments(self) -> Iterator[Argument]:
        made: set[str] = set()
        for step in self.steps:
            match step:
                case Compute():
                    found = [step]
                case Fused(steps=steps):
                    found = list(steps)
                case Stretch():
                    yield from (a for a in self._of_stretch(step) if a.writer or a.value not in made)
                    made |= {name for name, _ in step.makes}
                    continue
                case Join(value=value, own=own):
                    if value not in made and not own.empty:
                        yield Argument(value, own)
                    made.add(value)
                    continue
                case _:
                    continue
            for at, one in enumerate(found):
                call = self.executor.calls[one.node]
                yield from (
                    Argument(name, box) for name, box in _boxes(call, one)[1 if at else 0 :] if name not in made
                )
            made.add(self._out(found[-1]))

    def _of_stretch(self, stretch: Stretch) -> list[Argument]:
        writers = {at: node.name for node, at in stretch.written}
        return [Argument(n, self.executor.full[n], writers.get(at, "")) for at, n in enumerate(stretch.reads)]

    def _makes(self) -> list[tuple[str, Box]]:
        """What somebody reads behind it."""
        made: dict[str, Box] = {}
        wanted = {step.value for step in self.behind if isinstance(step, Store)}
        wanted |= {self.executor.calls[step.node].node.reads[0] for step in self.behind if isinstance(step, Fold)}
        freed = {step.value for step in self.behind if isinstance(step, Free)} - wanted
        for step in self.steps:
            match step:
                case Compute(out=box):
                    made[self._out(step)] = box
                case Fused(steps=steps):
                    made[self._out(steps[-1])] = steps[-1].out
                case Stretch():
                    made |= dict(step.makes)
                case Join(value=value, held=box):
                    made[value] = box
        return [(name, box) for name, box in made.items() if name not in freed]

    def _out(self, step: Compute) -> str:
        return self.executor.graph.node[step.node].outputs[0]


def _attempt(known: Compilation | None, tensors: Sequence[Tensor]) -> list[Tensor] | None:
    ran, found = known.attempt(*tensors) if known is not None else (False, None)
    return found if ran else None


def _none(*_: object) -> None:
    """Of no use where autograd itself sees what is joined."""


def _nodes(step: PartStep) -> Sequence[str]:
    match step:
        case Compute(node=name):
            return (name,)
        case Fused(steps=steps):
            return [each.node for each in steps]
        case Stretch():
            return step.nodes
    return ()


def _boxes(call: Call, step: Compute) -> list[tuple[str, Box]]:
    """What a node reads, clipped: what sticks out is padding."""
    pairs = zip(call.node.reads, step.reads, call.inputs, strict=True)
    return [(name, raw.clip(type_.shape)) for name, raw, type_ in pairs]


def tiles_of(call: Call, step: Compute, look_up: Lookup, first: int = 0) -> list[Tensor]:
    return [look_up(name, box) for name, box in _boxes(call, step)[first:]]


def run_fused(fused: Fused, calls: Mapping[str, Call], look_up: Lookup) -> Tensor:
    """Several nodes at once: all but the first read what the one before makes."""
    each = [calls[step.node] for step in fused.steps]
    pairs = enumerate(zip(each, fused.steps, strict=True))
    tiles = [tiles_of(call, step, look_up, 1 if at else 0) for at, (call, step) in pairs]
    first = fused.steps[0]
    return fused.kernel.run(each, tiles, Place(first.out, first.reads, 0, tiles[0][0].device))


def narrowed(tensor: Tensor, have: Box, box: Box) -> Tensor:
    """A box of a value of which a larger one is in hand."""
    for dim, (want, side) in enumerate(zip(box, have, strict=True)):
        if want != side:
            tensor = tensor.narrow(dim, want.lo - side.lo if want.size else 0, want.size)
    return tensor


# -- where it begins and ends ------------------------------------------------------------------------------------------


def with_compiled(executor: Executor, island: Island, steps: Sequence[PartStep]) -> Iterator[PartStep | Compiled]:
    """An island's program, with functions where there can be any."""
    part: list[PartStep] = []
    loaded: set[str] = set()
    for step in steps:
        again = isinstance(step, Load) and step.value in loaded
        if again or _stays_outside(executor, step):
            yield from _closed(executor, island, part)
            part, loaded = [], set()
        if isinstance(step, Load):
            loaded.add(step.value)
        if _stays_outside(executor, step):
            yield step
        else:
            part.append(step)
    yield from _closed(executor, island, part)


def _closed(executor: Executor, island: Island, part: Sequence[PartStep]) -> Sequence[PartStep | Compiled]:
    made = [executor.calls[name].out.shape for step in part for name in _nodes(step)]
    return [Compiled(executor, island, part)] if sum(len(shape) > 2 for shape in made) >= LEAST else part


def _stays_outside(executor: Executor, step: PartStep) -> bool:
    match step:
        case Compute(node=name, answers=answers):
            op = executor.ops[name]
            return op.random or op.opaque or answers is not None or not executor.graph.node[name].reads
        case Stretch():
            return any(executor.ops[name].opaque for name in step.nodes)
    return isinstance(step, WholeNode)


# -- in a record -------------------------------------------------------------------------------------------------------


def run_compiled(record: Record, step: Compiled) -> None:
    """Run it in a record; or what it stands for, where it cannot be compiled."""
    if operators_are_watched():  # rule Z3: nor is anything compiled
        record.run_steps(step.steps)
        return
    run, buffers = record.owner, record.owner.buffers
    record.run_steps(step.loads)
    arguments = [record.tensor(each.value, each.box) for each in step.arguments]
    for at, each in enumerate(step.arguments):
        if each.writer:
            arguments[at] = buffers.read(run.graph.node[each.writer], each.value, arguments[at], True)
    halos = _received(record, step.joins)
    unread = frozenset(n for n in step.nodes if n in record.unread and run.graph.node[n].outputs[0] in run.needs)
    found = step.run(arguments, list(halos.values()), unread)
    if found is None:
        for key, tensor in halos.items() if record.last else ():
            run.halos.put(key, tensor.detach())
        record.run_steps(step.steps)
        return
    buffers.ran.update(step.nodes)
    for (name, box), tensor in zip(step.makes, found, strict=False):
        record.values[name] = (tensor, box)
    keys = [(join.value, record.island.name, halo.peer) for join in step.joins for halo in join.gives]
    for key, tensor in zip(keys, found[len(step.makes) :], strict=True):
        if not run.again:
            run.halos.put(key, tensor.detach())
        if tensor.requires_grad:
            record.given.append((key, get_gradient_edge(tensor)))
    record.run_steps(step.behind)


def _received(record: Record, joins: Sequence[Join]) -> dict[tuple[str, str, str], Tensor]:
    """Halos as autograd shall know them: their gradients are left for the tile before."""
    run, found = record.owner, {}
    for join in joins:
        for halo in join.receives:
            key = (join.value, halo.peer, record.island.name)
            found[key] = run.halos.get(key, last=record.last)
            if record.graded and join.value in run.needs:
                found[key] = Enter.apply(run.anchor, found[key], partial(run.halo_grads.put, key))  # type: ignore[no-untyped-call]
    return found
