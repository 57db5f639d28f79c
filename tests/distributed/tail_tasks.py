"""What ranks run for tests of a tail: rounding of their own, and what they send."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from tasks import Case, Found, behind, run_once, step
from torch import Tensor

import tilegrad
from tilegrad.distributed import part
from tilegrad.execution.tail import Threshold


def with_noise(mesh: Any, case: Case) -> Found:
    """A rank that is not the first rounds otherwise: what it makes behind the point is a little larger."""
    cross = Threshold.cross

    def rounded(self: Threshold, arrivals: Any, tensor: Tensor) -> tuple[Tensor, Tensor]:
        token, value = cross(self, arrivals, tensor)
        return token, value * (1 + 1e-6 * dist.get_rank())

    with mock.patch.object(Threshold, "cross", rounded):
        return step(mesh, case)


def count(mesh: Any, case: Case) -> dict[str, float]:
    """What a rank sends in a step, once everything is made; and of how many convolutions it makes gradients."""
    tiled, x = tilegrad.tile(case.net, mesh=mesh), part(case.inputs[0], mesh)
    torch.manual_seed(0)
    with behind(case.tail, case.shared):
        for _ in range(3):  # in the first, second, fourth, … ranks compare their parameters
            tiled.traffic.clear()
            run_once(tiled, [x], case)
        traffic = asdict(tiled.traffic)
        with torch.autograd.profiler.profile() as found:
            run_once(tiled, [x], case)
    return traffic | {"backwards": sum(each.name == "aten::convolution_backward" for each in found.function_events)}
