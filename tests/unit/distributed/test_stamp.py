"""What tells an array from another before ranks cut their parts from it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilegrad
from tilegrad.distributed.digest import differ, outline
from tilegrad.distributed.stamp import stamp_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image.npy"
    np.save(path, np.arange(2 * 3 * 40 * 50, dtype=np.float32).reshape(2, 3, 40, 50))
    return path


def views(x: Any) -> list[Any]:
    """Of one shape."""
    return [x[:, :, :32, :32], x[:, :, 1:33, :32], x[:, :, :32, 1:33], x[:, :, 8:, 18:]]


def flipped(x: Any) -> list[Any]:
    return [x.flip(2), x.flip(3), x.flip((2, 3))]


def test_views_of_a_file_that_is_mapped_differ(file: Path) -> None:
    x = np.load(file, mmap_mode="r")
    every = [*views(x), x[:, :, ::-1], x[:, :, :, ::-1], x[:, ::-1], *views(x[:, :, 2:])[:1]]
    assert len({str(stamp_of(view)) for view in every}) == len(every)
    again = np.load(file, mmap_mode="r")
    assert stamp_of(views(x)[1]) == stamp_of(views(again)[1]) == stamp_of(x[:, :, 1:][:, :, :32, :32])


def test_views_of_an_opened_file_differ(file: Path) -> None:
    x = tilegrad.open(file)
    every = [*views(x), x, *flipped(x), x * 2, x * 3, x * torch.ones(3, 1, 1)]
    assert len({stamp_of(view) for view in every}) == len(every)
    assert stamp_of(views(x)[1]) == stamp_of(views(tilegrad.open(file))[1])
    assert stamp_of(pickle.loads(pickle.dumps(x))) == stamp_of(x)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_arrays_in_memory_differ_by_their_elements(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 200, (2, 3, 40, 50)).astype(dtype)
    for other in (x[:, :, ::-1], x + dtype(1), x[::-1]):
        assert stamp_of(x) != stamp_of(other)
        assert stamp_of(tilegrad.open(x)) != stamp_of(tilegrad.open(np.ascontiguousarray(other)))
    assert stamp_of(x) == stamp_of(np.asfortranarray(x)) and stamp_of(x) == stamp_of(x.copy())
    assert stamp_of(np.zeros((0, 3), dtype)) == stamp_of(np.zeros((0, 3), dtype))


def test_outlines_see_content_and_not_rounding() -> None:
    torch.manual_seed(0)  # one number tells two tensors apart but for one time in twenty: of these, always
    x = torch.randn(1000, dtype=torch.float64)

    def apart(a: torch.Tensor, b: torch.Tensor) -> bool:
        return differ(outline(a).tolist(), outline(b).tolist())

    assert not apart(x, x) and not apart(x, x.bfloat16()) and not apart(0 * x, 0 * x)
    assert apart(x, -x) and apart(x, x.flip(0)) and apart(x, 0 * x) and apart(x, torch.randn_like(x))
    broken = torch.full_like(x, torch.inf)
    assert not apart(broken, broken) and apart(x, broken) and apart(x, x * torch.nan)
