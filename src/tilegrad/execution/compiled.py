"""Steps of an island as one function of tensors, which `torch.compile` makes one kernel or few of.

All of an island goes into one function, its seams included: halos that it receives are arguments, halos that it gives
are results, and autograd sees the gradients of both go through it. What is random, or whose gradient is a share, stays
outside, and so ends a function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from ..ops import Place
from ..ops.frame import unframed
from ..progress import Progress, tick
from ..region import Box
from ..schedule import Fold, Free, Island, IslandStep, Join, Load, Store
from ..torch_private import operators_are_watched
from .compilation import Compilation, compilation_of
from .prepared import Prepared, TileChain, TileJoin, TileNode
from .saved import Enter
from .seam import Seam
from .stretch import Stretch, WholeNode, checked

if TYPE_CHECKING:
    from .executor import Executor
    from .record import Record

LEAST = 2  # nodes on images that are worth a function
PartStep = IslandStep | Prepared | Stretch | WholeNode


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
        self.joins = [step.step for step in steps if isinstance(step, TileJoin)]
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
        device = tensors[0].device

        def look_up(name: str, box: Box) -> Tensor:
            if name not in made:
                return known[Argument(name, box)]
            found, have = made[name]
            return unframed(found, frame_of(have, box))

        for step in self.steps:
            tick()
            match step:
                case TileNode(step=one, call=call):
                    place = Place(one.out, one.reads, 0, device, one.node in unread)
                    made[step.out] = step.op.run(call, [look_up(*read) for read in step.reads], place), one.out
                case TileChain(fused=fused, first=first):
                    tiles = [[look_up(*read) for read in reads] for reads in step.reads]
                    place = Place(first.out, first.reads, 0, device)
                    made[step.out] = fused.kernel.run(step.calls, tiles, place), fused.steps[-1].out
                case Stretch():
                    inputs = [known.get(a) if a.writer else look_up(a.value, a.box) for a in self._of_stretch(step)]
                    made |= {name: (tensor, box) for name, tensor, box in step.run(inputs)}  # type: ignore[arg-type]
                case TileJoin(step=join):
                    received = [next(halos) for _ in join.receives]
                    mine = None if join.own.empty else look_up(join.value, join.own)
                    made[join.value] = Seam(step, received, _none, _none).assemble(mine), join.held
                    given += [made[join.value][0][at].clone() for _, at in step.gives]
        return [*(checked(made[name][0], box, name) for name, box in self.makes), *given]

    def _arguments(self) -> Iterator[Argument]:
        made: set[str] = set()
        for step in self.steps:
            match step:
                case TileNode():
                    yield from (Argument(name, box) for name, box in step.reads if name not in made)
                case TileChain():
                    every = (read for reads in step.reads for read in reads)
                    yield from (Argument(name, box) for name, box in every if name not in made)
                case Stretch():
                    yield from (a for a in self._of_stretch(step) if a.writer or a.value not in made)
                case TileJoin(step=join) if join.value not in made and not join.own.empty:
                    yield Argument(join.value, join.own)
            made.update(name for name, _ in _made(step))

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
            made |= dict(_made(step))
        return [(name, box) for name, box in made.items() if name not in freed]


def _attempt(known: Compilation | None, tensors: Sequence[Tensor]) -> list[Tensor] | None:
    ran, found = known.attempt(*tensors) if known is not None else (False, None)
    return found if ran else None


def _none(*_: object) -> None:
    """Of no use where autograd itself sees what is joined."""


def _nodes(step: PartStep) -> Sequence[str]:
    match step:
        case TileNode(step=one):
            return (one.node,)
        case TileChain(fused=fused):
            return [each.node for each in fused.steps]
        case Stretch():
            return step.nodes
    return ()


def _made(step: PartStep) -> Sequence[tuple[str, Box]]:
    match step:
        case TileNode(step=one, out=name):
            return ((name, one.out),)
        case TileChain(fused=fused, out=name):
            return ((name, fused.steps[-1].out),)
        case Stretch():
            return step.makes
        case TileJoin(step=join):
            return ((join.value, join.held),)
    return ()


def frame_of(have: Box, box: Box) -> list[int]:
    """What of a box that is in hand lies around another."""
    sides = zip(reversed(box), reversed(have), strict=True)
    each = ((want.lo - side.lo, side.hi - want.hi) if want.size else (0, side.size) for want, side in sides)
    return [n for pair in each for n in pair]


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
        case TileNode(step=one, op=op):
            return op.random or op.opaque or one.answers is not None or not step.reads
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
