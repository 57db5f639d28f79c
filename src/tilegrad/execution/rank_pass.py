"""One forward pass of a rank and its backward pass, where everything is kept: `Pass` by a program that is replayed.

That nobody writes to what backward reads is watched over by autograd itself, as in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..ops.base import Seed
from .around import around
from .buckets import Arrivals
from .executor import Executor
from .messages import Peers
from .rank_program import RankProgram
from .unchanged import was_changed
from .walk import seed_of


class RankPass:
    def __init__(
        self, executor: Executor, tensors: Mapping[str, Any], device: torch.device, *, seed: Seed = 0, peers: Peers
    ):
        self.executor, self.tensors, self.device, self.seed, self.peers = executor, tensors, device, seed, peers
        trains = executor.schedule.trains
        self.needs = executor.needs(frozenset(name for name, t in tensors.items() if trains and t.requires_grad))
        programs: dict[Any, RankProgram] = executor.rank_programs
        if (self.needs, device) not in programs:
            programs[self.needs, device] = RankProgram(executor, self.needs, device)
        self.program = programs[self.needs, device]
        self.output_names = executor.graph.outputs
        self.arrivals = Arrivals(peers, torch.zeros((), device=device, requires_grad=True))
        self.edges: dict[str, tuple[GradientEdge, torch.dtype]] = {}
        self.ends: list[GradientEdge] = []  # where backward begins besides
        self.spent = False

    def forward(self) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
        """The graph's outputs, and the buffers to replace."""
        program, graph = self.program, self.executor.graph
        slots: list[Any] = [None] * program.size
        for name, slot in program.outside:
            slots[slot] = self.tensors[name].detach().to(self.device, non_blocking=True)
        with around(self.device), torch.set_grad_enabled(bool(self.needs)):
            for entry in program.entries:
                made = entry.function(self, [slots[at] for at in entry.takes])
                for at, tensor in zip(entry.gives, made, strict=True):
                    slots[at] = tensor
                for at in entry.dead:
                    slots[at] = None
        found = {name: slots[at] for name, at in program.outputs.items()}
        wanted = {name: tensor for name, tensor in found.items() if name in graph.outputs and tensor.requires_grad}
        self.edges = {name: (get_gradient_edge(tensor), tensor.dtype) for name, tensor in wanted.items()}
        return [self._outside(name, found) for name in self.output_names], [
            (old, found[new].detach()) for old, new in graph.updates
        ]

    def behind_end(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The first of them is a token, at which backward begins; the others go on."""
        if tensors[0].requires_grad:
            self.ends.append(get_gradient_edge(tensors[0]))
        return tensors[1:]

    def _outside(self, name: str, found: Mapping[str, Tensor]) -> Tensor:
        return self.tensors[name].to(self.device) if name in self.tensors else found[name].detach()

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Gradients of the outside values, given those of the outputs."""
        self.spent = True
        given = {n: grad for n, grad in zip(self.output_names, grads, strict=True) if grad is not None}
        reached = self.executor.reached(frozenset(given)) & self.needs
        self.arrivals.reached = reached
        seat, edges, self.edges = self.executor.schedule.seat, self.edges, {}
        mute = seat.mute - self.program.shared if seat is not None else ()
        roots, seeds = [], []
        for name, grad in zip(self.output_names, grads, strict=True):
            if grad is not None and name in edges:
                edge, dtype = edges[name]
                roots.append(edge)
                seeds.append(torch.zeros_like(grad, dtype=dtype) if name in mute else grad.to(self.device, dtype))
        ends, self.ends = self.ends, []
        if given:
            roots += ends
            seeds += [self.arrivals.anchor.detach()] * len(ends)
        with around(self.device):
            self._run_backward(roots, seeds)
        found = self.arrivals.wait()
        outside = reached & self.tensors.keys()
        return found | {name: torch.zeros_like(self.tensors[name]) for name in outside - found.keys()}

    @staticmethod
    def _run_backward(roots: Sequence[GradientEdge], seeds: Sequence[Tensor]) -> None:
        try:
            if roots:
                torch.autograd.backward(roots, seeds)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise was_changed("an input, a parameter or an output") from error

    def seed_of(self, node: str) -> Seed:
        return seed_of(self.seed, node)
