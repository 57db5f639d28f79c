"""What ranks of one host tell each other, against sums and copies made by one: to the last bit, in any timing."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from threaded_ranks import Room, leave, meet, together
from torch import Tensor

from tilegrad.distributed import lanes, neighbours
from tilegrad.distributed.lanes import host_name
from tilegrad.distributed.neighbours import IN_PIECES, Errand, Neighbours
from tilegrad.distributed.watch import RankError

pytestmark = pytest.mark.skipif(not host_name(), reason="ranks of one host do not share memory here")

LARGE = IN_PIECES // 2  # elements of the narrowest type
Act = Callable[[Neighbours], Any]


def among_ranks(count: int, act: Act, timeout_s: float = 60.0) -> list[Any]:
    room = Room(count)

    def live(rank: int) -> Any:
        near = meet(rank, count, room, timeout_s)
        assert near is not None
        try:
            found = act(near)
        except BaseException as error:
            leave(near, error)
            raise
        room.barrier.wait()
        near.go_on()
        assert not any(near.queues), "somebody still waits"
        assert near.memory.nbytes <= 64 << 20
        leave(near)
        return found

    return together(count, live)


def integers(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Small ones: every type has their sums."""
    luck = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, shape, generator=luck).to(dtype)


SIZES = {
    "one": (1,), "odd": (7, 3), "just below": (IN_PIECES // 8 - 1,), "just above": (IN_PIECES // 8 + 1,),
    "large": (3, LARGE - 5), "scalar": (),
}  # fmt: skip


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_a_sum(dtype: torch.dtype, shape: tuple[int, ...], count: int) -> None:
    given = [integers(rank, *shape, dtype=dtype) for rank in range(count)]
    want = torch.stack(given).sum(0).to(dtype)

    def act(near: Neighbours) -> Tensor:
        tensor = given[near.rank].clone()
        near.sum("a sum", tuple(range(count)), tensor).wait()
        return tensor

    for found in among_ranks(count, act):
        assert torch.equal(found, want)


def test_a_sum_of_floats_is_the_same_on_all_ranks() -> None:
    """In the order of ranks, whatever order they are named in."""
    for size in (100, LARGE):
        given = [torch.randn(size, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
        want = ((given[0] + given[1]) + given[2]) + given[3]

        def act(near: Neighbours, given: list[Tensor] = given) -> Tensor:
            tensor = given[near.rank].clone()
            near.sum("a sum", (2, 0, 3, 1), tensor).wait()
            return tensor

        assert all(torch.equal(found, want) for found in among_ranks(4, act))


@pytest.mark.parametrize("size", [12, LARGE])
def test_a_tensor_that_does_not_lie_in_order(size: int) -> None:
    """Only its own elements are written."""

    def act(near: Neighbours) -> tuple[Tensor, Tensor]:
        base = integers(near.rank, size, 4)
        kept = base.clone()
        near.sum("a sum", (0, 1, 2), base.T[1]).wait()
        near.sum("a sum", (0, 1, 2), base.T[2:]).wait()
        return base, kept

    want = sum(integers(rank, size, 4) for rank in range(3))
    for base, kept in among_ranks(3, act):
        assert torch.equal(base[:, 1:], want[:, 1:]) and torch.equal(base[:, 0], kept[:, 0])


@pytest.mark.parametrize("size", [LARGE, 10 * LARGE + 3])
def test_what_was_lent_is_the_callers_at_once(size: int) -> None:
    """Gradients that were added up where they lie are scaled, kept or dropped as soon as the wait is over (rule H5)."""
    steps = 12

    def act(near: Neighbours) -> list[Tensor]:
        kept = []
        for step in range(steps):
            room = near.room(4 * size)
            assert room is not None
            grad = room.view(torch.float32).copy_(integers(10 * step + near.rank, size))
            errand = near.sum("a gradient", (0, 1, 2), grad)
            if step % 2:
                time.sleep(0.001 * near.rank)
            errand.wait()
            kept.append(grad.clone())
            grad.fill_(torch.nan)  # at once
            if step % 4 == 0:
                kept.append(grad)  # and it lives on
        return kept

    for kept in among_ranks(3, act):
        sums = [grad for grad in kept if not grad.isnan().any()]
        assert len(sums) == steps and len(kept) == steps + 3
        for step, grad in enumerate(sums):
            assert torch.equal(grad.double(), sum(integers(10 * step + rank, size) for rank in range(3)))


def test_what_others_have_yet_to_read_is_not_told_where_it_lies() -> None:
    """Two errands from one place, the second begun before the first has been waited for, and a part of it."""

    def act(near: Neighbours) -> list[Tensor]:
        room = near.room(8 * LARGE)
        assert room is not None
        tensor = room.view(torch.float64).copy_(integers(near.rank, LARGE))
        first = near.broadcast("it", (0, 1), tensor, 0)
        second = near.broadcast("it again", (0, 1), tensor, 0)
        first.wait()
        second.wait()
        before = tensor.clone()
        near.sum("its beginning", (0, 1), tensor[: LARGE // 2]).wait()
        near.sum("its end", (0, 1), tensor[LARGE // 2 :]).wait()
        return [before, tensor]

    given = integers(0, LARGE)
    for before, after in among_ranks(2, act):
        assert torch.equal(before, given) and torch.equal(after, 2 * given)


def test_halos_and_parts_from_lent_memory_are_copies() -> None:
    """Nobody waits until they have been read, so they must be."""

    def act(near: Neighbours) -> list[Tensor]:
        other, seen = 1 - near.rank, []
        for step in range(20):
            room = near.room(8 * LARGE)
            assert room is not None
            tensor = room.view(torch.float64).copy_(integers(step + 100 * near.rank, LARGE))
            rows, halo = torch.empty(2, LARGE, dtype=torch.float64), torch.empty(8 * LARGE, dtype=torch.uint8)
            posted = near.post("halos", (other,), {other: room}, {other: halo})
            near.gather("parts", (0, 1), rows, tensor)
            posted.wait()
            tensor.fill_(0)
            seen.append(torch.stack([rows[other], halo.view(torch.float64)]))
            if step % 3 == near.rank:
                time.sleep(0.002)
        return seen

    for rank, seen in enumerate(among_ranks(2, act)):
        for step, found in enumerate(seen):
            assert torch.equal(found, integers(step + 100 * (1 - rank), LARGE).expand(2, -1))


def test_parts_come_in_the_order_that_is_asked_for() -> None:
    def act(near: Neighbours) -> Tensor:
        rows = torch.empty(3, 5, 2, dtype=torch.float64)
        near.gather("parts", (2, 0, 1), rows, integers(near.rank, 2, 5).T)
        return rows

    want = torch.stack([integers(rank, 2, 5).T for rank in (2, 0, 1)])
    assert all(torch.equal(found, want) for found in among_ranks(3, act))


@pytest.mark.parametrize("seed", range(6))
def test_any_errands_in_any_timing(seed: int) -> None:
    """All kinds, many on their way at a time, awaited out of order, over all ranks and over some."""
    count, steps = 2 + seed % 3, 60
    plan = random.Random(seed)
    errands = []
    for step in range(steps):
        ranks = tuple(sorted(plan.sample(range(count), plan.randint(2, count))))
        errands.append((step, plan.choice(["sum", "sum lent", "tell", "swap", "gather"]), ranks,
                        plan.choice([3, 1000, LARGE // 4 + 1, LARGE + 17]), plan.random() < 0.5))  # fmt: skip

    def given(step: int, rank: int, size: int) -> Tensor:
        return integers(1000 * seed + 10 * step + rank, size)

    def act(near: Neighbours) -> None:
        luck, begun = random.Random(seed * 10 + near.rank), list[tuple[Errand, list[Tensor], list[Tensor]]]()
        for step, kind, ranks, size, later in errands:
            if near.rank not in ranks:
                continue
            begin(step, kind, ranks, size, near, begun)
            if luck.random() < 0.2:
                time.sleep(luck.random() * 2e-3)
            while begun and (not later or len(begun) > 5):
                errand, found, want = begun.pop(luck.randrange(len(begun)))
                errand.wait()
                assert all(map(torch.equal, found, want)), errand.what
                for tensor in found:
                    tensor.fill_(99)
        for errand, found, want in begun:
            errand.wait()
            assert all(map(torch.equal, found, want)), errand.what

    def begin(step: int, kind: str, ranks: tuple[int, ...], size: int, near: Neighbours, begun: list[Any]) -> None:
        what, own = f"{step}: {kind} of {size} by {ranks}", given(step, near.rank, size)
        if kind == "gather":
            rows = torch.empty(len(ranks), size, dtype=torch.float64)
            near.gather(what, ranks, rows, own)
            assert torch.equal(rows, torch.stack([given(step, rank, size) for rank in ranks])), what
        elif kind == "swap":
            others = [rank for rank in ranks if rank != near.rank]
            found = {rank: torch.empty_like(own) for rank in others}
            errand = near.post(what, ranks, dict.fromkeys(others, own), found)
            begun.append((errand, list(found.values()), [given(step, rank, size) for rank in others]))
        else:
            room = near.room(own.nbytes) if kind == "sum lent" else None
            tensor = own.clone() if room is None else room.view(torch.float64).copy_(own)
            if kind == "tell":
                begun.append((near.broadcast(what, ranks, tensor, ranks[-1]), [tensor], [given(step, ranks[-1], size)]))
            else:
                want = torch.stack([given(step, rank, size) for rank in ranks]).sum(0)
                begun.append((near.sum(what, ranks, tensor), [tensor], [want]))

    among_ranks(count, act)


def test_the_same_errands_take_no_more_memory() -> None:
    def act(near: Neighbours) -> int:
        sizes = list[int]()
        for _ in range(30):
            for size in (10, LARGE, 3 * LARGE):
                tensor = integers(0, size)
                near.sum("a sum", (0, 1), tensor).wait()
                near.broadcast("it", (0, 1), tensor, 1).wait()
            sizes.append(near.memory.nbytes)
        return sizes[-1] - sizes[3]

    assert among_ranks(2, act) == [0, 0]


def test_what_comes_while_a_lane_is_full_is_not_overlooked() -> None:
    """A halo comes while this rank cannot write; its errand goes on as soon as it can."""

    def act(near: Neighbours) -> float:
        lane, halo = near.lanes[1 - near.rank], torch.zeros(4, dtype=torch.uint8)
        if near.rank == 1:
            time.sleep(0.3)
            told = [near.broadcast("told", (0, 1), torch.ones(1), 1) for _ in range(20)]
            time.sleep(0.7)  # the other is stuck by now, with answers
            near.post("halos", (0,), {0: torch.ones(4, dtype=torch.uint8)}, {})
            for _ in range(50):
                lane.listen()
                time.sleep(0.02)
            for errand in told:
                errand.wait()
            return 0.0
        lane.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # for some hundred lines unread
        told = [near.broadcast("told", (0, 1), torch.zeros(1), 1) for _ in range(20)]
        errand, begin = near.post("halos", (1,), {}, {1: halo}), time.monotonic()
        errand.wait()
        took = time.monotonic() - begin
        assert halo.tolist() == [1] * 4
        for each in told:
            each.wait()
        return took

    took, _ = among_ranks(2, act, timeout_s=20.0)
    assert took < 10


def test_a_block_that_was_told_and_read_is_anybodys() -> None:
    """An errand that has yet its turn does not wait for those who read what lies there now."""

    def act(near: Neighbours) -> None:
        small, wide = torch.full((60_000,), near.rank, dtype=torch.uint8), torch.full((IN_PIECES // 4,), 1.0)
        if near.rank == 0:
            first, told = near.sum("slow", (0, 1), torch.ones(10)), near.broadcast("told", (0, 2), small, 0)
            while any(near.lanes[2] in block.readers for block in near.memory.blocks):
                near.lanes[2].listen()
                time.sleep(0.01)
            room = near.room(wide.nbytes)
            assert room is not None
            later = near.sum("later", (0, 1), room.view(torch.float32).copy_(wide))
            for errand in (told, first, later):
                errand.wait()
        elif near.rank == 1:
            time.sleep(0.5)
            near.sum("slow", (0, 1), torch.ones(10)).wait()
            time.sleep(0.5)
            near.sum("later", (0, 1), wide).wait()
            assert bool((wide == 2).all())
        else:
            near.broadcast("told", (0, 2), small, 0).wait()
            assert not small.any()

    among_ranks(3, act)


def test_a_rank_that_dies() -> None:
    """What it has sent before comes; then the others hear that it is gone."""

    def act(near: Neighbours) -> None:
        tensor = integers(near.rank, LARGE)
        near.sum("a first sum", (0, 1, 2), tensor).wait()
        if near.rank == 2:
            raise ZeroDivisionError("as planned")
        with pytest.raises(RankError, match="rank 2 is gone") as caught:
            near.sum("a second sum", (0, 1, 2), tensor).wait()
        assert caught.value.ranks == (2,) and "a second sum, noticed by rank" in str(caught.value)
        raise ZeroDivisionError("as planned")

    with pytest.raises(ZeroDivisionError, match="as planned"):
        among_ranks(3, act, timeout_s=20.0)


def test_a_rank_that_is_too_slow() -> None:
    def two_sums(near: Neighbours) -> None:
        for _ in range(2):  # the first comes true for who is late
            near.sum("a sum", (0, 1), integers(near.rank, 5)).wait()

    def act(near: Neighbours) -> None:
        if near.rank == 1:
            time.sleep(3.0)
        with pytest.raises(RankError, match=r"\(nothing has come from rank 1 for 1 s\)|the others had stopped before"):
            two_sums(near)
        raise ZeroDivisionError("as planned")

    with pytest.raises(ZeroDivisionError, match="as planned"):
        among_ranks(2, act, timeout_s=1.0)


# -- who is near -------------------------------------------------------------------------------------------------------


def meeting(monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> list[frozenset[int] | None]:
    count = len(hosts)
    room, turn = Room(count), iter(hosts)
    monkeypatch.setattr(neighbours, "host_name", lambda: next(turn))

    def live(rank: int) -> frozenset[int] | None:
        near = meet(rank, count, room)
        found = near.ranks if near is not None else None
        room.barrier.wait()
        if near is not None:
            leave(near)
        return found

    return together(count, live)


def test_ranks_of_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rank has which name is for the threads to say: two pairs, in any case."""
    found = meeting(monkeypatch, ["a", "b", "a", "b"])
    pairs = {ranks for ranks in found if ranks is not None}
    assert len(pairs) == 2 and all(len(ranks) == 2 for ranks in pairs) and frozenset().union(*pairs) == {0, 1, 2, 3}
    assert all(ranks is not None and rank in ranks for rank, ranks in enumerate(found))


@pytest.mark.parametrize("hosts", [["a", "b", "c"], ["", "", ""]])
def test_nobody_is_near(hosts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert meeting(monkeypatch, hosts) == [None] * 3


def test_one_that_cannot_be_reached_and_all_use_the_network(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule H3."""
    who = lanes._who

    def deaf(connection: Any, seconds: float) -> int | None:
        found = who(connection, seconds)
        if found == 2:
            raise PermissionError(13, "not allowed here")
        return found

    monkeypatch.setattr(lanes, "_who", deaf)
    with caplog.at_level("INFO", "tilegrad"):
        assert meeting(monkeypatch, ["a", "a", "a"]) == [None] * 3
    assert "ranks of one host talk over its network: [Errno 13] not allowed here" in caplog.text
