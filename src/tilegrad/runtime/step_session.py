"""Run a step list: whole nodes with their own tapes, reruns, frees and copies, exactly as the schedule says."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..bounds import call_of
from ..errors import InternalError, RunError
from ..ir import Graph, Node, Phase
from ..ops import Call, Op, find
from ..schedule.step_list import StepList, graph_memory
from ..schedule.steps import Fetch, Free, Offload, Run, WholeStep
from .engine import seed_of, version_of
from .moves import Mover
from .segment import Segment, SegmentTape
from .tape import Tape, fills, memory_of, run_taped, trimmed
from .training import SEED


class StepEngine:
    """A step list, ready to run again and again. `forward`: the graph that was differentiated."""

    def __init__(self, schedule: StepList, forward: Graph, segments: Mapping[str, Segment] | None = None):
        self.segments = segments or {}  # nodes that run in tiles
        self.schedule, self.graph, self.forward = schedule, schedule.graph, forward
        self.memory = graph_memory(self.graph)
        self.members: dict[str, list[str]] = {}
        for name, root in self.memory.root.items():
            self.members.setdefault(root, []).append(name)
        self.calls: dict[str, Call] = {n.name: call_of(self.graph, n) for n in self.graph.nodes}
        self.ops: dict[str, Op] = {n.name: find(n) for n in self.graph.nodes}
        values = self.graph.value
        self.graded = frozenset(name for name in values if f"{name}.grad" in values)
        forward_nodes = [n for n in self.graph.nodes if n.phase is Phase.FORWARD]
        self.hidden = {f"{n.name}.saved": n.name for n in forward_nodes if f"{n.name}.saved" in n.outputs}
        self.kept = {n.name: self._kept(n) for n in forward_nodes}
        backward = [at for at, s in enumerate(schedule.steps) if isinstance(s, Run) and not self._is_forward(s.node)]
        self.turn = min(backward, default=len(schedule.steps))  # the first step of the backward pass
        later = [s.node for s in schedule.steps[self.turn :] if isinstance(s, Run)]
        again = {root for name in later for root in self.memory.reads(name)}
        # Outputs that must stay as they are: backward reads them, or another output lies in the same memory.
        roots = [self.memory.root[name] for name in forward.outputs]
        watched = again | {root for root, times in Counter(roots).items() if times > 1}
        self.read_again = frozenset(name for name, root in zip(forward.outputs, roots, strict=True) if root in watched)

    def _is_forward(self, node: str) -> bool:
        return self.graph.node[node].phase is Phase.FORWARD

    def _kept(self, node: Node) -> frozenset[str]:
        """What a node reads and makes that the plan has there for its backward."""
        found = self.graph.node.get(f"{node.name}.backward")
        roots = {self.memory.root[name] for name in found.reads} if found is not None else set()
        names = (*node.reads, *node.outputs)
        return frozenset(
            n for n in names if self.memory.root[n] in roots or self.memory.root[n] in self.memory.resident
        )


class StepSession:
    """One training step: `forward()`, then `backward(grads)`."""

    def __init__(
        self,
        engine: StepEngine,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        *,
        seed: int = 0,
        autocast: torch.dtype | None = None,
    ):
        self.engine, self.tensors, self.device = engine, tensors, device
        self.seed, self.autocast = seed, autocast
        self.needs = engine.graded
        self.output_names = engine.forward.outputs
        self.store: dict[str, Tensor] = {}
        self.tapes: dict[str, Tape | SegmentTape] = {}
        self.moves = Mover(device)
        self.away: set[str] = set()
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.ran: set[str] = set()  # nodes
        self.remembered: dict[str, Tensor] = {}  # what nodes wrote to, as it is now
        self.met: dict[tuple[str, str], Tensor] = {}  # what a node read that earlier ones had written to
        self.before: dict[str, Tensor] = {}
        self.versions: dict[str, int] = {}
        self.brought: dict[str, Tensor] = {}
        self.spent = False

    def forward(self) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
        """The outputs, and the buffers to replace."""
        engine = self.engine
        with torch.no_grad():
            for step in engine.schedule.steps[: engine.turn]:
                self._step(step)
            # An output knows its session, so the session must not know the output: it is another tensor there.
            outputs = [self._latest(name).detach() for name in engine.forward.outputs]
            replaced = {old: self._latest(new) for old, new in engine.forward.updates}
        updates = {name: t for name, t in self.remembered.items() if name in self.tensors} | replaced
        self.before = {old: self.tensors[old].clone() for old in updates}
        self.versions = {name: version_of(tensor) for name, tensor in self._watched().items()}
        return outputs, list(updates.items())

    def _watched(self) -> dict[str, Tensor]:
        """What backward reads again and others may write to: inputs, parameters, and outputs."""
        found = {name: t for name, t in self.tensors.items() if name not in self.before}
        return found | {name: self.store[name] for name in self.engine.read_again if name in self.store}

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Gradients of the outside values, given those of the outputs; none for a value that none of these reaches."""
        self.spent = True
        for name, tensor in self._watched().items():
            if version_of(tensor) != self.versions[name]:
                raise RunError(
                    f"'{name}' was written to after the forward pass, and backward needs it as it was",
                    hint="backward before optimizer.step() and before writing in place to inputs and outputs",
                )
        with torch.no_grad():
            self._take(grads)
            for step in self.engine.schedule.steps[self.engine.turn :]:
                self._step(step)
        return {name: self.store[f"{name}.grad"] for name in self.tensors if f"{name}.grad" in self.store}

    def _take(self, grads: Sequence[Tensor | None]) -> None:
        """The gradients of the outputs; a value that was handed out several times gets the sum of all."""
        summed = set()
        for name, grad in zip(self.output_names, grads, strict=True):
            if grad is None:
                continue
            if name in summed:
                self.brought[name] += grad
            elif name in self.brought:
                self.brought[name] = self.brought[name] + grad  # not in place: what came is the caller's
                summed.add(name)
            else:
                self.brought[name] = grad

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _step(self, step: WholeStep) -> None:
        match step:
            case Run(node=name):
                node = self.engine.graph.node[name]
                if node.phase is Phase.FORWARD:
                    self._run_forward(node)
                elif node.op == SEED:
                    self._bring(node)
                else:
                    self._run_backward(node)
            case Free(value=value):
                self._free(value)
            case Offload(value=value):
                self.moves.offload(value, self._parts(value))
                self.away.add(value)
            case Fetch(value=value):
                self.away.discard(value)
                self._fetch(value)

    def _parts(self, value: str) -> dict[str, Tensor]:
        """The tensors in a value's memory. What autograd saved of a node may be several, in several memories."""
        if (node := self.engine.hidden.get(value)) is not None:
            return {str(at): s.tensor for at, s in enumerate(self.tapes[node].own) if s.tensor is not None}
        return {name: self.store[name] for name in self.engine.members[value] if name in self.store}

    def _fetch(self, value: str) -> None:
        found = self.moves.fetch(value)
        if (node := self.engine.hidden.get(value)) is None:
            self.store.update(found)
            return
        own = self.tapes[node].own
        for at, tensor in found.items():
            own[int(at)].tensor = tensor

    def _free(self, root: str) -> None:
        self.moves.wait(root)
        if (node := self.engine.hidden.get(root)) is None:
            for name in self.engine.members[root]:
                self.store.pop(name, None)
        elif root in self.away:
            for item in self.tapes[node].own:
                item.tensor = None
        else:
            self.tapes.pop(node, None)

    def _value(self, name: str) -> Tensor:
        if name in self.store:
            self.moves.wait(self.engine.memory.root[name])
            return self.store[name]
        if name in self.tensors:
            return self.before.get(name, self.tensors[name]).detach().to(self.device, non_blocking=True)
        node = self.engine.graph.producer.get(name)
        if node is None or self.engine.graph.value[name].alias is None:
            raise InternalError(f"'{name}' is read and not there", where=node.describe() if node else name)
        self.store[name] = self._compute(node)  # a view of what was made again or fetched
        return self.store[name]

    def _latest(self, name: str) -> Tensor:
        return self.remembered[name] if name in self.remembered else self._value(name)

    def _read(self, node: str, name: str) -> Tensor:
        """A value as a node found it when it first ran: a buffer as earlier nodes had left it."""
        return self.met[node, name] if (node, name) in self.met else self._value(name)

    def _inputs(self, node: Node) -> list[Tensor]:
        """What a node reads. Buffers that it writes to are copies; what the first run makes of them is remembered."""
        written, first = self.engine.ops[node.name].writes(node), node.name not in self.ran
        self.ran.add(node.name)
        if first:
            self.met |= {(node.name, name): self.remembered[name] for name in node.reads if name in self.remembered}
        found = []
        for name in node.reads:
            tensor = self._read(node.name, name)
            if name in written:
                tensor = tensor.clone()
                if first:
                    self.remembered[name] = tensor
            found.append(tensor)
        return found

    def _compute(self, node: Node) -> Tensor:
        op, call = self.engine.ops[node.name], self.engine.calls[node.name]
        inputs = self._inputs(node)
        with self._precision():
            return trimmed(op.run_whole(call, inputs, self._seed(node), self.device), inputs)

    def _run_forward(self, node: Node) -> None:
        (out, *_), tape, graded = node.outputs, None, f"{node.name}.backward" in self.engine.graph.node
        if graded or node.name in self.engine.segments:
            op, call = self.engine.ops[node.name], self.engine.calls[node.name]
            self.tapes.pop(node.name, None)
            first, inputs = node.name not in self.ran, self._inputs(node)
            with self._precision():
                result, tape = self._record(node, op, call, inputs, first)
        else:
            result = self._compute(node)
        self.store.setdefault(out, result)  # run again for what else it makes: others may look at what is there
        if tape is not None and graded:
            self.tapes[node.name] = tape

    def _record(
        self, node: Node, op: Op, call: Call, inputs: list[Tensor], first: bool
    ) -> tuple[Tensor, Tape | SegmentTape | None]:
        segment = self.engine.segments.get(node.name)
        if segment is None:
            kept = self.engine.kept[node.name]
            return run_taped(op, call, inputs, self.needs, self.anchor, self._seed(node), kept)
        result, tape, updates = segment.run(call, inputs, self.needs, self.device, self.seed)
        if first:
            self.remembered |= dict(updates)
        return result, tape

    def _bring(self, node: Node) -> None:
        for made in node.outputs:
            grad = self.brought.pop(_of_gradient(made), None)
            if grad is not None:
                self.store[made] = grad

    def _run_backward(self, node: Node) -> None:
        of = str(node.attrs["of"])
        slots = {slot.arg: slot.value for slot in node.inputs}
        self.moves.wait(f"{of}.saved")
        if "grad" in slots:
            grad = self.store.get(slots["grad"])
        else:
            grad = torch.ones_like(self._value(self.engine.graph.node[of].outputs[0]))
        # Without a gradient nothing of what this node leads to is in the loss: what it adds is not zero, it is nothing.
        found = self.tapes[of].backward(grad, partial(self._read, of)) if grad is not None else {}
        if f"{of}.saved" not in self.engine.hidden:
            del self.tapes[of]
        for made in node.outputs:
            name = _of_gradient(made)
            self._add(made, slots.get(f"sum.{name}"), found.pop(name, None), grad)

    def _add(self, made: str, before: str | None, tensor: Tensor | None, incoming: Tensor | None) -> None:
        """One more gradient, or none, of a value. Sums in place are only of memory that nobody else reads."""
        alias = self.engine.graph.value[made].alias
        old = self.store.get(before) if before is not None else None
        if tensor is None:
            if old is not None:
                self.store[made] = old if alias is not None else old.clone()
        elif old is not None:
            self.store[made] = old.add_(tensor) if alias is not None else old + tensor
        elif alias is not None and before is None:
            self.store[made] = tensor
        else:
            shared = incoming is not None and memory_of(tensor) == memory_of(incoming)
            self.store[made] = tensor.clone() if shared or not fills(tensor) else tensor

    def _seed(self, node: Node) -> int:
        return seed_of(self.seed, node.name)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.device.type == "meta":
            return contextlib.nullcontext()
        if self.autocast is None:
            return torch.autocast(self.device.type, enabled=False)
        return torch.autocast(self.device.type, self.autocast)


def _of_gradient(name: str) -> str:
    """ "x.grad" and "x.grad.2" -> "x"."""
    head, _, tail = name.rpartition(".grad")
    return head if not tail or tail[1:].isdigit() else name
