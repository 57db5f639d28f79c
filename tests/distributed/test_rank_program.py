"""The program of a rank that keeps everything: the same numbers as the walk over its schedule, in few calls."""

from __future__ import annotations

import copy

import pytest
import torch
from rank_pool import MeshSpec, Pool, mesh_of
from rank_steps import joined
from sample_nets import EXACT

from tilegrad.models import resnet18
from tilegrad.testing import assert_same


@pytest.mark.parametrize("name", ["conv stack", "unet", "a parameter for every pixel", "flatten and linear"])
@pytest.mark.parametrize("mesh", [mesh_of(h=2), mesh_of(h=2, w=2)], ids=str)
def test_the_program_gives_what_the_walk_gives(pool: Pool, name: str, mesh: MeshSpec) -> None:
    case = EXACT[name]()
    fast, slow = (joined(pool.run(mesh, task, copy.deepcopy(case))) for task in ("step", "speed_tasks:step_by_step"))
    for one, other in zip(fast, slow, strict=True):
        assert_same(one, other)


def test_a_step_of_resnet18_makes_few_calls(pool: Pool) -> None:
    torch.manual_seed(0)
    net = resnet18(width=0.25)
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    norms = sum(isinstance(m, torch.nn.BatchNorm2d) for m in net.modules())
    counted = pool.run(mesh_of(h=2), "speed_tasks:count_step", (net, (1, 3, 96, 96)))
    for found in counted:
        assert found["calls"] <= 10_000  # functions in Python; it was 30,000
        folds, buckets = norms + 1, 1 + 2 * size // 2**20  # the pool is a fold, too; each two of buckets fill one
        assert 0 < found["gathers"] <= folds + 1  # and one in which ranks agree on their call
        assert 0 < found["sums"] + found["broadcasts"] <= folds + buckets
    told = (found[kind] for found in counted for kind in ("summed_bytes", "broadcast_bytes"))
    assert sum(told) >= size  # of some weights each rank tells its rows
