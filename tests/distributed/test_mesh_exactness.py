"""Networks on 1, 2, 3 and 4 ranks against one process: outputs, gradients of inputs and parameters, buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rank_pool import MeshSpec, Pool, mesh_of
from rank_steps import assert_ranks_agree
from sample_nets import CLOSE, EXACT, WINDOWS

USUAL = [mesh_of(h=1), mesh_of(h=2), mesh_of(w=3), mesh_of(h=4), mesh_of(h=2, w=2), mesh_of(batch=2, h=2)]
EVERY = [
    *USUAL, mesh_of(w=2), mesh_of(batch=2), mesh_of(h=3), mesh_of(w=4), mesh_of(w=2, h=2), mesh_of(w=2, batch=2),
    mesh_of(batch=1, h=3, w=1), mesh_of(h=2, w=2, ranks=(2, 0, 3, 1)), mesh_of(h=2, w=1, batch=2),
]  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


@pytest.mark.parametrize("name", EXACT)
def test_integers_are_equal(pool: Pool, name: str) -> None:
    assert_ranks_agree(pool, EXACT[name](), USUAL)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(pool: Pool, name: str) -> None:
    assert_ranks_agree(pool, WINDOWS[name](), USUAL[1:5])


@pytest.mark.parametrize("name", CLOSE)
def test_floats_agree(pool: Pool, name: str) -> None:
    large = name in ("resnet18", "unet with batch norm")
    assert_ranks_agree(pool, CLOSE[name](), USUAL[2::2] if large else USUAL, exact=False)


@pytest.mark.parametrize("mesh", EVERY, ids=str)
def test_any_mesh(pool: Pool, mesh: MeshSpec) -> None:
    assert_ranks_agree(pool, EXACT["conv stack, odd"](), [mesh])
    assert_ranks_agree(pool, CLOSE["batch norm twice"](), [mesh], exact=False)


@pytest.mark.parametrize("name", ["conv stack", "unet", "a parameter for every pixel", "one pixel"])
def test_exchange_per_layer(pool: Pool, name: str) -> None:
    assert_ranks_agree(pool, replace(EXACT[name](), options={"exchange": "layer"}), USUAL)
