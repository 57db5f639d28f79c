"""Networks of which every rank runs what is behind a point whole, against one process and against each other.

`SHARED`: but for convolutions behind it, of which each rank makes some channels (`execution/by_channels.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from rank_pool import Pool, mesh_of
from rank_steps import assert_ranks_agree
from sample_nets import CLOSE, close, conv, exact
from tasks import Found, call_several
from torch import Tensor, nn

from tilegrad.testing import assert_same, integer_module, integer_tensor

TWO, FOUR = mesh_of(h=2), mesh_of(h=2, w=2)
SHARED = pytest.mark.parametrize("shared", [False, True])
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
        self.layer, self.between, self.last = conv(2, 2), conv(2, 2, s=2), conv(2, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        early = self.layer(x).relu()
        late = self.last(self.between(self.layer(early).relu())).amax((2, 3))
        return early, late * self.last.weight.sum()


class Mixed(nn.Module):
    """Behind the point layers that ranks share, and some that they do not: grouped ones, weights that are made, or read
    twice; kernels of all sizes, without bias, of one image alone, and more ranks than channels."""

    def __init__(self, kind: type[nn.Conv1d | nn.Conv2d | nn.Conv3d]) -> None:
        super().__init__()
        make = partial(kind, padding=1)
        self.first, self.wide = make(1, 4, 3), make(4, 5, 3, stride=2, bias=False)
        self.grouped, self.spread = make(5, 10, 3, groups=5), make(10, 3, 3, dilation=2, padding=2)
        self.point, self.twice, self.one = kind(3, 6, 1), make(6, 6, 3), make(6, 1, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.spread(self.grouped(self.wide(self.first(x)).relu()))
        x = self.twice(self.twice(self.point(x)).relu())
        alone = self.one(x[0]).flatten(1).sum(1)
        return x.flatten(2).amax(2), alone


def assert_bits(every: Sequence[Sequence[Found]]) -> None:
    """All ranks have the same parameters' gradients and buffers, to the last bit."""
    for first, *others in every:
        for other in others:
            assert_same(replace(other.step, outputs={}), replace(first.step, outputs={}))


@SHARED
@pytest.mark.parametrize("point", [0, 1, 2])
def test_integers_are_equal(pool: Pool, point: int, shared: bool) -> None:
    assert_bits(assert_ranks_agree(pool, exact(classifier(), 2, 2, 17, 18, tail=point, shared=shared), MESHES))


@pytest.mark.parametrize(("kind", "size"), [(nn.Conv1d, (29,)), (nn.Conv2d, (17, 18)), (nn.Conv3d, (9, 13, 9))])
def test_all_kinds_of_layers_that_are_shared_or_not(pool: Pool, kind: Any, size: tuple[int, ...]) -> None:
    case = exact(Mixed(kind), 2, 1, *size, tail=-1, shared=True, steps=2)
    assert_bits(assert_ranks_agree(pool, case, [TWO] if len(size) > 1 else [mesh_of(w=2)]))
    if len(size) == 2:
        images = (case.inputs[0].to(memory_format=torch.channels_last),)
        assert_bits(assert_ranks_agree(pool, replace(case, inputs=images), MESHES[1:]))


@SHARED
@pytest.mark.parametrize("point", [0, -1])
def test_norms_and_their_statistics(pool: Pool, point: int, shared: bool) -> None:
    case = close(normed(), (2, 2, 16, 17), tail=point, shared=shared, steps=2)
    assert_bits(assert_ranks_agree(pool, case, MESHES, exact=False))


@SHARED
@pytest.mark.parametrize("point", [0, 2, -1])
def test_resnet(pool: Pool, point: int, shared: bool) -> None:
    case = replace(CLOSE["resnet18"](), tail=point, shared=shared)
    assert_bits(assert_ranks_agree(pool, case, [TWO, FOUR], exact=False))


@SHARED
@pytest.mark.parametrize("point", [0, -1])
def test_a_parameter_on_both_sides(pool: Pool, point: int, shared: bool) -> None:
    assert_ranks_agree(pool, exact(BothSides(), 2, 2, 9, 8, tail=point, shared=shared), MESHES)


@SHARED
@pytest.mark.parametrize(
    "how",
    ["two calls, then both backward", "the first output only", "the last output only", "one sum of two calls"],
)
def test_outputs_before_the_point_and_behind_it(pool: Pool, how: str, shared: bool) -> None:
    net, x = integer_module(BothSides(), -1, 1), integer_tensor((2, 2, 9, 8))
    plain, leaf = copy.deepcopy(net), x.clone().requires_grad_()
    call_several(plain, leaf, how)
    wanted = {name: p.grad for name, p in plain.named_parameters()} | {"input": leaf.grad}
    for mesh in (TWO, FOUR):
        for found in pool.run(mesh, "several_calls", (net, x, how, -1 if shared else 0, shared)):
            for name, grad in wanted.items():
                assert (found[name] is None) == (grad is None), name
                assert grad is None or torch.equal(found[name], grad), name


@pytest.mark.parametrize("frozen", ["0.", "4. 7.", "0. 2.", "0. 2. 4. 7."])
@pytest.mark.parametrize("graded", [True, False])
@SHARED
def test_frozen_parameters(pool: Pool, frozen: str, graded: bool, shared: bool) -> None:
    case = exact(classifier(), 2, 2, 17, 18, tail=-1 if shared else 1, shared=shared, graded=(graded,))
    for name, parameter in case.net.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(frozen.split())))
    if graded or frozen != "0. 2. 4. 7.":
        assert_ranks_agree(pool, case, [TWO, FOUR])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("no_grad", [True, False])
@SHARED
def test_modes(pool: Pool, training: bool, no_grad: bool, shared: bool) -> None:
    case = close(normed(), (2, 2, 16, 17), tail=-1, shared=shared, no_grad=no_grad, graded=(not no_grad,))
    case.net.train(training)
    assert_bits(assert_ranks_agree(pool, case, [TWO, FOUR], exact=False))


@SHARED
def test_the_walk_over_the_schedule(pool: Pool, shared: bool) -> None:
    """Which pushes zeros where a program has nothing to do, and shares no layers."""
    case = exact(classifier(), 2, 2, 17, 18, tail=-1, shared=shared)
    fast, slow = (pool.run(FOUR, task, copy.deepcopy(case)) for task in ("step", "speed_tasks:step_by_step"))
    for one, other in zip(fast, slow, strict=True):
        assert_same(one.step, other.step)


@SHARED
def test_single_precision_is_the_same_to_the_bit(pool: Pool, shared: bool) -> None:
    """Although the second rank is told that its own numbers are others."""
    case = close(normed(), (2, 2, 16, 17), tail=-1, shared=shared)
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


def test_rows_of_weights_are_told_by_the_rank_that_made_them(pool: Pool) -> None:
    """Of two ranks each makes half of the channels of two convolutions, and goes back through both."""
    case = exact(classifier(), 2, 2, 17, 18, tail=-1, shared=True)
    shared = case.net[2].weight.nbytes * 4 / 3, case.net[4].weight.nbytes  # three channels are two and two, one idle
    rest = sum(
        p.nbytes for n, p in case.net.named_parameters() if not n.startswith("0.") and n[:3] not in ("2.w", "4.w")
    )
    for counted in pool.run(TWO, "tail_tasks:count", case):
        assert counted["backwards"] == 1 + 2 * 2  # of an image and of weights apart
        assert counted["broadcast_bytes"] == rest + sum(shared) / 2
        assert 0 < counted["gathers"] <= 1 + 2
        assert 0 < counted["sums"] <= 1 + 2
