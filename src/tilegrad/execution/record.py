"""A record: one run of an island, with or without gradients.

Without gradients each value is dropped after its last step. With gradients autograd keeps what it needs; the record
knows the places in autograd's graph of what the island stored or folded (not the tensors: stored ones serve), and the
leaves through which gradients come out. It may be differentiated at once, or stay until its turn comes.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..ops import Call, Place
from ..ops.frame import cropped
from ..region import Box
from ..schedule import Fold, Free, Island, Load, Store
from ..torch_private import saving_is_hooked
from .compiled import Compiled, frame_of, run_compiled
from .executor import ProgramStep
from .prepared import TileChain, TileJoin, TileNode
from .saved import Adoptions, Enter, Holdings, References, Saved, fills, memory_of, trimmed
from .seam import JoinFunction, OwnedFunction, Seam
from .stretch import Stretch, WholeNode, checked

if TYPE_CHECKING:
    from .walk import Pass

Root = Tensor | GradientEdge


def _lookup(run: Pass, island: Island) -> Callable[[str], Tensor]:
    """A value as the island found it, by name. Autograd will know this function, and must not know the pass."""
    owner, node = weakref.ref(run), island.nodes[0] if len(island.nodes) == 1 else ""

    def look_up(name: str) -> Tensor:
        found = owner()
        assert found is not None
        met = found.buffers.met.get((node, name))
        return met if met is not None else found.read(name, found.executor.full[name])

    return look_up


class Record:
    """`graded`: autograd takes notes. `last`: the island will not run again. `writes`: of what it stores."""

    def __init__(self, run: Pass, island: Island, *, graded: bool, last: bool, writes: frozenset[str]):
        self._owner, self.island, self.graded, self.last = weakref.ref(run), island, graded, last
        self.values: dict[str, tuple[Tensor, Box]] = {}
        self.whole: dict[str, Tensor] = {}  # values that are read whole
        self.arrived: list[tuple[str, Box, Tensor]] = []  # gradients of what was read
        self.stored: list[tuple[Store, GradientEdge, torch.dtype]] = []
        self.folded: list[tuple[Fold, Root, torch.dtype, list[Tensor]]] = []
        self.tokens: list[Tensor] = []
        self.given: list[tuple[Hashable, GradientEdge]] = []  # halos of compiled functions
        self.missing = writes
        self.unread = run.executor.unread(island) if graded and run.again and not self.missing else frozenset()
        self.hooks: References | Adoptions | Holdings | None = None
        if graded and island.refers is not None:
            self.hooks = References(_lookup(run, island))
        elif graded and island.joins:
            self.hooks = Adoptions()
        elif graded and (saving_is_hooked() or not run.executor.is_plain(island)):
            self.hooks = Holdings()

    @property
    def owner(self) -> Pass:
        """The pass, which knows its records: a pass that is dropped goes at once."""
        found = self._owner()
        assert found is not None
        return found

    # -- forward -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            if self.graded:
                stack.enter_context(torch.enable_grad())
            if self.hooks is not None:
                stack.enter_context(self.hooks.hooks())
            self.run_steps(self.owner.executor.program(self.island))
        if isinstance(self.hooks, References):
            self._refer(self.hooks)
        self.values.clear()
        self.whole = {name: leaf for name, leaf in self.whole.items() if leaf.is_leaf and leaf.requires_grad}
        if isinstance(self.hooks, Adoptions):
            self.hooks.pending.clear()

    def run_steps(self, steps: Sequence[ProgramStep]) -> None:
        for step in steps:
            match step:
                case Stretch():
                    self._run_stretch(step)
                case WholeNode():
                    self._compute_whole(step)
                case TileNode():
                    self._compute(step)
                case TileChain():
                    self._run_chain(step)
                case Compiled():
                    run_compiled(self, step)
                case Free(value=value):
                    self.values.pop(value, None)
                case TileJoin():
                    self._join(step)
                case Load():
                    self._load(step)
                case Store():
                    self._store(step)
                case Fold():
                    self._fold(step)

    def holds(self, memory: int) -> bool:
        """Does autograd keep what lies there?"""
        return isinstance(self.hooks, Adoptions | Holdings) and memory in self.hooks.memories

    def _refer(self, references: References) -> None:
        """Rule T2."""
        refers, known = self.island.refers or frozenset(), dict[str, Tensor]()
        for name in refers:
            if name in self.owner.values or name in self.owner.tensors:
                known[name] = references.lookup(name)
        references.refer(known)

    def _load(self, step: Load) -> None:
        tensor = self.owner.read(step.value, step.box)
        if self.graded and step.value in self.owner.needs:
            tensor = self._enter(step.value, step.box, step.share or step.box, tensor)
        self.values[step.value] = (tensor, step.box)

    def _enter(self, name: str, box: Box, share: Box, tensor: Tensor) -> Tensor:
        """Rule T1. `share`: the part for whose gradient we answer."""
        arrived = self.arrived  # not the record, which autograd must not know

        def arrive(grad: Tensor) -> None:
            arrived.append((name, share, grad if share == box else grad[share.within(box).slices]))

        found: Tensor = Enter.apply(self.owner.anchor, tensor, arrive)  # type: ignore[no-untyped-call]
        return found

    def _input(self, name: str) -> Tensor:
        """A stored value that is read whole."""
        run = self.owner
        if name not in self.whole:
            full = run.executor.full[name]
            if not self.graded or name not in run.needs:
                self.whole[name] = run.read(name, full)
            elif name in run.tensors:
                self.whole[name] = run.leaf(name)
            else:
                self.whole[name] = self._enter(name, full, full, run.read(name, full))
        return self.whole[name]

    def _whole(self, name: str) -> Tensor:
        """A value of which everything is in hand."""
        known = self.whole.get(name)
        if known is not None:
            return known
        return self._input(name) if name in self.island.whole else self.values[name][0]

    def tensor(self, name: str, box: Box) -> Tensor:
        """A box of a value that this island holds."""
        if name in self.island.whole:
            found, have = self._input(name), self.owner.executor.full[name]
        elif name in self.values:
            found, have = self.values[name]
        else:
            return self.owner.empty(name, box.shape)
        return found if box == have else cropped(found, frame_of(have, box))

    def _compute(self, node: TileNode) -> None:
        run, step, name = self.owner, node.step, node.step.node
        tiles = [self.tensor(value, box) for value, box in node.reads]
        unread = name in self.unread and node.out in run.needs
        seed = run.seed_of(name) if node.op.random else 0
        place = Place(step.out, step.reads, seed, run.device, unread, run.known)
        result = self._run_tiles(node, tiles, place)
        self.values[node.out] = (checked(result, step.out, node.call.node), step.out)

    def _run_stretch(self, stretch: Stretch) -> None:
        buffers, inputs = self.owner.buffers, [self._whole(name) for name in stretch.reads]
        for node, at in stretch.written:
            inputs[at] = buffers.read(node, stretch.reads[at], inputs[at], True)
        buffers.ran.update(stretch.nodes)
        for name, tensor, box in stretch.run(inputs):
            self.values[name] = (tensor, box)

    def _compute_whole(self, step: WholeNode) -> None:
        run, node = self.owner, step.call.node
        buffers, inputs = run.buffers, [self._whole(name) for name in step.reads]
        pairs = zip(step.reads, inputs, strict=True)
        inputs = [buffers.read(node, name, tensor, name in step.written) for name, tensor in pairs]
        buffers.ran.add(node.name)
        seed = run.seed_of(node.name) if step.op.random else 0
        result = trimmed(step.op.run_whole(step.call, inputs, seed, run.device), inputs)
        self.values[step.out] = (checked(result, step.box, node), step.box)

    def _run_chain(self, chain: TileChain) -> None:
        """Several nodes at once."""
        tiles = [[self.tensor(value, box) for value, box in reads] for reads in chain.reads]
        place = Place(chain.first.out, chain.first.reads, 0, self.owner.device, False, self.owner.known)
        self.values[chain.out] = (chain.fused.kernel.run(chain.calls, tiles, place), chain.fused.steps[-1].out)

    def _run_tiles(self, node: TileNode, tiles: list[Tensor], place: Place) -> Tensor:
        op, call, answers = node.op, node.call, node.step.answers
        if not self.graded or answers is None or node.out not in self.owner.needs:
            return op.run(call, tiles, place)
        full = Box.full(node.step.out.shape)
        if not any(part != full and t.requires_grad for part, t in zip(answers, tiles, strict=True)):
            return op.run(call, tiles, place)
        found: Tensor = OwnedFunction.apply(lambda t: op.run(call, t, place), answers, *tiles)  # type: ignore[no-untyped-call]
        return found

    def _join(self, join: TileJoin) -> None:
        run, value, me = self.owner, join.step.value, self.island.name
        own = self.values[value][0] if value in self.values else None
        received = [run.halos.get((value, halo.peer, me), last=self.last) for halo, _ in join.receives]
        if self.graded and value in run.needs:
            held = self._join_graded(join, own, received)
        elif received or own is not None:
            held = Seam(join, received, lambda _: None, lambda _a, _g: None).assemble(own)
        else:
            return
        self.values[value] = (held, join.step.held)
        if not run.again:
            for halo, at in join.gives:
                run.halos.put((value, me, halo.peer), held.detach()[at])

    def _join_graded(self, join: TileJoin, own: Tensor | None, received: list[Tensor]) -> Tensor:
        run, value, me, shelf = self.owner, join.step.value, self.island.name, self.owner.halo_grads
        readers = run.graph.consumers[value]
        seam = Seam(
            join,
            received,
            take=lambda halo: shelf.take((value, me, halo.peer)),
            leave=lambda halo, grad: shelf.put((value, halo.peer, me), grad),
            fresh=len(readers) == 1 and run.executor.ops[readers[0].name].fresh_gradient,
        )
        held, token = JoinFunction.apply(run.anchor, own, seam)  # type: ignore[no-untyped-call]
        if own is not None and received and isinstance(self.hooks, Adoptions):
            self.hooks.adopt(own, held.detach()[join.own])
        self.tokens.append(token)
        return held

    def _store(self, step: Store) -> None:
        tensor = self.tensor(step.value, step.box)
        if step.value in self.missing:
            self.owner.write(step.value, step.box, tensor.detach())
        if self.graded and tensor.requires_grad:
            self.stored.append((step, get_gradient_edge(tensor), tensor.dtype))

    def _fold(self, step: Fold) -> None:
        run = self.owner
        call, op = run.executor.calls[step.node], run.executor.reduction(step.node)
        value = call.node.inputs[0].value
        tile = self.tensor(value, step.box)
        others = self._beside(call, step.box)
        if not run.again:
            place = Place(run.extent(call.node.outputs[0]), (step.box,))
            with torch.no_grad():
                run.fold(step.node, op.partial(call, tile.detach(), place, *(t.detach() for t in others)))
        if self.graded and tile.requires_grad:
            stored = value in self.island.stores
            self.folded.append((step, get_gradient_edge(tile) if stored else tile, tile.dtype, others))

    def _beside(self, call: Call, box: Box) -> list[Tensor]:
        """What a fold reads besides its first input, by box."""
        boxes = self.owner.executor.reduction(call.node.name).beside(call, box)
        for name, part in zip(call.node.reads[1:], boxes, strict=True):
            self._load(Load(name, part))
        return [self.values[name][0] for name in call.node.reads[1:]]

    # -- backward ------------------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """Gradients of everything the island read, from those of what it made."""
        try:
            roots, grads = self._seeds()
            fresh = {name: leaf for name, leaf in self.whole.items() if leaf.grad is None}
            self.stored, self.folded, self.tokens, self.given = [], [], [], []
            if roots:
                torch.autograd.backward(roots, grads)  # type: ignore[arg-type]  # takes both kinds
            self._settle(fresh, grads)
        finally:
            self.close()

    def _seeds(self) -> tuple[list[Root], list[Tensor]]:
        run = self.owner
        seeds: dict[tuple[str, Box], tuple[Root, Tensor]] = {}
        for step, edge, dtype in self.stored:
            if (grad := run.gradient(step.value, step.box)) is not None:
                seeds[step.value, step.box] = edge, grad.to(dtype)
        for fold in self.folded:
            self._unfold(seeds, *fold)
        given = ((edge, run.halo_grads.take(key)) for key, edge in self.given)
        pairs = [*seeds.values(), *((edge, grad) for edge, grad in given if grad is not None)]
        roots = [*self.tokens, *(root for root, _ in pairs)]
        return roots, [*(torch.empty_like(token) for token in self.tokens), *(grad for _, grad in pairs)]

    def _unfold(
        self,
        seeds: dict[tuple[str, Box], tuple[Root, Tensor]],
        step: Fold,
        root: Root,
        dtype: torch.dtype,
        others: list[Tensor],
    ) -> None:
        """A fold's part in the gradient of what it folds."""
        run = self.owner
        call, op = run.executor.calls[step.node], run.executor.reduction(step.node)
        grad, value = run.gradient(call.node.outputs[0], None), call.node.inputs[0].value
        if grad is None:
            return
        place = Place(run.extent(call.node.outputs[0]), (step.box,))
        tile = root.detach() if isinstance(root, Tensor) else run.read(value, step.box).detach().to(dtype)
        root, onto = seeds.get((value, step.box), (root, None))
        seed = op.gradient(call, tile, run.totals[step.node], grad, place, *others, onto=onto)
        seeds[value, step.box] = root, seed

    def _settle(self, fresh: Mapping[str, Tensor], seeds: Sequence[Tensor]) -> None:
        """Give away the gradients of what the island read. `fresh`: leaves that got their first gradient here.

        A gradient may be a view of a seed or of another's (of a sum over one element, say), and autograd keeps it as it
        is. More will be added to it in place, so it is given memory of its own, or known to be shared."""
        sizes = {memory_of(seed): seed.numel() for seed in seeds}
        for name, leaf in fresh.items():
            if leaf.grad is not None:
                if (room := self.owner.early.pop(name, None)) is not None:
                    leaf.grad = room.copy_(leaf.grad)
                elif memory_of(leaf.grad) in sizes:
                    leaf.grad = leaf.grad.clone()
                sizes[memory_of(leaf.grad)] = leaf.grad.numel()
        for memory, times in Counter(memory_of(grad) for _, _, grad in self.arrived).items():
            if times > 1:  # of two that are added, say
                sizes.setdefault(memory, max(g.numel() for _, _, g in self.arrived if memory_of(g) == memory))
        while self.arrived:
            name, box, grad = self.arrived.pop(0)
            shared = memory_of(grad) in sizes
            alone = grad.numel() == sizes[memory_of(grad)] if shared else fills(grad)
            if not alone and name not in self.owner.grads:
                grad, shared = grad.clone(), False  # rule T3
            self.owner.add_gradient(name, box, grad, shared=shared)

    # -- what a record holds besides values ----------------------------------------------------------------------------

    def own(self) -> dict[str, Tensor]:
        return {str(at): s.tensor for at, s in enumerate(self._saved()) if s.tensor is not None}

    def _saved(self) -> list[Saved]:
        assert isinstance(self.hooks, References)
        return self.hooks.own

    def let_go(self) -> None:
        """It is away: nothing of it is needed here."""
        for item in self._saved():
            item.tensor = None

    def take_back(self, tensors: dict[str, Tensor]) -> None:
        own = self._saved()
        for at, tensor in tensors.items():
            own[int(at)].tensor = tensor

    def close(self) -> None:
        """Let go of everything. Where a step is interrupted, its seams know the record and autograd knows the seams: a
        circle that no garbage collector sees through."""
        self.values.clear()
        self.whole.clear()
        self.stored, self.folded, self.tokens, self.given = [], [], [], []
        self.arrived.clear()
        self.hooks = None
