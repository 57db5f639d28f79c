"""Networks on 1, 2, 3 and 4 ranks against one process: outputs, gradients of inputs and parameters, buffers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from rank_pool import MeshSpec, Pool, mesh_of
from rank_steps import assert_ranks_agree
from sample_nets import CLOSE, EXACT, WINDOWS, conv
from tasks import plain_step

from tilegrad.testing import assert_same

CORNERS = mesh_of(h=2, w=2)  # whose halos come from beside, below and across
LINES = [mesh_of(w=3), mesh_of(h=4), mesh_of(batch=2, h=2)]
USUAL = [mesh_of(h=1), mesh_of(h=2), CORNERS, *LINES]
OTHERS = [
    mesh_of(w=2), mesh_of(batch=2), mesh_of(h=3), mesh_of(w=4), mesh_of(w=2, h=2), mesh_of(w=2, batch=2),
    mesh_of(batch=1, h=3, w=1), mesh_of(h=2, w=2, ranks=(2, 0, 3, 1)), mesh_of(h=2, w=1, batch=2),
]  # fmt: skip
# On all meshes always: shards smaller than halos, none at all, what is cut by pixels, statistics over all ranks.
HARD = {
    "conv stack, odd", "halo wider than a shard", "maps smaller than the mesh", "one pixel",
    "a parameter for every pixel", "flatten and linear", "batch norm twice",
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def meshes_for(name: str, names: Iterable[str], thorough: bool, lines: Sequence[MeshSpec] = LINES) -> list[MeshSpec]:
    """The one with corners, and one of lines, which take turns over the networks."""
    if thorough or name in HARD:
        return USUAL
    return [CORNERS, lines[list(names).index(name) % len(lines)]]


@pytest.mark.parametrize("name", EXACT)
def test_integers_are_equal(pool: Pool, name: str, thorough: bool) -> None:
    assert_ranks_agree(pool, EXACT[name](), meshes_for(name, EXACT, thorough))


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(pool: Pool, name: str, thorough: bool) -> None:
    assert_ranks_agree(pool, WINDOWS[name](), meshes_for(name, WINDOWS, thorough, LINES[:2]))


@pytest.mark.parametrize("name", CLOSE)
def test_floats_agree(pool: Pool, name: str, thorough: bool) -> None:
    assert_ranks_agree(pool, CLOSE[name](), meshes_for(name, CLOSE, thorough), exact=False)


@pytest.mark.parametrize("mesh", OTHERS, ids=str)
def test_any_mesh(pool: Pool, mesh: MeshSpec) -> None:
    assert_ranks_agree(pool, EXACT["conv stack, odd"](), [mesh])
    assert_ranks_agree(pool, CLOSE["batch norm twice"](), [mesh], exact=False)


@pytest.mark.parametrize("name", ["conv stack", "unet", "a parameter for every pixel", "one pixel"])
def test_exchange_per_layer(pool: Pool, name: str, thorough: bool) -> None:
    meshes = USUAL if thorough else [CORNERS, *LINES[:2]]
    assert_ranks_agree(pool, replace(EXACT[name](), options={"exchange": "layer"}), meshes)


@pytest.mark.parametrize(("mesh", "hosts"), [(mesh_of(h=3), "aab"), (CORNERS, "aabb"), (CORNERS, "aaab")], ids=str)
def test_ranks_of_several_hosts(pool: Pool, mesh: MeshSpec, hosts: str) -> None:
    """Those of one share memory, all others are reached over gloo, in one exchange."""
    for case, exact in ((EXACT["conv stack, odd"](), True), (CLOSE["batch norm twice"](), False)):
        plain = plain_step(copy.deepcopy(case))
        for found in pool.run(mesh, "step_on_hosts", (case, hosts)):
            assert_same(found.step, plain, exact=exact)


def test_a_rank_that_has_left(pool: Pool) -> None:
    for said, works in pool.run(mesh_of(h=2), "step_after_leave", conv(1, 1)):
        assert said.startswith("this rank has taken leave of the mesh") and "try" in said and works


@pytest.mark.parametrize("name", ["conv stack, odd", "a parameter for every pixel", "one pixel"])
def test_messages_through_the_host(pool: Pool, name: str) -> None:
    """As over gloo where tensors are on a GPU."""
    assert_ranks_agree(pool, replace(EXACT[name](), hosted=True), [CORNERS, LINES[0]])
    assert_ranks_agree(pool, replace(CLOSE["batch norm twice"](), hosted=True), [CORNERS], exact=False)
