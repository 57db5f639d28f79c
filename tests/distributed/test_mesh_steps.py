"""Ways to run a step on ranks: accumulated, without gradients, in other precisions and layouts, with other cuts."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from rank_pool import MeshSpec, Pool, mesh_of
from rank_steps import assert_ranks_agree, joined
from sample_nets import CLOSE, EXACT, close, conv, exact
from tasks import Case, call_several, train_steps
from torch import Tensor, nn

import tilegrad
from tilegrad.testing import assert_same, integer_module, integer_tensor, run_step

TWO, THREE = mesh_of(h=2), mesh_of(w=3)
FOUR, PAIRS = mesh_of(h=2, w=2), mesh_of(batch=2, h=2)


@pytest.fixture
def few(thorough: bool) -> list[MeshSpec]:
    """How a step is run does not depend on how the image is cut: three along a line, and two axes, one of samples."""
    return [TWO, THREE, FOUR, PAIRS] if thorough else [THREE, PAIRS]


@pytest.fixture
def crossed(thorough: bool) -> list[MeshSpec]:
    """Where gradients are added up: two axes, over which nothing may be counted twice."""
    return [TWO, THREE, FOUR, PAIRS] if thorough else [FOUR, PAIRS]


def classifier() -> nn.Module:
    return nn.Sequential(
        conv(2, 4),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        conv(4, 4, s=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


@pytest.mark.parametrize("name", ["conv stack", "flatten and linear", "a parameter for every pixel"])
def test_gradients_add_up_over_two_steps(pool: Pool, name: str, crossed: list[MeshSpec]) -> None:
    assert_ranks_agree(pool, replace(EXACT[name](), steps=2), crossed)


def test_statistics_move_on_over_two_steps(pool: Pool, crossed: list[MeshSpec]) -> None:
    assert_ranks_agree(pool, replace(CLOSE["batch norm twice"](), steps=2), crossed, exact=False)


@pytest.mark.parametrize("training", [True, False])
def test_without_gradients(pool: Pool, training: bool, few: list[MeshSpec]) -> None:
    case = close(classifier(), (2, 2, 12, 9), no_grad=True, graded=(False,))
    case.net.train(training)
    assert_ranks_agree(pool, case, few, exact=False)
    assert_ranks_agree(pool, replace(EXACT["unet"](), no_grad=True, graded=(False,)), [THREE])


def test_evaluation_with_gradients(pool: Pool, few: list[MeshSpec]) -> None:
    case = close(classifier(), (2, 2, 12, 9))
    case.net.eval()
    assert_ranks_agree(pool, case, few, exact=False)


def test_an_input_without_gradient(pool: Pool, few: list[MeshSpec]) -> None:
    assert_ranks_agree(pool, replace(EXACT["unet"](), graded=(False,)), few)
    assert_ranks_agree(pool, close(classifier(), (2, 2, 12, 9), graded=(False,)), few, exact=False)


@pytest.mark.parametrize("frozen", ["0.", "2.", "0. 1.", "0. 2. 4."])
def test_frozen_parameters(pool: Pool, frozen: str) -> None:
    case = EXACT["conv stack"]()
    for name, parameter in case.net.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(frozen.split())))
    for graded in (True, False):
        if graded or frozen != "0. 2. 4.":
            assert_ranks_agree(pool, replace(case, graded=(graded,)), [TWO, PAIRS])


@pytest.mark.parametrize(
    ("mesh", "cuts"),
    [
        (TWO, {"h": (0, 3, 17)}),
        (TWO, {"h": (0, 0, 17)}),  # a rank without rows
        (THREE, {"w": (0, 13, 13, 14)}),
        (FOUR, {"h": (0, 16, 17)}),
        (FOUR, {"h": (0, 2, 17), "w": (0, 11, 14)}),
        (PAIRS, {"batch": (0, 2, 2), "h": (0, 9, 17)}),
    ],
    ids=str,
)
def test_uneven_cuts(pool: Pool, mesh: object, cuts: dict[str, tuple[int, ...]]) -> None:
    assert_ranks_agree(pool, replace(EXACT["unet"](), cuts=cuts), [mesh])  # type: ignore[list-item]
    case = close(classifier(), (2, 2, 17, 14), cuts=cuts)
    assert_ranks_agree(pool, case, [mesh], exact=False)  # type: ignore[list-item]


def test_images_of_one_axis(pool: Pool) -> None:
    net = nn.Sequential(
        nn.Conv1d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv1d(3, 3, 3, 2, 1), nn.ConvTranspose1d(3, 2, 4, 2, 1)
    )
    assert_ranks_agree(pool, exact(net, 2, 1, 23), [mesh_of(w=2), mesh_of(w=3), mesh_of(batch=2, w=2), mesh_of(w=4)])


def test_images_of_three_axes(pool: Pool) -> None:
    net = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(2, 2, 3, 2, 1))
    meshes = [mesh_of(d=2), mesh_of(d=2, w=2), mesh_of(h=3), mesh_of(batch=2, d=2), mesh_of(d=4)]
    assert_ranks_agree(pool, exact(net, 2, 1, 9, 8, 7), meshes)


def test_channels_last(pool: Pool, few: list[MeshSpec]) -> None:
    case = EXACT["unet"]()
    (x,) = case.inputs
    case.net.to(memory_format=torch.channels_last)
    assert_ranks_agree(pool, replace(case, inputs=(x.to(memory_format=torch.channels_last),)), few)


def test_single_precision(pool: Pool, few: list[MeshSpec]) -> None:
    case = close(classifier(), (2, 2, 13, 12))
    case.net.float()
    assert_ranks_agree(
        pool, replace(case, inputs=(case.inputs[0].float(),)), few, exact=False, tolerance=1e-5, quiet=1.0
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(pool: Pool, dtype: torch.dtype, few: list[MeshSpec]) -> None:
    case = close(classifier(), (2, 2, 13, 12))
    case.net.float()
    case = replace(case, inputs=(case.inputs[0].float(),), autocast=dtype)
    assert_ranks_agree(pool, case, few, exact=False, tolerance=0.05, quiet=0.5)


def test_half_precision_all_through(pool: Pool, few: list[MeshSpec]) -> None:
    case = close(nn.Sequential(conv(2, 4), nn.ReLU(), conv(4, 2)), (2, 2, 13, 12))
    case.net.bfloat16()
    case = replace(case, inputs=(case.inputs[0].bfloat16(),))
    assert_ranks_agree(pool, case, few, exact=False, tolerance=0.05, quiet=0.5)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout2d(0.5)])
def test_dropout_depends_on_no_cut(pool: Pool, layer: nn.Module, few: list[MeshSpec]) -> None:
    """The same mask as in one process in tiles, for any number of ranks, although each has drawn other numbers."""
    net = integer_module(nn.Sequential(conv(2, 4), layer, conv(4, 2), nn.Flatten(), nn.Dropout(0.5)), -1, 1)
    x = integer_tensor((2, 2, 13, 12))
    torch.manual_seed(5)
    wanted = run_step(tilegrad.tile(copy.deepcopy(net), tile={"h": 4}), [x])
    for mesh in [mesh_of(h=1), *few]:
        for step in joined(pool.run(mesh, "step", Case(net, (x,), seed=5))):
            assert_same(step, wanted)


def test_ranks_run_other_shapes_and_modes_in_turn(pool: Pool, few: list[MeshSpec]) -> None:
    """One module, many plans."""
    case = close(classifier(), (2, 2, 13, 12))
    sizes = [(2, 2, 13, 12), (2, 2, 9, 20), (4, 2, 13, 12), (2, 2, 13, 12)]
    wanted = plain_losses(copy.deepcopy(case.net), sizes)
    for mesh in few:
        for losses in pool.run(mesh, "train", (case.net, sizes)):
            torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-9, atol=0)


def plain_losses(net: nn.Module, sizes: list[tuple[int, ...]]) -> list[float]:
    return train_steps(net, net, sizes, lambda x: x)


class Outputs(nn.Module):
    """A map, a smaller map, and a number for each channel from an earlier one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(2, 2), conv(2, 2), conv(2, 2, s=2)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.a(x).relu()
        return self.b(first), self.c(first), first.sum((0, 2, 3))


@pytest.mark.parametrize(
    "how",
    [
        "two calls, then both backward",
        "one sum of two calls",
        "the first output only",
        "the last output only",
        "a call without backward between",
    ],
)
def test_several_calls(pool: Pool, how: str, crossed: list[MeshSpec]) -> None:
    net, x = integer_module(Outputs(), -1, 1), integer_tensor((2, 2, 9, 8))
    plain, leaf = copy.deepcopy(net), x.clone().requires_grad_()
    call_several(plain, leaf, how)
    wanted = {name: p.grad for name, p in plain.named_parameters()} | {"input": leaf.grad}
    for mesh in crossed:
        for found in pool.run(mesh, "several_calls", (net, x, how, None, False)):
            for name, grad in wanted.items():
                assert (found[name] is None) == (grad is None), name
                assert grad is None or torch.equal(found[name], grad), name


def test_weights_on_space_in_tiles_of_whole_images(pool: Pool) -> None:
    """Ranks have samples: they stream along an axis that the mesh has not, and nobody owns a box of the weights."""
    case = replace(EXACT["a parameter for every pixel"](), tiles=3)
    for found in assert_ranks_agree(pool, case, [mesh_of(batch=2)]):
        assert all(not one.boxes for one in found)
