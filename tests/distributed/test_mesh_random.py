"""Random networks on random meshes: on integers every number is equal to one process's, on floats it agrees.

What cannot be cut is refused by every rank with the same words.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from rank_pool import MeshSpec, Pool, RanksFailed, mesh_of
from rank_steps import assert_ranks_agree
from tasks import Case, plain_step

from drawn_networks import RandomNetwork, networks
from thorough import often
from tilegrad.testing.exact import size_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
REFUSALS = {"GridError", "InputError"}
KNOWN = (
    "has no box rule", "but the array has only", "but input '", "is due", "has no input that can be cut",
    "torch has no name for how it would be cut",
)  # fmt: skip
SHAPES = ((2,), (3,), (4,), (2, 2), (1, 2), (3, 1), (1, 2, 2))


def some(count: int, *, derandomize: bool = True) -> settings:
    quiet = list(HealthCheck)
    return settings(max_examples=count, derandomize=derandomize, suppress_health_check=quiet, database=None)


@st.composite
def meshes(draw: st.DrawFn, network: RandomNetwork) -> MeshSpec:
    """A mesh of two to four ranks, none larger than the image along its axis."""
    n, _, *image = network.shape
    lengths = {"batch": n, **dict(zip("dhw"[-len(image) :], image, strict=True))}
    shape = draw(st.sampled_from(SHAPES))
    names = draw(st.permutations(sorted(lengths)))[: len(shape)]
    assume(len(names) == len(shape))
    assume(all(lengths[name] >= size for name, size in zip(names, shape, strict=True)))
    axes = dict(zip(names, shape, strict=True))
    turned = [(k + 1) % mesh_of(**axes).world for k in range(mesh_of(**axes).world)]
    return mesh_of(**axes, ranks=turned if draw(st.integers(0, 5)) == 5 else None)


@st.composite
def cases(draw: st.DrawFn, **how: Any) -> tuple[Case, MeshSpec]:
    network = draw(networks(**how))
    mesh = draw(meshes(network))
    exchange = draw(st.sampled_from(["segment", "auto", "layer"]))
    inputs, cuts = tuple(network.inputs()), _cuts(draw, network, mesh)
    dims = {at: _dims(x.dim(), len(network.shape) - 2, mesh) for at, x in enumerate(inputs)}
    tiles = draw(st.sampled_from([None, None, 1, 2, 3, 5]))
    return Case(network, inputs, cuts=cuts, dims=dims, tiles=tiles, options={"exchange": exchange}), mesh


def _dims(count: int, image: int, mesh: MeshSpec) -> dict[str, int]:
    """Of an array whose last dimensions are the image's."""
    places = {"batch": 0} | {name: count - image + at for at, name in enumerate("dhw"[-image:])}
    return {name: places[name] for name in mesh.names}


def _cuts(draw: st.DrawFn, network: RandomNetwork, mesh: MeshSpec) -> dict[str, list[int]] | None:
    """Uneven cuts along an axis, now and then, for networks with one input."""
    if draw(st.integers(0, 3)) < 3 or network.end is not None:
        return None
    at = draw(st.integers(0, len(mesh.names) - 1))
    name, size = mesh.names[at], mesh.shape[at]
    image = network.shape
    length = image[0] if name == "batch" else image[len(image) - 1 - "whd".index(name)]
    marks = draw(st.lists(st.integers(0, length), min_size=size - 1, max_size=size - 1))
    return {name: [0, *sorted(marks), length]}


def check(pool: Pool, case: Case, mesh: MeshSpec, *, exact: bool) -> None:
    if not exact:
        wanted = plain_step(Case(copy.deepcopy(case.net), case.inputs))
        assume(max(map(size_of, wanted.gradients.values())) > 1e-6)  # otherwise there is nothing but rounding
    try:
        assert_ranks_agree(pool, case, [mesh], exact=exact, tolerance=1e-10, quiet=1.0)
    except RanksFailed as error:
        words = {f.text for f in error.failures.values()}
        assume("in-place write that cannot be made pure" not in str(words))  # into permuted channels
        refused = len(error.failures) == len(mesh.ranks) and {f.kind for f in error.failures.values()} <= REFUSALS
        if not refused or len(words) > 1 or not any(known in str(words) for known in KNOWN):
            raise
        event("refused")
        return
    event("ran")


@some(often(24, 64))
@given(drawn=cases())
def test_integer_networks_are_equal_on_ranks(pool: Pool, drawn: tuple[Case, MeshSpec]) -> None:
    check(pool, *drawn, exact=True)


@some(often(12, 30))
@given(drawn=cases(exact=False, ends=True))
def test_float_networks_agree_on_ranks(pool: Pool, drawn: tuple[Case, MeshSpec]) -> None:
    check(pool, *drawn, exact=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@some(2000, derandomize=False)
@given(drawn=cases(layers=8))
def test_thousands_of_integer_networks_on_ranks(pool: Pool, drawn: tuple[Case, MeshSpec]) -> None:
    check(pool, *drawn, exact=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@some(1000, derandomize=False)
@given(drawn=cases(exact=False, ends=True, layers=8))
def test_thousands_of_float_networks_on_ranks(pool: Pool, drawn: tuple[Case, MeshSpec]) -> None:
    check(pool, *drawn, exact=False)
