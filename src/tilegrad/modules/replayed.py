"""Replay: an imported training graph as executable PyTorch, with random weights, under any plan.

Only the graph is needed. Batch and image may be other than the recorded ones: shapes are found again by running the
forward nodes on tensors without data, crops keep their margins, and labels take the shape of what they label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..bounds import call_of, lower_graph
from ..errors import ModelError, TilegradError
from ..execution import Executor, Pass
from ..execution.walk import seed_of
from ..ir import Graph, Kind, Node, TensorType, Value, check_graph
from ..ops import Call, aten, find
from ..schedule import Free, Move, Run, Schedule, check_schedule, fuse
from ..schedule.whole import DEVICE, HOST, NodeIslands, list_steps, roots_of, whole_schedule
from ..sim.peak import PeakBytes
from ..sim.training import forward_part, training_graph

SCALE = 0.5  # of random weights, relative to what keeps activations at one size
LABELS = "target"  # the argument of a loss that takes class numbers


def replay(
    graph: Graph,
    *,
    batch: int | None = None,
    image: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> Replay:
    """Make a graph executable. `batch`, `image`: other than those recorded; `image` is the length of its sides."""
    for what, count in (("batch", batch), ("image", image)):
        if count is not None and count < 1:
            raise ModelError(f"a {what} of {count}", hint="at least 1, or none for the recorded one")
    if (batch or image) and not any(len(graph.shape(name)) > 2 for name in graph.inputs):
        raise ModelError("batch and image have no effect on a graph without images", where=graph.name, hint="neither")
    forward = _reshape(forward_part(graph), batch, image, str(dtype).removeprefix("torch."))
    return Replay(forward, torch.device(device), seed)


@dataclass(frozen=True)
class Outcome:
    """One step: its outputs, the gradient of every parameter they depend on, and the most bytes alive, all included."""

    outputs: list[Tensor]
    grads: dict[str, Tensor]
    peak_bytes: int


@dataclass
class Replay:
    """A graph with tensors for everything that comes from outside."""

    forward: Graph
    device: torch.device
    seed: int

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.tensors = {
            v.name: _fill(v, self.forward, generator).to(self.device)
            for v in self.forward.values
            if not v.kind.computed
        }
        for name in self.graded:
            self.tensors[name].requires_grad_()

    @property
    def graded(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.forward.of_kind(Kind.PARAMETER))

    @cached_property
    def graph(self) -> Graph:
        """Forward and backward nodes as PyTorch runs them: plan on this."""
        return training_graph(self.forward, self.graded, seeded=False)

    @cached_property
    def lowered(self) -> Graph:
        """What tiles are planned on."""
        return lower_graph(self.forward)

    def plain(self) -> Outcome:
        """Plain autograd over the same operators."""
        with PeakBytes(self.device) as peak:
            values = dict(self.tensors)
            for node in self.forward.nodes:
                call, seed = call_of(self.forward, node), seed_of(self.seed, node.name)
                values[node.outputs[0]] = find(node).run_whole(
                    call, [values[name] for name in node.reads], seed, self.device
                )
            outputs = [values[name] for name in self.forward.outputs]
            del values
            leaves = [self.tensors[name] for name in self.graded]
            grads = torch.autograd.grad([o.sum() for o in outputs], leaves, allow_unused=True)
            found = {name: grad for name, grad in zip(self.graded, grads, strict=True) if grad is not None}
            outputs = [o.detach() for o in outputs]
        return Outcome(outputs, found, peak.bytes + self.outside_bytes)

    def run(self, schedule: Schedule) -> Outcome:
        """One step under a plan: of whole nodes (made for this graph or for the imported one) or of tiles."""
        whole = isinstance(schedule.islands, NodeIslands)
        executor = Executor(fuse(self.adapt(schedule), self.forward, apart=True) if whole else schedule)
        with PeakBytes(self.device) as peak:
            session = Pass(executor, self.tensors, self.device, seed=self.seed)
            outputs, _ = session.forward()
            found = session.backward([torch.ones_like(o) for o in outputs])
            del session
        grads = {name: found[name] for name in self.graded if name in found}
        return Outcome(outputs, grads, peak.bytes + self.outside_bytes)

    @property
    def outside_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    def adapt(self, schedule: Schedule) -> Schedule:
        """A plan for the imported graph, for this one: the same nodes in the same order, the same copies where there is
        such a value."""
        if schedule.graph is self.graph:
            return schedule
        unknown = [name for name in schedule.runs if name not in self.graph.node]
        if unknown:
            raise ModelError(f"the plan runs '{unknown[0]}', which this graph does not have")
        missing = [name for name in self.graph.node if name not in set(schedule.runs)]
        if missing:
            raise ModelError(f"the plan does not run '{missing[0]}', which this graph has")
        runs, moves = schedule.runs, dict[int, list[Free | Move]]()
        copies = _idle_copies(self.graph, runs, list(_copies(schedule)))
        for copy in copies:
            moves.setdefault(copy.out, []).append(Move(copy.value, HOST))
        for copy in copies:
            moves.setdefault(copy.gone, []).append(Free(copy.value))
        for copy in copies:
            moves.setdefault(copy.back, []).append(Move(copy.value, DEVICE))
        adapted = whole_schedule(self.graph, schedule.mode, list_steps(self.graph, runs, moves))
        check_schedule(adapted)
        return adapted


@dataclass(frozen=True)
class _Copy:
    """A value, and the numbers of the runs before which it is copied out, freed and fetched."""

    value: str
    out: int
    gone: int
    back: int


def _copies(schedule: Schedule) -> Iterator[_Copy]:
    at, out, gone = 0, dict[str, int](), dict[str, int]()
    for step in schedule.steps:
        match step:
            case Run():
                at += 1
            case Free(value=value):
                gone[value] = at
            case Move(value=value, store="host"):
                out[value] = at
            case Move(value=value):
                yield _Copy(value, out[value], gone[value], at)


def _idle_copies(graph: Graph, runs: Sequence[str], copies: Sequence[_Copy]) -> list[_Copy]:
    """Those of a value that is made before it is copied out, not used until it is fetched, and used again then."""
    memory = roots_of(graph)
    uses: dict[str, list[tuple[int, bool]]] = {}  # run, and whether it makes the value
    for at, node in enumerate(runs):
        for name in dict.fromkeys([*memory.reads(node), *memory.lived_in(node)]):
            uses.setdefault(name, []).append((at, False))
        for name in memory.writes(node):
            uses.setdefault(name, []).append((at, True))
    found = []
    for copy in copies:
        life = uses.get(copy.value, []) if copy.value not in memory.kept else []
        after = [use for use in life if use[0] >= copy.out]
        if len(after) < len(life) and after and after[0][0] >= copy.back and not after[0][1]:
            found.append(copy)
    return found


def _fill(value: Value, graph: Graph, generator: torch.Generator) -> Tensor:
    """Random content: weights that keep activations at one size, images, class numbers."""
    shape, dtype = value.type.shape, getattr(torch, value.type.dtype)
    if not dtype.is_floating_point:
        classes = min((graph.shape(n.reads[0])[1] for n in graph.consumers[value.name] if len(n.inputs) > 1), default=2)
        return torch.randint(0, classes, shape, generator=generator, dtype=dtype)
    found = torch.randn(shape, generator=generator, dtype=torch.float64)
    if value.kind is Kind.PARAMETER:
        fan = max(1, value.type.size // max(1, shape[0])) if len(shape) > 1 else 4
        found *= SCALE * (2.0 / fan) ** 0.5
    return found.to(dtype)


def _reshape(graph: Graph, batch: int | None, image: int | None, dtype: str) -> Graph:
    """The same nodes on another batch and image."""
    types = {v.name: _outside_type(v, batch, image, dtype) for v in graph.values if not v.kind.computed}
    labels = {i.value for n in graph.nodes for i in n.inputs if i.arg == LABELS}
    nodes = []
    for node in graph.nodes:
        node = _keep_margins(graph, node, types)
        for slot in node.inputs:
            if slot.value in labels and slot.arg == LABELS:
                scores = types[node.inputs[0].value].shape
                types[slot.value] = TensorType((scores[0], *scores[2:]), "int64")
        types[node.outputs[0]] = _run_blank(node, types)
        nodes.append(node)
    values = tuple(replace(v, type=types[v.name]) for v in graph.values)
    made = Graph(values, tuple(nodes), graph.outputs, (), graph.name)
    check_graph(made)
    return made


def _outside_type(value: Value, batch: int | None, image: int | None, dtype: str) -> TensorType:
    shape = value.type.shape
    if value.kind is Kind.INPUT and len(shape) > 2:
        spatial = [image or n for n in shape[2:]]
        shape = (batch or shape[0], shape[1], *spatial)
    return TensorType(shape, dtype if value.type.floating else value.type.dtype)


def _keep_margins(graph: Graph, node: Node, types: Mapping[str, TensorType]) -> Node:
    """A crop takes as much off each side as it did."""
    if node.op != "crop":
        return node
    old, new = graph.shape(node.reads[0]), types[node.reads[0]].shape
    stop = [n - (o - s) for n, o, s in zip(new, old, node.attrs["stop"], strict=True)]
    return replace(node, attrs=MappingProxyType({**node.attrs, "stop": stop}))


def _run_blank(node: Node, types: Mapping[str, TensorType]) -> TensorType:
    """The type of a node's output, by running it on tensors without data."""
    inputs = tuple(types[name] for name in node.reads)
    blanks: list[Any] = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in inputs]
    if not node.target.startswith("aten.") and node.op != "crop":
        raise ModelError(f"this function cannot be run: {node.target or node.op}", where=node.describe())
    try:
        if node.op == "crop":
            ends = zip(node.attrs["start"], node.attrs["stop"], strict=True)
            shape = tuple(b - a for a, b in ends)
            if min(shape, default=0) <= 0:
                raise ValueError(f"a crop to {shape}")
        else:
            op, meta = find(node), torch.device("meta")
            call = Call(node, inputs, (inputs[0],))
            native = type(op).run_whole(op, call, blanks, 0, meta) if op.random else aten.call(node, blanks)
            shape = tuple(native.shape)
    except TilegradError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise ModelError(
            f"the graph does not run on this batch and image: {error}",
            where=node.describe(),
            hint="an image size whose halves all come out even, such as the recorded one plus a multiple of 16",
        ) from error
    return TensorType(shape, inputs[0].dtype)
