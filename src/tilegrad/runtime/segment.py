"""A stretch of the network as one node that runs in tiles, inside a step list of whole nodes.

Only what crosses its end is ever whole. To a step list it is a node like any other: it has inputs, one output, hidden
memory (halos, values between phases) and a backward; so whole nodes around it can be kept, run again or moved as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..bounds import lower_graph
from ..ir import Graph, Input, Kind, Node, Role, Value
from ..ops import Call
from ..schedule import Schedule, Storage
from .engine import Engine, Session
from .null import predict

TILED = "tiled"
Lookup = Callable[[str], Tensor]


@dataclass(frozen=True)
class Segment:
    """The tiles of a stretch, and what they are predicted to need beside inputs, output and their gradients."""

    node: str
    engine: Engine = field(repr=False)
    saved_bytes: int  # from forward to backward
    forward_bytes: int  # while it runs forward
    backward_bytes: int

    def run(
        self, call: Call, tensors: Sequence[Tensor], needs: frozenset[str], device: torch.device, seed: int
    ) -> tuple[Tensor, SegmentTape, list[tuple[str, Tensor]]]:
        """The output, the way back, and the buffers to replace."""
        named = dict(zip(call.node.reads, tensors, strict=True))
        graded = frozenset(name for name, t in named.items() if name in needs and t.is_floating_point())
        if device.type == "meta":  # nothing runs: as many bytes as are predicted
            result = torch.empty(call.out.shape, dtype=getattr(torch, call.out.dtype), device="meta")
            hidden = torch.empty(self.saved_bytes, dtype=torch.uint8, device="meta")
            _spend(self.forward_bytes)
            return result, SegmentTape(self, None, graded, tuple(named), [hidden] if self.saved_bytes else []), []
        leaves = {name: t.detach().requires_grad_(name in graded) for name, t in named.items()}
        session = Session(self.engine, leaves, device, train=True, seed=seed)
        (result,), updates = session.forward()
        session.tensors, session.versions = {}, {}  # inputs are looked up again: they may be freed in between
        return result, SegmentTape(self, session, graded, tuple(named), []), updates


@dataclass
class SegmentTape:
    """The way back through a segment; has what `Tape` has."""

    segment: Segment
    session: Session | None
    graded: frozenset[str]
    references_: tuple[str, ...]
    hidden: list[Tensor]
    own: tuple[()] = ()  # nothing that could be moved away

    @property
    def inputs(self) -> dict[str, None]:
        return dict.fromkeys(name for name in self.references_ if name in self.graded)

    @property
    def references(self) -> list[str]:
        return list(self.references_)

    def backward(self, grad: Tensor, lookup: Lookup) -> dict[str, Tensor]:
        """Gradients of the inputs that get one."""
        if self.session is None:
            grads = {name: torch.empty_like(lookup(name)) for name in self.inputs}
            _spend(self.segment.backward_bytes)
            return grads
        session, self.session = self.session, None
        session.tensors = {n: lookup(n).detach().requires_grad_(n in self.graded) for n in self.references_}
        session.versions = {n: t._version for n, t in session.tensors.items()}
        return session.backward([grad])


def _spend(count: int) -> None:
    torch.empty(count, dtype=torch.uint8, device="meta")


def cut_segment(graph: Graph, first: int, last: int) -> tuple[Graph, Graph] | None:
    """Replace nodes first..last-1 by one node: the graph around it, and the graph inside. None unless exactly one of
    their values is read outside."""
    inside = graph.nodes[first:last]
    made = {v for n in inside for v in n.outputs}
    updates = [pair for pair in graph.updates if pair[1] in made]
    outside = {v for n in (*graph.nodes[:first], *graph.nodes[last:]) for v in n.reads} | set(graph.outputs)
    crossing = [v for n in inside for v in n.outputs if v in outside]
    reads = dict.fromkeys(v for n in inside for v in n.reads if v not in made)
    if len(crossing) != 1 or not reads or any(new in outside for _, new in updates):
        return None
    written = dict.fromkeys(old for old, _ in updates if old not in reads)  # over what they were, which nobody reads
    values = [_as_input(graph.value[v]) for v in (*reads, *written)] + [v for v in graph.values if v.name in made]
    inner = Graph(tuple(values), inside, tuple(crossing), tuple(updates), f"{graph.name}[{first}:{last}]")
    name = f"{TILED}_{first}_{last}"
    roles = {v: Role.PARAMETER if graph.value[v].kind is Kind.PARAMETER else Role.DATA for v in reads}
    node = Node(name, TILED, tuple(Input(f"in.{k}", v, roles[v]) for k, v in enumerate(reads)), tuple(crossing))
    kept = tuple(v for v in graph.values if v.name not in made or v.name in crossing)
    rest = tuple(pair for pair in graph.updates if pair not in updates)
    return Graph(kept, (*graph.nodes[:first], node, *graph.nodes[last:]), graph.outputs, rest, graph.name), inner


def _as_input(value: Value) -> Value:
    return replace(value, kind=Kind.INPUT, alias=None) if value.kind.computed else value


def make_segment(
    node: str, inner: Graph, plan: Callable[[Graph], Schedule], graded: Mapping[str, bool]
) -> tuple[Segment, Schedule]:
    """Plan the tiles of a stretch and predict what they need. `graded`: which outside values need a gradient."""
    lowered = lower_graph(inner)
    schedule = plan(lowered)
    wanted = [v.name for v in lowered.values if not v.kind.computed and graded.get(v.name, False)]
    train, forward = predict(schedule, wanted), predict(schedule, train=False)
    (out,) = lowered.outputs
    size = lowered.type(out).bytes
    halos = train.halo_bytes if schedule.storage is Storage.DEVICE else 0
    grads = sum(lowered.type(name).bytes for name in wanted)
    outside = sum(v.type.bytes for v in lowered.values if not v.kind.computed)
    saved = halos + max(0, train.kept_bytes - size)
    return Segment(
        node,
        Engine(schedule),
        saved_bytes=saved,
        forward_bytes=max(0, forward.peak_bytes - size),
        backward_bytes=max(0, train.total_bytes - outside - saved - 2 * size - grads),
    ), schedule
