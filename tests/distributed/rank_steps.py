"""A step on ranks against the same step in one process."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import torch
from rank_pool import MeshSpec, Pool
from tasks import Case, Found, plain_step
from torch import Tensor

from tilegrad.testing import assert_same
from tilegrad.testing.exact import StepResult

TOLERANCE = 1e-12  # of the largest entry


def assert_ranks_agree(
    pool: Pool, case: Case, meshes: Sequence[MeshSpec], *, exact: bool = True, tolerance: float = TOLERANCE,
    quiet: float = 1e-3,
) -> list[list[Found]]:  # fmt: skip
    """Every rank of every mesh has what one process has, and has sent what the plan says. What they found, by mesh."""
    wanted = plain_step(copy.deepcopy(case))
    every = []
    for mesh in meshes:
        found = pool.run(mesh, "step", case)
        for rank, step in zip(mesh.ranks, joined(found), strict=True):
            note = f"rank {rank} of {mesh} differs from one process"
            assert_same(step, wanted, exact=exact, tolerance=tolerance, quiet=quiet, note=note)
        for rank, one in zip(mesh.ranks, found, strict=True):
            planned = tuple(case.steps * n for n in one.traffic.planned)
            assert one.traffic.counted == planned, f"rank {rank} of {mesh} sent other bytes than planned"
        every.append(found)
    return every


def joined(found: Sequence[Found]) -> list[StepResult]:
    """What every rank found, with gradients of parameters that are cut put together from all ranks."""
    wholes: dict[str, Tensor] = {}
    for one in found:
        for name, (box, shape) in one.boxes.items():
            grad = one.step.gradients[name]
            if grad is None:  # nothing that is given back depends on it
                continue
            assert tuple(grad.shape) == box.shape
            whole = wholes.setdefault(name, torch.full(shape, torch.nan, dtype=grad.dtype))
            there = whole[box.slices]
            assert bool((there.isnan() | (there == grad)).all()), f"ranks that share a box of {name} differ"
            whole[box.slices] = grad
    return [dataclasses.replace(one.step, gradients={**one.step.gradients, **wholes}) for one in found]
