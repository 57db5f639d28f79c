"""One rank's forward and backward pass: the engine's session, with boxes that other ranks own fetched and given back.

Rule D1  A value that is cut has one owner for every element. Forward, halos come from their owners before they are
         read; backward, gradients of halos go to their owners, which add them: one message to each peer.
Rule D2  What is not cut is the same on all ranks, and every rank computes it. Its gradient is a *share*: the sum over
         ranks is the gradient. The gradient of an output that all ranks have counts on the first of them alone.
Rule D3  A fold's parts are combined over ranks in their order, so all ranks have the same result to the last bit. Its
         gradient is added up over the same ranks.
Rule D4  Gradients of parameters are added up over all ranks (those of parameters that are cut over the ranks that share
         a box), one sum for every phase, begun while backward goes on.
Rule D5  All ranks make the same calls in the same order, whether their boxes are empty or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..ir import Kind, Node
from ..ops import Place
from ..region import Box
from ..runtime.engine import Engine, Session
from ..runtime.island import Island
from ..runtime.storage import Whole
from ..schedule import Fold, Phase, Storage, Store
from .group import Group, Pending, pack, unpack
from .plan import MeshPlan, Move


class Field(Whole):
    """A region of a value: a box of it, in the value's own coordinates."""

    def __init__(self, region: Box, storage: Storage):
        super().__init__(region.shape, storage)
        self.region = region

    def write(self, box: Box, tile: Tensor) -> None:
        super().write(box.within(self.region), tile)

    def add(self, box: Box, tile: Tensor, *, shared: bool = False) -> None:
        super().add(box.within(self.region), tile, shared=shared)

    def read(self, box: Box) -> Tensor:
        return super().read(box.within(self.region))


class RankSession(Session):
    def __init__(
        self,
        engine: Engine,
        plan: MeshPlan,
        group: Group,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        *,
        train: bool,
        seed: int = 0,
        autocast: torch.dtype | None = None,
        kept: bool = True,
    ):
        super().__init__(engine, tensors, device, train=train, seed=seed, autocast=autocast)
        self.plan, self.group, self.coords = plan, group, plan.mesh.coords_of(group.rank)
        self.kept = kept and train  # activations stay for backward, instead of being computed again
        self.islands: dict[int, list[KeptIsland]] = {}
        self.leaves: dict[int, dict[str, Tensor]] = {}
        self.reduced: set[str] = set()

    def extent(self, name: str) -> Box:
        return self.plan.owned(name, self.coords)

    def _cut(self, name: str) -> frozenset[str]:
        return self.plan.placement.cut[name]

    def _dtype(self, name: str) -> torch.dtype:
        if name in self.tensors:
            return self.tensors[name].dtype
        found: torch.dtype = getattr(torch, self.engine.graph.type(name).dtype)
        return found

    # -- what islands ask for ------------------------------------------------------------------------------------------

    def read(self, name: str, box: Box) -> Tensor:
        if name in self.values:
            return self.values[name].read(box)
        if name not in self.tensors:
            return self.empty(name, box.shape)  # nobody made a part of it
        tensor = self.before.get(name, self.tensors[name])
        inside = box.within(self.extent(name))
        found = tensor if inside.shape == tuple(tensor.shape) else tensor[inside.slices]
        return found.detach().to(self.device, non_blocking=True)

    def write(self, name: str, box: Box, tile: Tensor) -> None:
        if name not in self.values:
            self.values[name] = self._field(name)
        self.values[name].write(box, tile.to(self._dtype(name)))

    def _field(self, name: str) -> Field:
        """Room for a value with its margins, so that halos are received where they will be read."""
        return Field(self.plan.region(name, self.coords), self._storage(name))

    def add_gradient(self, name: str, box: Box, grad: Tensor, *, shared: bool = False) -> None:
        if name not in self.grads:
            self.grads[name] = self._field(name)
        self.grads[name].add(box, grad, shared=True)

    # -- forward -------------------------------------------------------------------------------------------------------

    def _forward_phase(self, phase: Phase) -> None:
        walk = self.plan.walks[phase.number]
        self._fetch(self.plan.exchanges[walk.key])
        whole = (
            self._whole_leaves(phase) if self.kept else {n: self.read(n, Box.full(self.shape(n))) for n in phase.whole}
        )
        for tile in phase.tiles():
            if self.kept:
                island = KeptIsland(self, phase, tile, whole, graded=True)
                with torch.enable_grad():
                    island.run(phase.steps(tile))
                island.values.clear()
                self.islands.setdefault(phase.number, []).append(island)
            else:
                Island(self, phase, tile, whole, graded=False).run(phase.steps(tile))
        for fold in phase.folds:
            self._combine(phase, fold)

    def _whole_leaves(self, phase: Phase) -> dict[str, Tensor]:
        found = {}
        for name in phase.whole:
            leaf = self.read(name, Box.full(self.shape(name))).detach()
            found[name] = leaf.requires_grad_() if name in self.needs else leaf
        self.leaves[phase.number] = found
        return found

    def _combine(self, phase: Phase, fold: Node) -> None:
        """A fold's result from the parts of all ranks that it goes over."""
        call, op = self.engine.call(fold.name), self.engine.reduction(fold.name)
        axes = self.plan.placement.folds[fold.name]
        ranks = self.plan.mesh.alike(self.coords, axes)
        source = fold.inputs[0].value
        there = [c for c in ranks if not self.plan.owned(source, c).empty]
        mine = self.totals.get(fold.name)
        total: tuple[Tensor, ...] | None = None
        if there:
            like = mine if mine is not None else self._part_like(fold, self.plan.owned(source, there[0]))
            parts = self.group.gather(f"the parts of {fold.describe()}", pack(like), axes)
            shapes = [(tuple(t.shape), t.dtype) for t in like]
            for place, payload in zip(ranks, parts, strict=True):
                if place in there:
                    part = tuple(unpack(payload, shapes))
                    total = part if total is None else op.combine(call, total, part)
        if total is None:  # nothing to fold: an empty batch
            box = self.extent(source)
            total = op.partial(call, self.empty(source, box.shape), Place(self.extent(fold.outputs[0]), (box,)))
        self.totals[fold.name] = total
        self.write(fold.outputs[0], self.extent(fold.outputs[0]), op.finish(call, total))

    def _part_like(self, fold: Node, box: Box) -> tuple[Tensor, ...]:
        """Zeros in the shape of another rank's part: what a rank without a part puts in."""
        call, op = self.engine.call(fold.name), self.engine.reduction(fold.name)
        source = fold.inputs[0].value
        tile = torch.empty(box.shape, dtype=self._dtype(source), device="meta")
        sizes = zip(fold.reads[1:], op.beside(call, box), strict=True)
        others = [torch.empty(b.shape, dtype=self._dtype(name), device="meta") for name, b in sizes]
        part = op.partial(call, tile, Place(self.extent(fold.outputs[0]), (box,)), *others)
        return tuple(torch.zeros(t.shape, dtype=t.dtype, device=self.device) for t in part)

    # -- halos ---------------------------------------------------------------------------------------------------------

    def _fetch(self, values: Sequence[str]) -> None:
        """Receive the halos of values, into their margins."""
        moves = [move for value in values for move in self.plan.moves(value)]
        for value in values:
            if value in self.tensors and self.plan.region(value, self.coords) != self.extent(value):
                field = self._field(value)  # the caller's tensor has no margins
                own = self.tensors[value].detach().to(self.device)
                if own.numel():
                    field._allocate(own, zeros=False)
                    field.write(self.extent(value), own)
                self.values[value] = field
        for move, strip in self._swap("halos", moves, lambda m: self.read(m.value, m.box)):
            if move.value not in self.values:
                self.values[move.value] = self._field(move.value)
            self.values[move.value].write(move.box, strip)

    def _return(self, values: Sequence[str]) -> None:
        """Give the gradients of halos to their owners, and add what others give."""
        moves = [
            Move(m.value, m.reader, m.owner, m.box) for value in values for m in self.plan.moves(value)
        ]  # the adjoint: from the reader to the owner
        for move, strip in self._swap("gradients of halos", moves, lambda m: self._gradient_or_zero(m.value, m.box)):
            self.add_gradient(move.value, move.box, strip)

    def _gradient_or_zero(self, name: str, box: Box) -> Tensor:
        found = self.gradient(name, box)
        return found if found is not None else torch.zeros(box.shape, dtype=self._dtype(name), device=self.device)

    def _swap(self, what: str, moves: Sequence[Move], read: Callable[[Move], Tensor]) -> list[tuple[Move, Tensor]]:
        """Send what is ours to send and receive what is ours to receive, with one message to each peer."""
        rank_of, me = self.plan.mesh.rank, self.coords
        sends: dict[int, list[Tensor]] = {}
        comes: dict[int, list[Move]] = {}
        for move in moves:
            if move.owner == me:
                sends.setdefault(rank_of(move.reader), []).append(read(move).to(self._dtype(move.value)))
            elif move.reader == me:
                comes.setdefault(rank_of(move.owner), []).append(move)
        sizes = {rank: sum(m.box.volume * self._dtype(m.value).itemsize for m in each) for rank, each in comes.items()}
        names = ", ".join(dict.fromkeys(move.value for move in moves))
        found = self.group.exchange(f"{what} of {names}", sends, sizes)
        got = []
        for rank, each in comes.items():
            strips = unpack(found[rank], [(m.box.shape, self._dtype(m.value)) for m in each])
            got += list(zip(each, strips, strict=True))
        return got

    # -- backward ------------------------------------------------------------------------------------------------------

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        self.spent = True
        if not self.kept:
            self._check_unchanged()
        graph = self.engine.graph
        given = {n for n, grad in zip(graph.outputs, grads, strict=True) if grad is not None}
        reached = self.engine.reached(given) & self.needs
        for name, grad in zip(graph.outputs, grads, strict=True):
            if grad is not None and name in self.needs:
                self.add_gradient(name, self.extent(name), grad if self._first(name) else torch.zeros_like(grad))
        sums: list[tuple[str, Tensor, Pending]] = []
        for phase in reversed(self.engine.schedule.phases):
            made = [*phase.stores, *(f.outputs[0] for f in phase.folds)]
            self._complete(phase, reached)
            self._backward_phase(phase)
            for name in made:
                self.values.pop(name, None)
                self.grads.pop(name, None)
            sums += self._begin_sums(phase, reached)
        outside = [name for name in self.tensors if name in reached]
        self._return([name for name in outside if graph.value[name].kind is Kind.INPUT and self._cut(name)])
        found = {}
        for name in outside:
            if name not in self.reduced:
                sums.append(self._begin_sum(name))
        for name, tensor, pending in sums:
            pending.wait()
            found[name] = tensor
        return found

    def _first(self, name: str) -> bool:
        """Does the gradient of an output count here?"""
        mesh = self.plan.mesh
        return all(self.coords[k] == 0 for k, axis in enumerate(mesh.axes) if axis not in self._cut(name))

    def _complete(self, phase: Phase, reached: frozenset[str]) -> None:
        """Before a phase runs backward, the gradients of what it made are whole."""
        self._return([name for name in phase.stores if name in reached and self._cut(name)])
        for fold in phase.folds:
            out = fold.outputs[0]
            if out in reached:
                own = self._gradient_or_zero(out, self.extent(out)).clone()
                axes = self.plan.placement.folds[fold.name]
                self.group.sum(f"the gradient of {fold.describe()}", own, axes).wait()
                self.grads[out] = self._field(out)
                self.grads[out].write(self.extent(out), own)

    def _backward_phase(self, phase: Phase) -> None:
        if not self.kept:
            super()._backward_phase(phase)
            return
        islands = self.islands.pop(phase.number, [])
        for island in reversed(islands):
            island.backward()
        for name, leaf in self.leaves.pop(phase.number, {}).items():
            if leaf.grad is not None:
                self.add_gradient(name, Box.full(self.shape(name)), leaf.grad)

    def _begin_sums(self, phase: Phase, reached: frozenset[str]) -> list[tuple[str, Tensor, Pending]]:
        """Sums of the parameters that no earlier phase reads."""
        graph = self.engine.graph
        here = [n for n in (*phase.boxed, *phase.whole) if n in self.tensors and graph.value[n].kind is Kind.PARAMETER]
        found = []
        for name in here:
            first = self.plan.readers[name][0]
            if self.plan.walks[phase.number] is first and name in reached and name not in self.reduced:
                if self._cut(name):
                    self._return([name])
                found.append(self._begin_sum(name))
        return found

    def _begin_sum(self, name: str) -> tuple[str, Tensor, Pending]:
        self.reduced.add(name)
        own = self._gradient_or_zero(name, self.extent(name))
        own = own.contiguous() if own.numel() and self._owns(own) else own.clone()
        axes = frozenset(self.plan.mesh.axes) - self._cut(name)
        return name, own, self.group.sum(f"the gradient of '{name}'", own, axes)

    @staticmethod
    def _owns(tensor: Tensor) -> bool:
        return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


class KeptIsland(Island):
    """An island that stays: run with gradients in forward, and differentiated when the gradients of what it made are
    known. It is a rank's only tile, so it hands on no halos.

    Of what it stores it keeps the place in autograd's graph, not the tensor: the stored copy serves.
    """

    def __init__(self, *args: object, **kwargs: object):
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.edges: list[tuple[Store, GradientEdge, torch.dtype]] = []
        self.folded: list[tuple[Fold, Tensor | GradientEdge, torch.dtype, list[Tensor]]] = []

    def _store(self, step: Store) -> None:
        tensor = self._tensor(step.value, step.box)
        self.session.write(step.value, step.box, tensor.detach())
        if tensor.requires_grad:
            self.edges.append((step, get_gradient_edge(tensor), tensor.dtype))

    def _fold(self, step: Fold) -> None:
        session = self.session
        call, op = session.engine.call(step.node), session.engine.reduction(step.node)
        value = call.node.inputs[0].value
        tile = self._tensor(value, step.box)
        place = Place(session.extent(call.node.outputs[0]), (step.box,))
        others = self._beside(call, step.box)
        with torch.no_grad():
            session.fold(step.node, op.partial(call, tile.detach(), place, *(t.detach() for t in others)))
        stored = value in self.phase.stores and tile.requires_grad
        self.folded.append((step, get_gradient_edge(tile) if stored else tile, tile.dtype, others))

    def backward(self) -> None:
        """Gradients of everything the tile loaded, from those of what it made."""
        session = self.session
        roots: list[Tensor | GradientEdge] = []
        grads: list[Tensor] = []
        for step, edge, dtype in self.edges:
            if (grad := session.gradient(step.value, step.box)) is not None:
                roots.append(edge)
                grads.append(grad.to(dtype))
        with torch.enable_grad():
            for fold in self.folded:
                for root, grad in self._unfold(*fold):
                    roots.append(root)
                    grads.append(grad)
        self.edges, self.folded = [], []
        first = [leaf for leaf in self.whole.values() if leaf.requires_grad and leaf.grad is None]
        if roots:
            torch.autograd.backward(roots, grads)  # type: ignore[arg-type]  # takes both kinds
        self.settle(first, grads)

    def _unfold(
        self, step: Fold, source: Tensor | GradientEdge, dtype: torch.dtype, others: list[Tensor]
    ) -> list[tuple[Tensor | GradientEdge, Tensor]]:
        """A fold's part in the gradient of what it folds."""
        session = self.session
        call, op = session.engine.call(step.node), session.engine.reduction(step.node)
        grad = session.gradient(call.node.outputs[0], None)
        if grad is None:
            return []
        place = Place(session.extent(call.node.outputs[0]), (step.box,))
        total = session.totals[step.node]
        if isinstance(source, Tensor):
            result = op.surrogate(call, source, total, place, *others)
            return [(result, grad.to(result.dtype).reshape(result.shape))] if result.requires_grad else []
        tile = session.read(call.node.inputs[0].value, step.box).detach().to(dtype).requires_grad_()
        result = op.surrogate(call, tile, total, place, *others)
        seed = grad.to(result.dtype).reshape(result.shape)
        if not others:
            return [(source, torch.autograd.grad(result, tile, seed)[0])]
        torch.autograd.backward(result, seed)  # to the others as well, which are leaves
        assert tile.grad is not None
        return [(source, tile.grad)]
