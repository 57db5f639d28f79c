"""Run a step list: whole nodes with their own tapes, reruns, frees and copies, exactly as the schedule says."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..bounds import call_of
from ..errors import InternalError, TilegradError
from ..ir import Graph, Node, Phase
from ..ops import Call, Op, find
from ..schedule.step_list import Memory, StepList
from ..schedule.steps import Fetch, Free, Offload, Run, WholeStep
from .engine import seed_of, version_of
from .moves import Mover
from .tape import Tape, fills, memory_of, run_taped
from .training import SEED


class StepEngine:
    """A step list, ready to run again and again. `forward`: the graph that was differentiated."""

    def __init__(self, schedule: StepList, forward: Graph):
        self.schedule, self.graph, self.forward = schedule, schedule.graph, forward
        self.memory = Memory(self.graph)
        self.members: dict[str, list[str]] = {}
        for name, root in self.memory.root.items():
            self.members.setdefault(root, []).append(name)
        self.calls: dict[str, Call] = {n.name: call_of(self.graph, n) for n in self.graph.nodes}
        self.ops: dict[str, Op] = {n.name: find(n) for n in self.graph.nodes}
        values = self.graph.value
        self.graded = frozenset(name for name in values if f"{name}.grad" in values)
        backward = [at for at, s in enumerate(schedule.steps) if isinstance(s, Run) and not self._is_forward(s.node)]
        self.turn = min(backward, default=len(schedule.steps))  # the first step of the backward pass

    def _is_forward(self, node: str) -> bool:
        return self.graph.node[node].phase is Phase.FORWARD


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
        self.tapes: dict[str, Tape] = {}
        self.moves = Mover(device)
        self.away: set[str] = set()
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.remembered: dict[str, Tensor] = {}
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
            outputs = [self._value(name) for name in engine.forward.outputs]
            updates = [(old, self._value(new)) for old, new in engine.forward.updates] + list(self.remembered.items())
        self.before = {old: self.tensors[old].clone() for old, _ in updates}
        self.versions = {n: version_of(t) for n, t in self.tensors.items() if n not in self.before}
        for name in set(engine.forward.outputs) & self.store.keys():
            self.store[name] = self.store[name].detach()  # the output itself knows its session: hold another tensor
        return outputs, updates

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Gradients of the outside values, given those of the outputs."""
        self.spent = True
        for name, version in self.versions.items():
            if version_of(self.tensors[name]) != version:
                raise TilegradError(
                    f"'{name}' was written to after the forward pass, and backward needs it as it was",
                    hint="backward before optimizer.step() and before writing in place to inputs",
                )
        for name, grad in zip(self.output_names, grads, strict=True):
            if grad is not None:
                self.brought[name] = self.brought[name] + grad if name in self.brought else grad
        with torch.no_grad():
            for step in self.engine.schedule.steps[self.engine.turn :]:
                self._step(step)
        return {name: self.store[f"{name}.grad"] for name in self.tensors if f"{name}.grad" in self.store}

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
                for key, tensor in self._parts(value):
                    self.moves.offload(key, tensor)
                self.away.add(value)
            case Fetch(value=value):
                self.away.discard(value)
                self._fetch(value)

    def _fetch(self, value: str) -> None:
        if (node := hidden_of(value)) is None:
            self.store[value] = self.moves.fetch(value)
            return
        for at, item in enumerate(self.tapes[node].own):
            item.tensor = self.moves.fetch(f"{value}.{at}")

    def _parts(self, value: str) -> list[tuple[str, Tensor]]:
        """The tensors of a value; what autograd saved of a node may be several."""
        if (node := hidden_of(value)) is None:
            return [(value, self.store[value])]
        return [(f"{value}.{at}", tensor) for at, tensor in enumerate(self.tapes[node].hidden)]

    def _free(self, root: str) -> None:
        if (node := hidden_of(root)) is not None:
            if root not in self.away:
                self.tapes.pop(node, None)
                return
            for at, item in enumerate(self.tapes[node].own):
                self.moves.wait(f"{root}.{at}")
                item.tensor = None
            return
        self.moves.wait(root)
        for name in self.engine.members[root]:
            self.store.pop(name, None)

    def _value(self, name: str) -> Tensor:
        if name in self.store:
            self.moves.wait(name)
            return self.store[name]
        if name in self.tensors:
            return self.before.get(name, self.tensors[name]).detach().to(self.device, non_blocking=True)
        node = self.engine.graph.producer.get(name)
        if node is None or self.engine.graph.value[name].alias is None:
            raise InternalError(f"'{name}' is read and not there", where=node.describe() if node else name)
        self.store[name] = self._compute(node)  # a view of what was made again or fetched
        return self.store[name]

    def _inputs(self, node: Node) -> list[Tensor]:
        """What a node reads; buffers that it writes to are copies."""
        remembers = self.engine.ops[node.name].remembers
        found = []
        for slot in node.inputs:
            tensor = self._value(slot.value)
            if slot.arg in remembers:
                tensor = tensor.clone()
                if slot.value not in self.remembered and node.attrs.get("training", node.attrs.get("use_input_stats")):
                    self.remembered[slot.value] = tensor
            found.append(tensor)
        return found

    def _compute(self, node: Node) -> Tensor:
        op, call = self.engine.ops[node.name], self.engine.calls[node.name]
        with self._precision():
            return op.run_whole(call, self._inputs(node), self._seed(node), self.device)

    def _run_forward(self, node: Node) -> None:
        if f"{node.name}.backward" not in self.engine.graph.node:
            self.store[node.outputs[0]] = self._compute(node)
            return
        op, call = self.engine.ops[node.name], self.engine.calls[node.name]
        self.tapes.pop(node.name, None)
        inputs = self._inputs(node)
        with self._precision():
            result, tape = run_taped(op, call, inputs, self.needs, self.anchor, self._seed(node))
        self.store[node.outputs[0]] = result
        if tape is not None:
            self.tapes[node.name] = tape

    def _bring(self, node: Node) -> None:
        for made in node.outputs:
            name = next(out for out in self.output_names if made in (f"{out}.grad", f"{out}.grad.1"))
            grad = self.brought.pop(name, None)
            self.store[made] = torch.zeros_like(self._value(name)) if grad is None else grad

    def _run_backward(self, node: Node) -> None:
        of = str(node.attrs["of"])
        forward, tape = self.engine.graph.node[of], self.tapes[of]
        slots = {slot.arg: slot.value for slot in node.inputs}
        grad = self.store[slots["grad"]] if "grad" in slots else torch.ones_like(self._value(forward.outputs[0]))
        for at in range(len(tape.own)):
            self.moves.wait(f"{of}.saved.{at}")
        found = tape.backward(grad, self._value)
        if f"{of}.saved" not in self.engine.graph.value:
            del self.tapes[of]
        made = {_of_gradient(name): name for name in node.outputs}
        for name, tensor in found.items():
            if name in made:
                self._add(made.pop(name), slots.get(f"sum.{name}"), tensor, grad)

    def _add(self, made: str, before: str | None, tensor: Tensor, incoming: Tensor) -> None:
        alias = self.engine.graph.value[made].alias
        if before is not None:
            old = self.store[before]
            self.store[made] = old.add_(tensor) if alias is not None else old + tensor
        elif alias is None and (memory_of(tensor) == memory_of(incoming) or not fills(tensor)):
            self.store[made] = tensor.clone()
        else:
            self.store[made] = tensor

    def _seed(self, node: Node) -> int:
        return seed_of(self.seed, node.name)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.device.type == "meta":
            return contextlib.nullcontext()
        if self.autocast is None:
            return torch.autocast(self.device.type, enabled=False)
        return torch.autocast(self.device.type, self.autocast)


def hidden_of(value: str) -> str | None:
    """The node whose hidden memory a value is."""
    return value.removesuffix(".saved") if value.endswith(".saved") else None


def _of_gradient(name: str) -> str:
    """ "x.grad" and "x.grad.2" -> "x"."""
    head, _, tail = name.rpartition(".grad")
    return head if not tail or tail[1:].isdigit() else name
