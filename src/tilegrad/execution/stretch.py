"""Nodes that run whole, one after another, with everything looked up beforehand: what is left is to call torch.

A plan that keeps everything is one such stretch, and takes plain's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..errors import InternalError
from ..ir import Node
from ..kernels import Fused
from ..ops import Call, Op
from ..region import Box
from .saved import trimmed

SMALL = 2**16  # bytes that are not worth a copy of what is left of them


@dataclass(frozen=True)
class WholeNode:
    """A node that makes all of its output from all of its inputs. One that is `alone` needs the pass: a seed, a device,
    or buffers that others write to as well."""

    call: Call
    op: Op
    box: Box
    written: tuple[str, ...]  # what torch's own operator writes to
    alone: bool
    hidden: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.call.node.reads

    @property
    def out(self) -> str:
        return self.call.node.outputs[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.call.node.name,)

    def function(self) -> Callable[[Sequence[Tensor]], Tensor]:
        call, op = self.call, self.op
        if op.is_native(call):
            run: Callable[[Sequence[Tensor]], Tensor] = call.invoke
        else:

            def run(tensors: Sequence[Tensor]) -> Tensor:
                return op.run_whole(call, tensors, 0, tensors[0].device)

        if max((t.bytes for t in call.inputs), default=0) <= max(call.out.bytes, SMALL):
            return run

        return lambda tensors: trimmed(run(tensors), tensors)


@dataclass(frozen=True)
class WholeChain:
    """Several nodes at once, by a kernel."""

    fused: Fused
    calls: tuple[Call, ...]
    box: Box
    alone: bool = False

    @property
    def hidden(self) -> tuple[str, ...]:
        """What lies between its nodes."""
        return tuple(call.node.outputs[0] for call in self.calls[:-1])

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for k, call in enumerate(self.calls) for name in call.node.reads[1 if k else 0 :])

    @property
    def out(self) -> str:
        return self.calls[-1].node.outputs[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(call.node.name for call in self.calls)

    def function(self) -> Callable[[Sequence[Tensor]], Tensor]:
        counts = [len(call.node.reads) - (1 if k else 0) for k, call in enumerate(self.calls)]
        kernel, calls = self.fused.kernel, self.calls

        def run(tensors: Sequence[Tensor]) -> Tensor:
            given = iter(tensors)
            return kernel.run(calls, [[next(given) for _ in range(count)] for count in counts], None)

        return run


WholeStep = WholeNode | WholeChain
Entry = tuple[Callable[[Sequence[Tensor]], Tensor], tuple[int, ...], int, tuple[int, ...]]


class Stretch:
    """`reads`: what it needs from outside; `written`: nodes, and which of that they write to; `makes`: what others need
    of what it makes."""

    def __init__(self, steps: Sequence[WholeStep], freed: Sequence[str]):
        made = {step.out: step.box for step in steps}
        self.nodes = [name for step in steps for name in step.nodes]
        self.reads = list(dict.fromkeys(name for step in steps for name in step.reads if name not in made))
        self.makes = [(name, box) for name, box in made.items() if name not in freed]
        self._shapes = [(name, box, box.shape) for name, box in self.makes]
        self._slot = {name: at for at, name in enumerate((*self.reads, *made))}
        nodes = [step for step in steps if isinstance(step, WholeNode)]
        self.written = [(step.call.node, self._slot[name]) for step in nodes for name in step.written]
        last = {name: at for at, step in enumerate(steps) for name in (step.out, *step.reads)}
        gone: dict[int, list[int]] = {}
        for name in freed:
            gone.setdefault(last[name], []).append(self._slot[name])
        self._entries: list[Entry] = [
            (step.function(), tuple(self._slot[n] for n in step.reads), self._slot[step.out], tuple(gone.get(at, ())))
            for at, step in enumerate(steps)
        ]

    def run(self, inputs: Sequence[Tensor]) -> list[tuple[str, Tensor, Box]]:
        """`inputs`: of `reads`, in order."""
        slots: list[Tensor | None] = [*inputs, *(None for _ in range(len(self._slot) - len(inputs)))]
        for function, takes, gives, dead in self._entries:
            slots[gives] = function([slots[at] for at in takes])  # type: ignore[misc]  # all are there by now
            for at in dead:
                slots[at] = None
        return [(name, checked(slots[self._slot[name]], box, name, shape), box) for name, box, shape in self._shapes]


def checked(tensor: Tensor | None, box: Box, where: str | Node, due: tuple[int, ...] | None = None) -> Tensor:
    """`due`: the box's shape, where it is known."""
    if tensor is None or tensor.shape != (due or box.shape):
        shape = None if tensor is None else tuple(tensor.shape)
        place = where if isinstance(where, str) else where.describe()
        raise InternalError(f"a tensor of {shape} where {box.shape} was due", where=place)
    return tensor
