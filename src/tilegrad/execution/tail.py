"""The tail of a network (`bounds.placement`, rule P5): every rank computes it, and the first alone its gradients.

What the tail reads comes to it over a `Threshold`. Autograd ends there on ranks that are mute; so that it comes by on
all of them in the same order, each threshold gives a token as well, at which backward begins besides. It goes on with
the gradient that the tail has made, or with zeros: the first rank's goes to the owners from there, as any other does.
Where ranks share layers of the tail (`by_channels`), those that are mute go back through it as well, for these layers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..bounds import read_by_tail
from ..ir import Graph, Node
from ..schedule import Exchange, Schedule, Strip
from .buckets import Arrivals


class Tail:
    """Of a schedule. `mute`: gradients of it are made on another rank; `told`: whose gradients are the first rank's
    alone; `strips`: what of those goes back to its owner; `is_shared`: do all ranks go back through it?"""

    def __init__(self, schedule: Schedule):
        graph, seat = schedule.graph, schedule.seat
        self.nodes = seat.tail if seat is not None else frozenset[str]()
        self.makes = frozenset(out for node in graph.nodes if node.name in self.nodes for out in node.outputs)
        self.mute = seat is not None and not self.makes.isdisjoint(seat.mute)
        self.is_shared = seat is not None and bool(seat.shared)
        self.told = read_by_tail(graph, self.nodes)
        self.carries = _carries(graph, self.nodes)
        back = (step for step in schedule.steps if isinstance(step, Exchange) and step.gradient)
        self.strips = frozenset(s for step in back for s in (*step.gives, *step.takes) if s.value in self.told)

    def holds(self, nodes: Collection[str]) -> bool:
        return bool(nodes) and self.nodes.issuperset(nodes)

    def goes_back(self, strip: Strip) -> bool:
        return strip.value not in self.told or strip in self.strips


def _carries(graph: Graph, nodes: Collection[str]) -> frozenset[str]:
    """Of which an output is made by the tail: what it makes besides, such as running statistics, has no gradient."""
    found = set(graph.outputs)

    def leads(node: Node) -> bool:
        return node.name in nodes and not found.isdisjoint(node.outputs)

    for node in reversed(graph.nodes):
        found.update(node.reads if leads(node) else ())
    return frozenset(found)


@dataclass(frozen=True)
class Threshold:
    value: str
    mute: bool
    open: bool = False  # does a mute rank go back through the tail, too?

    def cross(self, arrivals: Arrivals, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """A token, and the value."""
        found: tuple[Tensor, Tensor] = _Cross.apply(arrivals.anchor, tensor, self, arrivals)  # type: ignore[no-untyped-call]
        return found


class _Cross(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor, threshold: Threshold, arrivals: Arrivals) -> Any:
        ctx.set_materialize_grads(False)
        ctx.known = threshold, arrivals, tensor.shape, tensor.dtype
        here = tensor.detach()
        if threshold.mute and not threshold.open:
            ctx.mark_non_differentiable(here)
        return anchor.clone(), here

    @staticmethod
    def backward(ctx: Any, _: Tensor | None, grad: Tensor | None) -> tuple[None, Tensor | None, None, None]:
        threshold, arrivals, shape, dtype = ctx.known
        grad = None if threshold.mute else grad
        if grad is None and threshold.value in arrivals.reached:
            grad = torch.zeros(shape, dtype=dtype, device=arrivals.anchor.device)
        return None, grad, None, None
