"""Networks of which every rank runs what is behind a point whole, against one process and against each other."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from rank_pool import Pool, mesh_of
from rank_steps import assert_ranks_agree
from sample_nets import CLOSE, close, conv, exact
from tasks import Found, call_several
from torch import Tensor, nn

from tilegrad.testing import assert_same, integer_module, integer_tensor

TWO, FOUR = mesh_of(h=2), mesh_of(h=2, w=2)
MESHES = [TWO, FOUR, mesh_of(w=3), mesh_of(h=2, w=2, ranks=(2, 0, 3, 1))]


def classifier() -> nn.Module:
    """Three points: in front of each layer with a window but the first."""
    layers = conv(2, 3), nn.ReLU(), conv(3, 3, s=2), nn.MaxPool2d(2, 2), conv(3, 4), nn.AdaptiveMaxPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 3))


def normed() -> nn.Module:
    layers = conv(2, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 4, s=2), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 3)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))


class BothSides(nn.Module):
    """One layer before the point and behind it, and what it made before is an output as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = conv(2, 2), conv(2, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        early = self.layer(x).relu()
        late = self.last(self.layer(early).relu()).amax((2, 3))
        return early, late * self.last.weight.sum()


def assert_bits(every: Sequence[Sequence[Found]]) -> None:
    """All ranks have the same parameters' gradients and buffers, to the last bit."""
    for first, *others in every:
        for other in others:
            assert_same(replace(other.step, outputs={}), replace(first.step, outputs={}))


@pytest.mark.parametrize("point", [0, 1, 2])
def test_integers_are_equal(pool: Pool, point: int) -> None:
    assert_bits(assert_ranks_agree(pool, exact(classifier(), 2, 2, 17, 18, tail=point), MESHES))


@pytest.mark.parametrize("point", [0, -1])
def test_norms_and_their_statistics(pool: Pool, point: int) -> None:
    case = close(normed(), (2, 2, 16, 17), tail=point, steps=2)
    assert_bits(assert_ranks_agree(pool, case, MESHES, exact=False))


@pytest.mark.parametrize("point", [0, 2, -1])
def test_resnet(pool: Pool, point: int) -> None:
    assert_bits(assert_ranks_agree(pool, replace(CLOSE["resnet18"](), tail=point), [TWO, FOUR], exact=False))


def test_a_parameter_on_both_sides(pool: Pool) -> None:
    assert_ranks_agree(pool, exact(BothSides(), 2, 2, 9, 8, tail=0), MESHES)


@pytest.mark.parametrize(
    "how",
    ["two calls, then both backward", "the first output only", "the last output only", "one sum of two calls"],
)
def test_outputs_before_the_point_and_behind_it(pool: Pool, how: str) -> None:
    net, x = integer_module(BothSides(), -1, 1), integer_tensor((2, 2, 9, 8))
    plain, leaf = copy.deepcopy(net), x.clone().requires_grad_()
    call_several(plain, leaf, how)
    wanted = {name: p.grad for name, p in plain.named_parameters()} | {"input": leaf.grad}
    for mesh in (TWO, FOUR):
        for found in pool.run(mesh, "several_calls", (net, x, how, 0)):
            for name, grad in wanted.items():
                assert (found[name] is None) == (grad is None), name
                assert grad is None or torch.equal(found[name], grad), name


@pytest.mark.parametrize("frozen", ["0.", "4. 7.", "0. 2.", "0. 2. 4. 7."])
@pytest.mark.parametrize("graded", [True, False])
def test_frozen_parameters(pool: Pool, frozen: str, graded: bool) -> None:
    case = exact(classifier(), 2, 2, 17, 18, tail=1, graded=(graded,))
    for name, parameter in case.net.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(frozen.split())))
    if graded or frozen != "0. 2. 4. 7.":
        assert_ranks_agree(pool, case, [TWO, FOUR])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("no_grad", [True, False])
def test_modes(pool: Pool, training: bool, no_grad: bool) -> None:
    case = close(normed(), (2, 2, 16, 17), tail=-1, no_grad=no_grad, graded=(not no_grad,))
    case.net.train(training)
    assert_bits(assert_ranks_agree(pool, case, [TWO, FOUR], exact=False))


def test_the_walk_over_the_schedule(pool: Pool) -> None:
    """Which pushes zeros where a program has nothing to do."""
    case = exact(classifier(), 2, 2, 17, 18, tail=1)
    fast, slow = (pool.run(FOUR, task, copy.deepcopy(case)) for task in ("step", "speed_tasks:step_by_step"))
    for one, other in zip(fast, slow, strict=True):
        assert_same(one.step, other.step)


def test_single_precision_is_the_same_to_the_bit(pool: Pool) -> None:
    """Although the second rank is told that its own numbers are others."""
    case = close(normed(), (2, 2, 16, 17), tail=-1)
    case.net.float()
    case = replace(case, inputs=(case.inputs[0].float(),))
    assert_bits([pool.run(mesh, "tail_tasks:with_noise", case) for mesh in (TWO, FOUR)])


def test_gradients_of_the_tail_are_made_once_and_not_added_up(pool: Pool) -> None:
    case = exact(classifier(), 2, 2, 17, 18, tail=2)
    size = sum(p.numel() * p.element_size() for n, p in case.net.named_parameters() if not n.startswith("0."))
    for rank, counted in enumerate(pool.run(TWO, "tail_tasks:count", case)):
        assert counted["backwards"] == (1 if rank else 3)
        assert counted["broadcast_bytes"] == size
        assert counted["gathers"] <= 1  # in which ranks agree on their call
        assert 0 < counted["sums"] <= 1
