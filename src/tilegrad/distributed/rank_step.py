"""A step of a rank, from its forward to its backward: by a program where everything is kept, else tile by tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
        return self.session.forward()

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
