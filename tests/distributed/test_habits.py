"""What people do with many ranks gives what one process gives."""

from __future__ import annotations

from typing import Any

import mesh_habits
import pytest
import torch
from habits import HABITS, live
from rank_pool import MeshSpec, Pool, mesh_of
from torch import Tensor
from torch.utils import _pytree as pytree

import thorough

LOOSE = {"autocast_on_off_and_on": 0.02}  # half precision
ALL = list(HABITS)
CUT_ALONG_BATCH = ["a_cross_entropy", "labels_of_images", "two_outputs_two_losses", "a_moving_average", "a_dice_loss"]
SOME = ALL if thorough.slow else ALL[::2]  # each is lived on two ranks
MESHES = [(mesh_of(h=2), ALL), (mesh_of(h=2, w=2), SOME), (mesh_of(batch=2, h=2), CUT_ALONG_BATCH)]


@pytest.mark.parametrize(("mesh", "names"), MESHES, ids=lambda item: str(item) if isinstance(item, MeshSpec) else "")
def test_habits(pool: Pool, mesh: MeshSpec, names: list[str]) -> None:
    wanted = live(None, names)
    for rank, found in zip(mesh.ranks, pool.run(mesh, "habits:live", names, hang_s=200), strict=True):
        for name in names:
            compare(found[name], wanted[name], LOOSE.get(name, 1e-9), f"{name}, rank {rank}")


def test_axes_of_data_beside_the_image(pool: Pool) -> None:
    """Averaged here, by DDP, by `fully_shard` inside and outside: three steps are those of one process."""
    mesh, names = mesh_of(dp=2, h=2), list(mesh_habits.WAYS)
    wanted = mesh_habits.plain()
    for rank, found in zip(mesh.ranks, pool.run(mesh, "mesh_habits:live", names, hang_s=120), strict=True):
        for name in names:
            compare(found[name], wanted, 1e-9, f"{name}, rank {rank}")


def compare(found: Any, wanted: Any, tolerance: float, note: str) -> None:
    ours, theirs = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    assert len(ours) == len(theirs), note
    for mine, plain in zip(ours, theirs, strict=True):
        if not isinstance(plain, Tensor):
            assert mine == plain, note
            continue
        assert isinstance(mine, Tensor), f"{note}: {type(mine)}"
        rtol = max(tolerance, 1e-6) if plain.dtype == torch.float32 else tolerance
        torch.testing.assert_close(mine, plain, rtol=rtol, atol=rtol * 1e-2, msg=lambda text: f"{note}: {text}")
