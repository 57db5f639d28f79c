"""What cannot be run is refused by every rank with the same words, and the ranks can go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from rank_pool import MeshSpec, Pool, mesh_of
from rank_steps import assert_ranks_agree
from sample_nets import EXACT, conv, exact
from tasks import Case
from torch import Tensor, nn

from drawn_layers import Applied
from tilegrad.testing import integer_tensor

TWO, FOUR = mesh_of(h=2), mesh_of(h=2, w=2)
X = integer_tensor((4, 1, 8, 8))


def refusal(pool: Pool, mesh: MeshSpec, task: str, payload: Any) -> str:
    """What every rank is told, which must be the same."""
    starts = pool.starts
    answers = set(pool.run(mesh, "refused", (task, payload), hang_s=40))
    assert len(answers) == 1, answers
    for *_, whole in pool.run(mesh, "cut", (X, {})):  # the ranks can go on, and nobody is a message behind
        assert torch.equal(whole, X)
    assert pool.starts - starts <= 1 and mesh.world in pool.worlds
    return str(answers.pop())


def apart(pool: Pool, *cases: Case, mesh: MeshSpec = TWO) -> str:
    """The refusal where every rank has another case."""
    return refusal(pool, mesh, "odd_one", (list(cases),))


def net(channels: int = 2) -> nn.Module:
    return nn.Sequential(conv(2, channels), nn.ReLU(), conv(channels, 2))


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(x)


@pytest.mark.parametrize(
    ("mesh", "shape", "words"),
    [
        (mesh_of(h=4), (2, 2, 3, 9), "4 ranks along h, but the array has only 3 elements there"),
        (mesh_of(h=2, w=2), (2, 2, 9, 1), "2 ranks along w, but the array has only 1 elements there"),
        (mesh_of(batch=2, h=2), (1, 2, 9, 9), "2 ranks along n, but the array has only 1 elements there"),
    ],
    ids=str,
)
def test_a_mesh_larger_than_the_image(pool: Pool, mesh: MeshSpec, shape: Sequence[int], words: str) -> None:
    assert words in refusal(pool, mesh, "step", exact(net(), *shape))


@pytest.mark.parametrize(
    ("layer", "op"),
    [
        (Exponential(), "linalg_matrix_exp"),
        (Applied(torch.linalg.inv), "linalg_inv"),
        (Applied(torch.fft.fft2), "fft"),
    ],
    ids=["matrix_exp", "inv", "fft2"],
)
def test_an_operator_without_a_box_rule(pool: Pool, layer: nn.Module, op: str) -> None:
    said = refusal(pool, FOUR, "step", exact(nn.Sequential(conv(2, 2), layer), 2, 2, 8, 8))
    assert op in said and ("has no box rule" in said or "has no input that can be cut" in said)


def test_a_whole_tensor_where_a_part_is_due(pool: Pool) -> None:
    said = refusal(pool, FOUR, "step", exact(net(), 2, 2, 9, 8, whole=(0,)))
    assert "lies on the mesh, but is a whole tensor" in said and "part(x, mesh)" in said


def test_a_whole_tensor_on_one_rank(pool: Pool) -> None:
    case = exact(net(), 2, 2, 9, 8)
    said = apart(pool, case, replace(case, whole=(0,)))
    assert "the ranks disagree on inputs" in said and "part of" in said and "tensor (2, 2, 9, 8)" in said


def test_a_whole_tensor_without_gradients(pool: Pool) -> None:
    said = refusal(pool, FOUR, "step", exact(net(), 2, 2, 9, 8, whole=(0,), no_grad=True, graded=(False,)))
    assert "is a whole tensor" in said


def test_a_part_where_a_whole_tensor_is_due(pool: Pool) -> None:
    case = exact(Positioned(), 2, 2, 9, 8)
    case = replace(case, inputs=(*case.inputs, integer_tensor((2, 1, 1))), dims={1: {"h": 0}})
    assert "is cut into" in refusal(pool, TWO, "step", case)


class Positioned(nn.Module):
    """An image and gains by channel."""

    def forward(self, x: Tensor, gains: Tensor) -> Tensor:
        return x * gains


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"dims": {"h": 1}}, "is due"),  # cut along channels
        ({"dims": {"w": 3}}, "do not fit a mesh of h"),
        ({"dims": {"depth": 2}}, "do not fit a mesh of h"),
        ({"dims": {"h": 9}}, "do not fit a mesh of h"),
        ({"dims": {"h": -5}}, "do not fit a mesh of h"),
        ({"cuts": {"h": (0, 5, 8)}}, "cannot be cut at"),
        ({"cuts": {"h": (0, 9)}}, "cannot be cut at"),
        ({"cuts": {"w": (0, 4, 8)}}, "cannot be cut at"),
        ({"cuts": {"h": (0, 12, 9)}}, "cannot be cut at"),
    ],
    ids=str,
)
def test_wrong_dimensions_and_cuts(pool: Pool, how: dict[str, Any], words: str) -> None:
    case = exact(net(), 2, 2, 9, 8)
    case = replace(case, cuts=how.get("cuts"), dims={0: how["dims"]} if "dims" in how else {})
    assert words in refusal(pool, TWO, "step", case)


def test_inputs_that_are_cut_differently(pool: Pool) -> None:
    assert "cut differently along h" in refusal(pool, TWO, "cut_apart", integer_tensor((1, 2, 9, 8)))


def test_ranks_disagree_on_the_image(pool: Pool) -> None:
    said = apart(pool, exact(net(), 2, 2, 9, 8), exact(net(), 2, 2, 10, 8))
    assert "the ranks disagree on" in said


def test_ranks_disagree_on_the_type(pool: Pool) -> None:
    case = exact(net(), 2, 2, 9, 8)
    single = Case(exact(net(), 2, 2, 9, 8).net.float(), (case.inputs[0].float(),))
    assert "the ranks disagree on" in apart(pool, case, single)


def test_ranks_disagree_on_the_module(pool: Pool) -> None:
    assert "the ranks disagree on 0.weight" in apart(pool, exact(net(2), 2, 2, 9, 8), exact(net(3), 2, 2, 9, 8))


@pytest.mark.parametrize(("option", "a", "b"), [("budget", "1GiB", "2GiB"), ("exchange", "layer", "segment")])
def test_ranks_disagree_on_options(pool: Pool, option: str, a: str, b: str) -> None:
    case = exact(net(), 2, 2, 9, 8)
    said = apart(pool, replace(case, options={option: a}), replace(case, options={option: b}))
    assert f"the ranks disagree on {option}" in said and a in said and b in said


def test_ranks_disagree_on_cuts(pool: Pool) -> None:
    case = exact(net(), 2, 2, 9, 8)
    said = apart(pool, replace(case, cuts={"h": (0, 4, 9)}), replace(case, cuts={"h": (0, 5, 9)}))
    assert "the ranks disagree on" in said


def test_ranks_disagree_on_training(pool: Pool) -> None:
    case, other = exact(net(), 2, 2, 9, 8), exact(net(), 2, 2, 9, 8)
    other.net.eval()
    assert "the ranks disagree on training" in apart(pool, case, other)


def test_ranks_disagree_on_gradients(pool: Pool) -> None:
    case = exact(net(), 2, 2, 9, 8)
    assert "the ranks disagree on gradients" in apart(pool, case, replace(case, no_grad=True, graded=(False,)))


def test_ranks_disagree_on_what_needs_a_gradient(pool: Pool) -> None:
    case = exact(net(), 2, 2, 9, 8)
    assert "the ranks disagree on" in apart(pool, case, replace(case, graded=(False,)))


def test_ranks_disagree_on_frozen_parameters(pool: Pool) -> None:
    case, other = exact(net(), 2, 2, 9, 8), exact(net(), 2, 2, 9, 8)
    for parameter in other.net[0].parameters():
        parameter.requires_grad_(False)
    assert "the ranks disagree on" in apart(pool, case, other)


def test_only_one_rank_can_plan(pool: Pool) -> None:
    """One has an operator that cannot be cut: the others are told its words."""
    case, other = (exact(nn.Sequential(conv(2, 2), last), 2, 2, 8, 8) for last in (nn.ReLU(), Exponential()))
    said = apart(pool, case, other)
    assert "rank 1 cannot run this: 'linalg_matrix_exp' has no box rule" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exchange": "never"}, "halos cannot be exchanged per 'never'"),
        ({"tile": {"h": 2}}, "with a mesh there is a budget"),
        ({"budget": "lots"}, "lots"),
        ({"budget": "1KiB"}, "nothing fits"),
    ],
    ids=str,
)
def test_wrong_options(pool: Pool, options: dict[str, Any], words: str) -> None:
    assert words in refusal(pool, TWO, "step", exact(net(), 2, 2, 9, 8, options=options))


def test_names_of_axes(pool: Pool) -> None:
    assert "among batch, d, h and w" in refusal(pool, TWO, "misnamed", ("x",))
    assert "a mesh must be a torch DeviceMesh, not str" in refusal(pool, TWO, "no_mesh", None)


def test_ranks_disagree_in_a_later_call(pool: Pool) -> None:
    """Both sizes are planned already, so no rank has to ask."""
    one, other = (2, 2, 9, 8), (1, 2, 9, 8)
    said = refusal(pool, TWO, "odd_second", (exact(net(), 2, 2, 9, 8).net, [[one, other, one], [one, other, other]]))
    assert "the ranks disagree on inputs" in said and "(2, 2, 9, 8)" in said and "(1, 2, 9, 8)" in said
    said = refusal(pool, TWO, "odd_second", (exact(net(), 2, 2, 9, 8).net, [[one, one], [one, other]]))
    assert "the ranks disagree on inputs" in said


def test_after_a_refusal_ranks_train(pool: Pool) -> None:
    for mesh in (TWO, FOUR):
        refusal(pool, mesh, "no_mesh", None)
        assert_ranks_agree(pool, EXACT["conv stack"](), [mesh])
