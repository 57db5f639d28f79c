"""An island: the steps of one tile, run on boxes, with or without gradients.

Without gradients each value is dropped after its last step. With gradients autograd keeps what it needs; the island
then collects roots (what the tile stores or folds) and leaves (what it loaded), and runs backward over itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import InternalError
from ..ops import Call, Place
from ..region import Box
from ..schedule import Compute, Fold, Free, Join, Load, Phase, Step, Store
from .seam import JoinFunction, OwnedFunction, Seam

if TYPE_CHECKING:
    from .engine import Session


class Island:
    """The values of one tile while it runs."""

    def __init__(self, session: Session, phase: Phase, tile: tuple[int, ...], whole: dict[str, Tensor], graded: bool):
        self.session, self.phase, self.tile, self.whole, self.graded = session, phase, tile, whole, graded
        self.values: dict[str, tuple[Tensor, Box]] = {}
        self.leaves: list[tuple[str, Box, Tensor]] = []
        self.roots: list[tuple[Tensor, Tensor]] = []
        self.saved = _Saved()
        self.tiling = phase.backward if graded else phase.forward

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case Compute():
                    self._compute(step)
                case Free(value=value):
                    self.values.pop(value, None)
                case Join():
                    self._join(step)
                case Load():
                    self._load(step)
                case Store():
                    self._store(step)
                case Fold():
                    self._fold(step)

    def backward(self) -> None:
        """Gradients of everything the tile loaded, and of the whole values it read."""
        self.values.clear()
        self.saved.pending.clear()
        roots = [(t, g) for t, g in self.roots if t.requires_grad]
        self.roots = []
        first = [leaf for leaf in self.whole.values() if leaf.requires_grad and leaf.grad is None]
        if roots:
            torch.autograd.backward([t for t, _ in roots], [g for _, g in roots])
        self.settle(first, [g for _, g in roots])

    def close(self) -> None:
        """Let go of everything. Where a step is interrupted, its seams know the island and autograd knows the seams: a
        circle that no garbage collector sees through."""
        self.values.clear()
        self.saved.pending.clear()
        self.roots, self.leaves = [], []

    def settle(self, first: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
        """Give away the gradients of what the tile loaded. `first`: whole values that got their first gradient here."""
        _own_memory([*first, *(leaf for _, _, leaf in self.leaves)], seeds)
        for value, box, leaf in self.leaves:
            if leaf.grad is not None:
                self._leave_gradient(value, box, leaf.grad)
        self.leaves = []

    def _leave_gradient(self, value: str, box: Box, grad: Tensor) -> None:
        assert self.tiling is not None
        if self.tiling.mode == "gather":  # others answer for the rest of the box
            share = self.tiling.box("share", value, self.tile)
            box, grad = share, grad[share.within(box).slices]
        self.session.add_gradient(value, box, grad)

    def _load(self, step: Load) -> None:
        tensor = self.session.read(step.value, step.box)
        if self.graded and step.value in self.session.needs:
            tensor = tensor.detach().requires_grad_()
            self.leaves.append((step.value, step.box, tensor))
        self.values[step.value] = (tensor, step.box)

    def _tensor(self, name: str, box: Box) -> Tensor:
        """A box of a value that this tile holds."""
        if name in self.whole:
            found, have = self.whole[name], Box.full(self.session.shape(name))
        elif name in self.values:
            found, have = self.values[name]
        else:
            return self.session.empty(name, box.shape)
        if box == have:
            return found
        for dim, (want, side) in enumerate(zip(box, have, strict=True)):
            if want != side:
                found = found.narrow(dim, want.lo - side.lo if want.size else 0, want.size)
        return found

    def _compute(self, step: Compute) -> None:
        session = self.session
        call, op = session.engine.call(step.node), session.engine.op(step.node)
        node = call.node
        tiles = [
            self._tensor(name, raw.clip(session.shape(name))) for name, raw in zip(node.reads, step.reads, strict=True)
        ]
        place = Place(step.out, step.reads, session.seed_of(node.name) if op.random else 0, session.device)
        out = node.outputs[0]
        if self.graded and self.tiling is not None and self.tiling.mode == "gather" and out in session.needs:
            result = self._run_owned(node.reads, tiles, lambda t: op.run(call, t, place), out, step.out)
        else:
            result = op.run(call, tiles, place)
        if result.shape != step.out.shape:
            raise InternalError(
                f"a tile of {tuple(result.shape)} where {step.out.shape} was due", where=node.describe()
            )
        self.values[out] = (result, step.out)

    def _run_owned(self, names: Sequence[str], tiles: list[Tensor], run: Any, out: str, box: Box) -> Tensor:
        assert self.tiling is not None
        full, share = Box.full(box.shape), self.tiling.box("share", out, self.tile).within(box)
        answers = [self._answers(name, out, full, share) for name in names]
        if not any(part != full and t.requires_grad for part, t in zip(answers, tiles, strict=True)):
            return run(tiles)
        return OwnedFunction.apply(run, answers, *tiles)  # type: ignore[no-untyped-call]

    def _answers(self, name: str, out: str, full: Box, share: Box) -> Box:
        """The part of this tile's output that gives `name` its gradient: the share along axes that `name` has not."""
        assert self.tiling is not None
        sides = list(full)
        for axis in self.tiling.tiled:
            if name in self.whole or name not in self.tiling.spans[axis].share:
                dim = self.tiling.axes.dims[out][axis]
                sides[dim] = share[dim]
        return Box(sides)

    def _join(self, step: Join) -> None:
        session, number = self.session, self.phase.number
        own = self.values[step.value][0] if step.value in self.values else None
        last = self.graded or not session.train
        received = [session.halos.get((number, step.value, h.axis, self.tile), last=last) for h in step.receives]
        if self.graded and step.value in session.needs:
            held = self._join_graded(step, own, received)
        elif received or own is not None:
            held = Seam(step, received, lambda _: None, lambda _a, _g: None).assemble(own)
        else:
            return
        self.values[step.value] = (held, step.held)
        if not self.graded:
            for halo in step.gives:
                strip = held[halo.box.within(step.held).slices]
                session.halos.put((number, step.value, halo.axis, self._after(halo.axis)), strip)

    def _join_graded(self, step: Join, own: Tensor | None, received: list[Tensor]) -> Tensor:
        session, value = self.session, step.value
        readers = session.engine.graph.consumers[value]
        fresh = len(readers) == 1 and session.engine.op(readers[0].name).fresh_gradient
        seam = Seam(
            step,
            received,
            take=lambda axis: session.halo_grads.take((value, axis, self._after(axis))),
            leave=lambda axis, grad: session.halo_grads.put((value, axis, self.tile), grad),
            fresh=fresh,
        )
        held, token = JoinFunction.apply(session.anchor, own, seam)  # type: ignore[no-untyped-call]
        if own is not None and received:
            self.saved.adopt(own, held.detach()[step.own.within(step.held).slices])
        self.roots.append((token, torch.empty_like(token)))
        return held

    def _after(self, axis: int) -> tuple[int, ...]:
        return tuple(t + (k == axis) for k, t in enumerate(self.tile))

    def _store(self, step: Store) -> None:
        tensor = self._tensor(step.value, step.box)
        if not self.graded:
            self.session.write(step.value, step.box, tensor)
        elif (grad := self.session.gradient(step.value, step.box)) is not None:
            self.roots.append((tensor, grad.to(tensor.dtype)))

    def _fold(self, step: Fold) -> None:
        session = self.session
        call, op = session.engine.call(step.node), session.engine.reduction(step.node)
        value = call.node.inputs[0].value
        tile = self._tensor(value, step.box)
        place = Place(session.extent(call.node.outputs[0]), (step.box,))
        others = self._beside(call, step.box)
        if not self.graded:
            session.fold(step.node, op.partial(call, tile, place, *others))
            return
        grad = session.gradient(call.node.outputs[0], None)
        if grad is not None and tile.requires_grad:
            result = op.surrogate(call, tile, session.totals[step.node], place, *others)
            self.roots.append((result, grad.to(result.dtype).reshape(result.shape)))

    def _beside(self, call: Call, box: Box) -> list[Tensor]:
        """What a fold reads besides its first input, by box."""
        boxes = self.session.engine.reduction(call.node.name).beside(call, box)
        for name, part in zip(call.node.reads[1:], boxes, strict=True):
            self._load(Load(name, part))
        return [self.values[name][0] for name in call.node.reads[1:]]


def _own_memory(leaves: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
    """A gradient may be a view of a seed or of another leaf's (of a sum over one element, say), and autograd keeps it
    as it is. More will be added to it in place, so it is given memory of its own."""
    taken = {seed.untyped_storage()._cdata for seed in seeds}
    for leaf in leaves:
        if leaf.grad is not None:
            if leaf.grad.untyped_storage()._cdata in taken:
                leaf.grad = leaf.grad.clone()
            taken.add(leaf.grad.untyped_storage()._cdata)


class _Saved:
    """What autograd saves, behind handles: when a tensor is copied into a held box, the copy is saved instead."""

    def __init__(self) -> None:
        self.pending: dict[tuple[int, int], list[_Handle]] = {}

    def hooks(self) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda handle: handle.tensor)

    def _pack(self, tensor: Tensor) -> _Handle:
        handle = _Handle(tensor)
        if tensor.numel():
            self.pending.setdefault(_memory(tensor), []).append(handle)
        return handle

    def adopt(self, own: Tensor, copy: Tensor) -> None:
        for handle in self.pending.pop(_memory(own), ()) if own.numel() else ():
            if _view(handle.tensor) == _view(own):  # not a permuted view of the same memory
                handle.tensor = copy


class _Handle:
    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


def _view(tensor: Tensor) -> tuple[Any, ...]:
    """How a tensor looks at its memory."""
    return tensor.shape, tensor.stride(), tensor.dtype


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Which memory a tensor begins in; tells tensors without data apart too."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())
