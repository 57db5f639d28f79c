"""A step of a rank, from its forward to its backward: by a program where everything is kept, else tile by tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..execution import Pass, RankPass
from ..execution.unchanged import version_of, was_changed

if TYPE_CHECKING:
    from .module import RankRunner


class RankStep:
    """A pass of a rank whose parameters may be DTensors, and have replicas."""

    def __init__(self, runner: RankRunner, tensors: Mapping[str, Tensor], module: nn.Module):
        run = RankPass if runner.plan.replays and not runner.engine.written else Pass
        self.session = run(runner.engine, tensors, runner.group.device, seed=runner.seed(), peers=runner.group)
        self.tensors, self.needs, self.output_names = tensors, self.session.needs, self.session.output_names
        self.runner = runner
        self.sharded = dict(module.named_parameters()) if runner.cut else {}
        self.before = {name: version_of(p) for name, p in self.sharded.items()}  # which their local tensors do not tell

    @property
    def spent(self) -> bool:
        return self.session.spent

    def forward(self) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
        outputs, updates = self.session.forward()
        told = self.runner.mesh_plan.told_buffers
        mine = [(name, value) for name, value in updates if name in told and value.is_floating_point()]
        firsts = dict[str, Tensor]()
        for dtype in dict.fromkeys(value.dtype for _, value in mine):
            firsts |= self._firsts([(name, value) for name, value in mine if value.dtype == dtype])
        return outputs, [(name, firsts.get(name, value)) for name, value in updates]

    def _firsts(self, values: Sequence[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """What the first rank has."""
        group, flat = self.runner.group, torch.cat([value.reshape(-1) for _, value in values])
        group.broadcast("the buffers", flat, frozenset(group.mesh.axes)).wait()
        pieces = flat.split_with_sizes([value.numel() for _, value in values])
        return {name: piece.view(value.shape) for (name, value), piece in zip(values, pieces, strict=True)}

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        for name, parameter in self.sharded.items():
            if version_of(parameter) != self.before[name]:
                raise was_changed(f"'{name}'")
        given = zip(self.output_names, grads, strict=True)
        shared = [g for name, g in given if g is not None and not self.runner.lies_on_mesh(name)]
        self.runner.agreement.went_back(shared)
        found = self.session.backward(grads)
        if self.runner.replicas is not None:
            self.runner.replicas.reduce(
                [found[name] for name in sorted(found.keys() & self.runner.captured.slots.keys())]
            )
        return found
