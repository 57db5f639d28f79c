"""Buffers that nodes write to: a pass reads them as they were, and says at its end what they shall be.

Torch's own operators (batch normalisation) write while they run. They get a copy; what the first run makes of it is
remembered, and later nodes that read the same buffer find it. Where a node runs again it finds what it found first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ..ir import Graph, Node
from ..torch_private import clone_each


class Buffers:
    """`written`: outside values that nodes write to, which are copied all at once when the first is asked for."""

    def __init__(self, tensors: Mapping[str, Tensor], written: Sequence[str] = ()):
        self.tensors, self.written = tensors, written
        self.copies: dict[str, Tensor] | None = None
        self.ran: set[str] = set()  # nodes that write, or read what others wrote
        self.remembered: dict[str, Tensor] = {}  # what nodes wrote to, as it is now
        self.met: dict[tuple[str, str], Tensor] = {}  # what a node read that earlier ones had written to
        self.before: dict[str, Tensor] = {}  # as they were, once the caller has the new ones
        self.replaced: set[str] = set()

    def read(self, node: Node, name: str, tensor: Tensor, written: bool) -> Tensor:
        """A value as a node finds it; `written`: it will write to it."""
        first = node.name not in self.ran
        if first and name in self.remembered:
            self.met[node.name, name] = self.remembered[name]
        tensor = self.met.get((node.name, name), tensor)
        if written:
            tensor = self._copy(name, tensor)
            if first:
                self.remembered[name] = tensor
        return tensor

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        if self.copies is None:
            here = ((n, self.tensors[n]) for n in self.written)
            mine = [n for n, t in here if t.device == tensor.device and not t.requires_grad]
            self.copies = dict(zip(mine, clone_each([self.tensors[n] for n in mine]), strict=True)) if mine else {}
        copied = self.copies.pop(name, None)  # for the first who asks; who comes later reads what that one wrote
        return tensor.clone() if copied is None else copied

    def updates(self, graph: Graph, latest: Callable[[str], Tensor]) -> list[tuple[str, Tensor]]:
        """What replaces what."""
        found = {name: tensor for name, tensor in self.remembered.items() if name in self.tensors}
        found |= {old: latest(new) for old, new in graph.updates}
        self.replaced = set(found)
        return list(found.items())

    def keep_before(self, names: set[str]) -> None:
        """Backward reads buffers as they were."""
        self.before = {name: self.tensors[name].clone() for name in names}
