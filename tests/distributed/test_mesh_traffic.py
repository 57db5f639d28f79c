"""What ranks send. That it is what the plan says from its geometry alone is checked wherever steps are compared."""

from __future__ import annotations

from dataclasses import replace

from rank_pool import Pool, mesh_of
from rank_steps import assert_ranks_agree
from sample_nets import EXACT, conv, exact
from tasks import Found
from torch import nn

MESHES = [mesh_of(w=3), mesh_of(h=2, w=2), mesh_of(batch=2, h=2)]


def totals(every: list[list[Found]]) -> list[tuple[int, int, int]]:
    """Bytes sent and received and messages of all ranks, by mesh."""
    found = []
    for ranks in every:
        sent, received, messages = (sum(one.traffic.counted[k] for one in ranks) for k in range(3))
        assert sent == received
        assert (messages == 0) == (sent == 0)
        found.append((sent, received, messages))
    return found


def test_what_needs_no_gradient_comes_back_without_one(pool: Pool) -> None:
    case = EXACT["conv stack"]()
    full = totals(assert_ranks_agree(pool, case, MESHES))
    without = totals(assert_ranks_agree(pool, replace(case, graded=(False,)), MESHES))
    inference = totals(assert_ranks_agree(pool, replace(case, graded=(False,), no_grad=True), MESHES))
    assert inference == without  # one segment: the only halos are the image's
    assert [tuple(2 * n for n in each) for each in without] == full


def test_two_steps_send_twice_as_much(pool: Pool) -> None:
    once, twice = (totals(assert_ranks_agree(pool, replace(EXACT["unet"](), steps=n), MESHES[:2])) for n in (1, 2))
    assert [tuple(2 * n for n in each) for each in once] == twice


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
