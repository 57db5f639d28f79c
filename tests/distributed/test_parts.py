"""Parts: which box each rank reads, from what, and how it finds its way back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rank_pool import MeshSpec, Pool, mesh_of

import tilegrad
from tilegrad.testing import integer_tensor

MESHES = [mesh_of(h=1), mesh_of(h=3), mesh_of(h=2, w=2), mesh_of(batch=2, w=2), mesh_of(w=2, h=2, ranks=(2, 0, 3, 1))]
every_mesh = pytest.mark.parametrize("mesh", MESHES, ids=str)


@every_mesh
def test_a_tensor_is_cut_and_put_together(pool: Pool, mesh: MeshSpec) -> None:
    x = integer_tensor((3, 2, 11, 7))
    count = torch.zeros_like(x)
    for box, shape, local, whole in pool.run(mesh, "cut", (x, {})):
        assert shape == (3, 2, 11, 7)
        assert torch.equal(local, x[box.slices])
        assert torch.equal(whole, x)
        count[box.slices] += 1
    assert bool((count == 1).all())


@every_mesh
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.complex64]
)
def test_any_type(pool: Pool, mesh: MeshSpec, dtype: torch.dtype) -> None:
    x = integer_tensor((2, 1, 5, 3), 0, 1).to(dtype)
    for box, _, local, whole in pool.run(mesh, "cut", (x, {})):
        assert local.dtype == whole.dtype == dtype
        assert torch.equal(local, x[box.slices])
        assert torch.equal(whole, x)


def test_cut_by_hand(pool: Pool) -> None:
    x = integer_tensor((2, 1, 9, 4))
    answers = pool.run(mesh_of(h=3), "cut", (x, {"cuts": {"h": (0, 7, 7, 9)}}))
    assert [(box[2].lo, box[2].hi) for box, *_ in answers] == [(0, 7), (7, 7), (7, 9)]
    for _, _, _, whole in answers:
        assert torch.equal(whole, x)


def test_named_dimensions(pool: Pool) -> None:
    x = integer_tensor((6, 4, 5))
    answers = pool.run(mesh_of(h=2, w=2), "cut", (x, {"dims": {"h": 0, "w": -1}}))
    assert [box.shape for box, *_ in answers] == [(3, 4, 3), (3, 4, 2)] * 2
    for _, _, _, whole in answers:
        assert torch.equal(whole, x)


def test_few_dimensions_are_samples(pool: Pool) -> None:
    answers = pool.run(mesh_of(batch=2, h=2), "cut", (integer_tensor((4, 6)), {}))
    assert [box.shape for box, *_ in answers] == [(2, 6)] * 4


def test_of_a_file_each_rank_reads_its_own_box(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "image.npy"
    image = np.random.default_rng(0).integers(0, 255, (1, 3, 13, 10), dtype=np.uint8)
    np.save(path, image)
    for box, _, local, whole in pool.run(mesh_of(h=2, w=2), "cut_file", str(path)):
        assert np.array_equal(local.numpy(), image[box.slices])
        assert np.array_equal(whole.numpy(), image)


def test_of_an_image_each_rank_reads_its_own_box(pool: Pool, tmp_path: Path) -> None:
    """Opened here, sent to the ranks, and opened again there."""
    np.save(tmp_path / "image.npy", np.random.default_rng(0).integers(0, 255, (13, 10, 3), dtype=np.uint8))
    source = tilegrad.open(tmp_path / "image.npy", scale=1 / 255).rot90()
    seen = source.read()
    for box, _, local, whole in pool.run(mesh_of(h=2, w=2), "cut", (source, {})):
        assert torch.equal(local, seen[box.slices]) and torch.equal(whole, seen)


@every_mesh
def test_only_the_box_is_read(pool: Pool, mesh: MeshSpec) -> None:
    """Of anything with a shape that can be sliced: once, with the slices of the box; and three elements, the same for
    all ranks, that tell it from another."""
    for box, asked, seen in pool.run(mesh, "cut_recorded", (3, 2, 11, 7)):
        assert [a for a in asked if a != box.slices] == [
            tuple(slice(k, k + 1) for k in at) for at in ((0, 0, 0, 0), (1, 0, 10, 6), (2, 1, 10, 6))
        ]
        assert asked.count(box.slices) == 1
        assert seen == box.shape


@every_mesh
def test_gradients_flow_through_local(pool: Pool, mesh: MeshSpec) -> None:
    for grad, box in pool.run(mesh, "grade_part", integer_tensor((3, 2, 11, 7))):
        assert torch.equal(grad, 2 * integer_tensor((3, 2, 11, 7))[box.slices])


@pytest.mark.parametrize("mesh", [mesh_of(h=3), mesh_of(h=2, w=2)], ids=str)
def test_from_boxes_and_to_dtensors(pool: Pool, mesh: MeshSpec) -> None:
    x = integer_tensor((2, 1, 11, 7))
    for box, whole, dtensor, grad in pool.run(mesh, "boxes_and_dtensors", x):
        assert torch.equal(whole, x) and torch.equal(dtensor, x)
        assert torch.equal(grad, 2 * x[box.slices])
