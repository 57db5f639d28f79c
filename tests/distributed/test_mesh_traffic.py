"""What ranks send, counted, against what the plan says from its geometry alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compare import assert_ranks_agree
from ranks import Pool, mesh_of
from sample_nets import CLOSE, EXACT, conv, exact
from tasks import Case, Found
from torch import nn

MESHES = [mesh_of(h=2), mesh_of(w=3), mesh_of(h=4), mesh_of(h=2, w=2), mesh_of(batch=2, h=2)]
NAMES = ["conv stack", "halo wider than a shard", "maps smaller than the mesh", "unet", "flatten and linear",
         "several inputs and outputs", "a parameter for every pixel", "shared weights"]  # fmt: skip


def found(pool: Pool, case: Case, *, exact: bool = True) -> list[list[Found]]:
    return assert_ranks_agree(pool, case, MESHES, exact=exact)


def check(every: list[list[Found]], *, steps: int = 1) -> None:
    for ranks in every:
        for one in ranks:
            assert one.traffic.counted == tuple(steps * n for n in one.traffic.planned)
        sent, received, messages = (sum(one.traffic.counted[k] for one in ranks) for k in range(3))
        assert sent == received
        assert (messages == 0) == (sent == 0)


@pytest.mark.parametrize("exchange", ["segment", "layer"])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_messages_are_as_planned(pool: Pool, name: str, exchange: str) -> None:
    check(found(pool, replace(EXACT[name](), options={"exchange": exchange})))


@pytest.mark.parametrize("name", ["batch norm twice", "global average", "unet with its loss"])
def test_with_statistics_and_losses(pool: Pool, name: str) -> None:
    check(found(pool, CLOSE[name](), exact=False))


def test_what_needs_no_gradient_comes_back_without_one(pool: Pool) -> None:
    case = EXACT["conv stack"]()
    with_gradient = found(pool, case)
    check(with_gradient)
    without = found(pool, replace(case, graded=(False,)))
    check(without)
    inference = found(pool, replace(case, graded=(False,), no_grad=True))
    check(inference)
    for full, less in zip(with_gradient, without, strict=True):
        assert sum(one.traffic.counted[0] for one in less) * 2 == sum(one.traffic.counted[0] for one in full)
    assert [one.traffic for each in inference for one in each] == [one.traffic for each in without for one in each]


def test_two_steps_send_twice_as_much(pool: Pool) -> None:
    check(found(pool, replace(EXACT["unet"](), steps=2)), steps=2)


def test_samples_need_no_halos(pool: Pool) -> None:
    (ranks,) = assert_ranks_agree(pool, EXACT["conv stack"](), [mesh_of(batch=2)])
    assert all(one.traffic.counted == (0, 0, 0) for one in ranks)


def test_a_segment_sends_one_message_where_layers_send_many(pool: Pool) -> None:
    case = exact(nn.Sequential(*(layer for _ in range(16) for layer in (conv(1, 1), nn.ReLU()))), 1, 1, 68, 6)
    per_segment, per_layer = (
        assert_ranks_agree(pool, replace(case, options={"exchange": how}), [mesh_of(h=4)])[0]
        for how in ("segment", "layer")
    )
    for one, other in zip(per_segment, per_layer, strict=True):
        assert one.traffic.counted[2] * 16 == other.traffic.counted[2]
