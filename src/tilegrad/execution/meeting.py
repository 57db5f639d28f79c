"""Where ranks meet: halos of values come and reductions are combined, as one function of autograd.

Halos are sent first, then the rank reduces its own part while they are on their way; so in backward the gradients of
halos are sent, those of reductions are added up and used, and what has come is added at the end. One gather, one sum
and, along each axis, one message to each peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..ops import Call, Place, Reduction
from ..ops.channels import layout_of
from ..region import Box
from ..schedule import Exchange, Strip
from .messages import Messages, Peers, Pending, Row

Slices = tuple[slice, ...]
Given = Sequence[Tensor | None]


@dataclass(frozen=True)
class HeldValue:
    """A value whose halos move: what is owned of it, and what is held with margins."""

    value: str
    own: Box
    region: Box

    @cached_property
    def inner(self) -> Slices:
        return self.own.within(self.region).slices

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return self.region.shape


@dataclass(frozen=True)
class FoldPart:
    """A reduction. `source`: which of the values that are spread it reads, or which of the further tensors; `others`:
    what it reads beside, among the further tensors."""

    call: Call
    op: Reduction
    place: Place
    axes: frozenset[str]
    source: int
    others: tuple[int, ...] = ()


class Leg:
    """An exchange along one axis: strips, by the value that they are of, where they lie in it, and in a message."""

    def __init__(self, messages: Messages, index: Mapping[str, int], outer: Mapping[bool, Sequence[Box]]):
        """`outer`: the boxes that values lie in, of what is given (True) and of what is taken."""

        def placed(strip: Strip, tensor: Tensor, given: bool) -> tuple[int, Slices, Tensor]:
            at = index[strip.value]
            return at, strip.box.within(outer[given][at]).slices, tensor

        self.messages = messages
        self.gives = [placed(*each, True) for each in messages.gives]
        self.takes = [placed(*each, False) for each in messages.takes]

    def post(self, peers: Peers, tensors: Sequence[Tensor] | Mapping[int, Tensor]) -> Pending:
        for at, where, place in self.gives:
            place.copy_(tensors[at][where])
        return peers.post(self.messages)


class FoldGroup:
    """The reductions of a meeting along the same axes: gathered together, and their gradients added up together."""

    def __init__(self, axes: frozenset[str], members: Sequence[int], parts: Sequence[FoldPart]):
        self.axes, self.members, self.parts = axes, members, [parts[at] for at in members]
        self.what = f"the parts of {', '.join(part.call.node.describe() for part in self.parts)}"
        self._row: Row | None = None

    def combine(self, peers: Peers, have: Sequence[Tensor], totals: list[tuple[Tensor, ...]]) -> None:
        """Of every reduction the total of all ranks."""
        each = [p.op.partial(p.call, have[p.source], p.place, *[have[at] for at in p.others]) for p in self.parts]
        flat = [tensor for tensors in each for tensor in tensors]
        if self._row is None:
            self._row = Row(flat)
        found, lo = self._row.unpack(peers.gather(self.what, self._row.pack(flat), self.axes)), 0
        for at, part, mine in zip(self.members, self.parts, each, strict=True):
            totals[at], lo = part.op.combine_all(part.call, tuple(found[lo : lo + len(mine)])), lo + len(mine)

    def add_up(self, peers: Peers, grads: Given, found: dict[int, Tensor]) -> None:
        """The gradients of what reductions made, which are shares."""
        there = [(at, grad) for at in self.members if (grad := grads[at]) is not None]
        for dtype in {grad.dtype for _, grad in there}:
            each = [(at, grad) for at, grad in there if grad.dtype == dtype]
            flat, lo = torch.cat([grad.reshape(-1) for _, grad in each]), 0
            peers.sum(f"the gradient of {self.what}", flat, self.axes).wait()
            for at, grad in each:
                found[at] = flat[lo : lo + grad.numel()].view(grad.shape)
                lo += grad.numel()


class Meeting:
    """`steps`: exchanges along one axis after another. Takes what is owned of each value of `spreads`, and further
    tensors; gives the values with their margins, and what the reductions `parts` make. `goes_back`: has a strip that is
    taken a gradient?"""

    def __init__(
        self,
        spreads: Sequence[HeldValue],
        parts: Sequence[FoldPart],
        steps: Sequence[Exchange],
        dtypes: Mapping[str, torch.dtype],
        device: torch.device,
        goes_back: Callable[[Strip], bool],
    ):
        self.goes_back = goes_back
        self.spreads, self.parts, self.steps = spreads, parts, steps
        self.dtypes, self.device, self.count = dtypes, device, len(spreads)
        self.index = {spread.value: at for at, spread in enumerate(spreads)}
        self._own, self._held = [spread.own for spread in spreads], [spread.region for spread in spreads]
        self._forth = self._legs(steps, first={True: self._own, False: self._held})
        self._back: dict[tuple[int, ...], list[Leg]] = {}
        self._dull: dict[tuple[bool, ...], list[int]] = {}
        axes = dict.fromkeys(part.axes for part in parts)
        self.folds = [FoldGroup(a, [at for at, part in enumerate(parts) if part.axes == a], parts) for a in axes]

    def __call__(self, peers: Peers, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = _Meet.apply(self, peers, *tensors)  # type: ignore[no-untyped-call]
        return found

    def _legs(self, steps: Sequence[Exchange], **special: Mapping[bool, Sequence[Box]]) -> list[Leg]:
        """Boxes of values with their margins; but for the first leg, or the last."""
        moves = [step for step in steps if step.gives or step.takes]
        outer: list[Mapping[bool, Sequence[Box]]] = [{True: self._held, False: self._held} for _ in moves]
        for which, boxes in special.items() if moves else ():
            outer[0 if which == "first" else -1] = boxes
        messages = (Messages.of(step, self.dtypes, self.device) for step in moves)
        return [Leg(each, self.index, boxes) for each, boxes in zip(messages, outer, strict=True)]

    # -- forward -------------------------------------------------------------------------------------------------------

    def forth(self, peers: Peers, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
        """Values with their margins; and of each reduction the total of all ranks."""
        pending = self._forth[0].post(peers, tensors) if self._forth else None
        regions = [_with_margins(spread, tensors[at]) for at, spread in enumerate(self.spreads)]
        totals: list[tuple[Tensor, ...]] = [()] * len(self.parts)
        have = [regions[at][spread.inner] for at, spread in enumerate(self.spreads)]
        have += tensors[self.count :]
        for fold in self.folds:
            fold.combine(peers, have, totals)
        for number, leg in enumerate(self._forth):
            if number:
                pending = leg.post(peers, regions)
            assert pending is not None
            pending.wait()
            for at, where, come in leg.takes:
                regions[at][where].copy_(come)
        return regions, totals

    def dull(self, needs: tuple[bool, ...]) -> list[int]:
        """What of what is given needs no gradient, by what of what is taken does."""
        if needs not in self._dull:
            reads = [*((at,) for at in range(self.count)), *((part.source, *part.others) for part in self.parts)]
            self._dull[needs] = [at for at, each in enumerate(reads) if not any(needs[k] for k in each)]
        return self._dull[needs]

    # -- backward ------------------------------------------------------------------------------------------------------

    def back(self, peers: Peers, grads: Given, saved: Sequence[Tensor]) -> dict[int, Tensor]:
        """The gradients of the tensors that were taken. `saved`: what each reduction reads, with margins where it has
        any, what it reads beside, and its total."""
        halos = {at: grad for at, grad in enumerate(grads[: self.count]) if grad is not None}
        way = self._way_back(tuple(halos))
        if len(way) > 1:  # what comes along one axis goes on along the next
            halos = {at: grad.clone() for at, grad in halos.items()}
        pending = way[0].post(peers, halos) if way else None
        summed = dict[int, Tensor]()
        for fold in self.folds:
            fold.add_up(peers, grads[self.count :], summed)
        for leg, following in pairwise(way):
            assert pending is not None
            pending.wait()
            for at, where, come in leg.takes:
                halos[at][where].add_(come)
            pending = following.post(peers, halos)
        found = {at: grad[self.spreads[at].inner] for at, grad in halos.items()}
        fresh = self._unfold(found, summed, saved)
        if pending is not None:
            pending.wait()
            for at, where, come in way[-1].takes:
                if at not in fresh:  # somebody else may read it
                    found[at] = found[at].clone(memory_format=layout_of(found[at]))
                    fresh.add(at)
                found[at][where].add_(come)
        return found

    def _unfold(self, found: dict[int, Tensor], summed: Mapping[int, Tensor], saved: Sequence[Tensor]) -> set[int]:
        """Add the gradients of what reductions read. Of what is new memory?"""
        fresh, lo = set[int](), 0
        for at, part in enumerate(self.parts):
            inner, others = self.spreads[part.source].inner if part.source < self.count else (), len(part.others)
            hi = lo + 1 + others + self.sizes[at]
            if (grad := summed.get(at)) is not None:
                tile, totals = saved[lo][inner], tuple(saved[lo + 1 + others : hi])
                beside = [t.detach().requires_grad_(t.is_floating_point()) for t in saved[lo + 1 : lo + 1 + others]]
                onto = found.get(part.source)
                found[part.source] = part.op.gradient(part.call, tile, totals, grad, part.place, *beside, onto=onto)
                fresh.add(part.source)
                for other, leaf in zip(part.others, beside, strict=True):
                    if leaf.grad is not None:
                        found[other] = leaf.grad + found[other] if other in found else leaf.grad
            lo = hi
        return fresh

    @cached_property
    def sizes(self) -> list[int]:
        """How many tensors the totals of each reduction are, once they are known."""
        return []

    def _only(self, step: Exchange, values: frozenset[str]) -> Exchange:
        """The way back of some of its values."""
        ways = (step.takes, step.gives)
        gives, takes = (tuple(s for s in each if s.value in values and self.goes_back(s)) for each in ways)
        values_back = tuple(v for v in step.values if v in values)
        return replace(step, values=values_back, gives=gives, takes=takes, gradient=True)

    def _way_back(self, halos: tuple[int, ...]) -> list[Leg]:
        if halos not in self._back:
            values = frozenset(self.spreads[at].value for at in halos)
            steps = [self._only(step, values) for step in reversed(self.steps)]
            self._back[halos] = self._legs(steps, last={True: self._held, False: self._own})
        return self._back[halos]


def _with_margins(spread: HeldValue, own: Tensor) -> Tensor:
    if spread.own == spread.region:
        return own.detach()
    found = torch.empty(spread.shape, dtype=own.dtype, device=own.device, memory_format=layout_of(own))
    found[spread.inner].copy_(own)
    return found


class _Meet(Function):
    @staticmethod
    def forward(ctx: Any, meeting: Meeting, peers: Peers, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        regions, totals = meeting.forth(peers, tensors)
        given = regions + [p.op.finish(p.call, total) for p, total in zip(meeting.parts, totals, strict=True)]
        saved: list[Tensor] = []
        for part, total in zip(meeting.parts, totals, strict=True):
            source = part.source
            saved += [
                regions[source] if source < len(regions) else tensors[source],
                *[tensors[at] for at in part.others],
            ]
            saved += total
        if not meeting.sizes:
            meeting.sizes.extend(len(total) for total in totals)
        ctx.known = meeting, peers
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*[given[at] for at in meeting.dull(ctx.needs_input_grad[2:])])
        return tuple(given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        meeting, peers = ctx.known
        found = meeting.back(peers, grads, ctx.saved_tensors)
        return (None, None, *[found.get(at) for at in range(len(ctx.needs_input_grad) - 2)])
