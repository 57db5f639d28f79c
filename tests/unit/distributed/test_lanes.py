"""Two ends of a connection: order, blocks that come back, and ends that are seen after what was said before them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from tilegrad.distributed import lanes, shared_memory
from tilegrad.distributed.lanes import CHANNELS, HALOS, LINE, PARTS, READ, SEGMENT, Lane, connect, host_name
from tilegrad.distributed.shared_memory import SharedBlock, SharedMemory

pytestmark = pytest.mark.skipif(not host_name(), reason="ranks of one host do not share memory here")


@pytest.fixture
def pair() -> Iterator[tuple[Lane, Lane]]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, other = (Lane(rank, end, SharedMemory(), 5.0) for rank, end in zip((1, 0), ends, strict=True))
    yield one, other
    for lane in (one, other):
        lane.close()


def say(lane: Lane, channel: int, *numbers: int) -> SharedBlock:
    block = lane.own.take(8 * len(numbers))
    block.data[: 8 * len(numbers)].view(torch.int64).copy_(torch.tensor(numbers))
    block.readers.add(lane)
    lane.send(channel, block, 8 * len(numbers))
    return block


def heard(lane: Lane, channel: int) -> list[list[int]]:
    lane.listen()
    found = [data.view(torch.int64).tolist() for _, data in lane.come[channel]]
    for number, _ in lane.come[channel]:
        lane.say(LINE.pack(READ, 0, number, 0, 0, 0))
    lane.come[channel].clear()
    return found


def test_in_order_and_channel_by_channel(pair: tuple[Lane, Lane]) -> None:
    one, other = pair
    for k in range(20):
        say(one, PARTS if k % 3 else HALOS, k, k * k)
    assert heard(other, HALOS) == [[k, k * k] for k in range(20) if not k % 3]
    assert heard(other, PARTS) == [[k, k * k] for k in range(20) if k % 3]
    assert [list(queue) for queue in other.come] == [[] for _ in CHANNELS]


def test_an_empty_message_comes(pair: tuple[Lane, Lane]) -> None:
    say(pair[0], HALOS)
    assert heard(pair[1], HALOS) == [[]]


def test_what_was_read_comes_back(pair: tuple[Lane, Lane]) -> None:
    one, other = pair
    block = say(one, HALOS, 1, 2)
    one.listen()
    assert block.readers == {one} and not block.free
    heard(other, HALOS)
    one.listen()
    assert block.free and say(one, HALOS, 3) is block


def test_more_memory_is_made_known(pair: tuple[Lane, Lane], monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that the other side has not needed yet are told when it does, in order; there only the maps stay."""
    monkeypatch.setattr(shared_memory, "SEGMENT", 8 << 20)
    one, other = pair
    unseen = [one.own.take(9 << 20) for _ in range(3)]
    files = len(os.listdir("/proc/self/fd"))
    say(one, HALOS, 4, 5)
    assert heard(other, HALOS) == [[4, 5]] and len(one.own.files) == 4
    assert len(os.listdir("/proc/self/fd")) == files + 2 + 4  # a file and its map; the other side's four maps
    assert {block.segment for block in unseen} == {0, 1, 2}


def test_both_sides_write_more_than_fits(pair: tuple[Lane, Lane]) -> None:
    """Who cannot write reads meanwhile: nobody waits for the other."""
    many = range(3000)

    def talk(lane: Lane) -> None:
        for k in many:
            say(lane, HALOS, k)
        while len(lane.come[HALOS]) < len(many) and not lane.ended:
            lane.listen()

    threads = [threading.Thread(target=talk, args=(lane,), daemon=True) for lane in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(lane.ended for lane in pair)
    for lane in pair:
        assert [int(data.view(torch.int64)) for _, data in lane.come[HALOS]] == list(many)


def test_who_reads_nothing_for_long(pair: tuple[Lane, Lane]) -> None:
    one, _ = pair
    one.timeout_s, begin = 0.3, time.monotonic()
    while not one.ended:
        say(one, HALOS, 1)
    assert one.ended == "rank 1 has read nothing for 0.3 s" and time.monotonic() - begin < 5
    one.say(LINE.pack(READ, 0, 0, 0, 0, 0))  # lost, and no error


@pytest.mark.parametrize("unread", [0, 5])
def test_what_was_said_before_the_end_comes_first(unread: int, pair: tuple[Lane, Lane]) -> None:
    """Also where the other side has not read all before it ended, which the system calls a reset."""
    one, other = pair
    for k in range(unread):
        say(other, HALOS, k)
    say(one, PARTS, 6)
    one.close()
    assert heard(other, PARTS) == [[6]]
    assert other.ended == "the connection to rank 0 has ended"
    say(other, HALOS, 7)


def test_no_place_for_another_file(pair: tuple[Lane, Lane], monkeypatch: pytest.MonkeyPatch) -> None:
    """The system drops it then."""
    one, other = pair
    one.say(LINE.pack(SEGMENT, 0, 0, 0, 0, 0))
    say(one, HALOS, 1)
    assert heard(other, HALOS) == []
    assert other.ended == "rank 0's memory cannot be mapped here: none is left; try more file descriptors (ulimit -n)"


def test_an_end_is_seen_by_who_writes(pair: tuple[Lane, Lane]) -> None:
    one, other = pair
    say(one, PARTS, 8)
    one.close()
    say(other, HALOS, 9)
    assert other.ended and len(other.come[PARTS]) == 1


def test_a_child_does_not_keep_a_connection_open(pair: tuple[Lane, Lane]) -> None:
    """The end of a rank is seen although a child of it, say of a data loader, lives on."""
    one, other = pair
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(ready[1], b".")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    one.close()
    other.listen()
    assert other.ended
    os.write(done[1], b".")
    os.waitpid(child, 0)
    for file in (*ready, *done):
        os.close(file)


# -- making connections ------------------------------------------------------------------------------------------------


def test_all_find_each_other() -> None:
    servers = [lanes.listen() for _ in range(4)]
    addresses = {rank: server.getsockname().decode().lstrip("\0") for rank, server in enumerate(servers)}
    found: dict[int, dict[int, socket.socket]] = {}

    def meet(rank: int) -> None:
        found[rank] = connect(servers[rank], rank, {r: a for r, a in addresses.items() if r != rank}, 20.0)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for rank, made in found.items():
        for other, connection in made.items():
            connection.send(bytes([rank, other]))
    for rank, made in found.items():
        assert sorted(made) == [other for other in range(4) if other != rank]
        for other, connection in made.items():
            assert connection.recv(10) == bytes([other, rank])
    for end in (*servers, *(end for made in found.values() for end in made.values())):
        end.close()


def test_strangers_are_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are not awaited, those that are there already, who says nothing, and other users."""
    server = lanes.listen()
    address = server.getsockname()
    said, strangers = [(7).to_bytes(8), (1).to_bytes(8), (1).to_bytes(8), b"", (2).to_bytes(8)], []
    for hello in said:
        strangers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        strangers[-1].connect(address)
        if hello:
            strangers[-1].send(hello)
        else:
            strangers[-1].close()
    found = connect(server, 0, {1: "", 2: ""}, 10.0)
    assert sorted(found) == [1, 2]
    assert strangers[0].recv(1) == b"" and strangers[2].recv(1) == b""  # hung up
    found[1].send(b"!")
    assert strangers[1].recv(1) == b"!"
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    late = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    late.connect(address)
    late.send((3).to_bytes(8))
    with pytest.raises(TimeoutError):
        connect(server, 0, {3: ""}, 0.3)
    for end in (server, late, *strangers, *found.values()):
        end.close()


def test_nobody_answers() -> None:
    server = lanes.listen()
    with pytest.raises(OSError, match="refused"):
        connect(server, 1, {0: "tilegrad nobody"}, 0.3)
    server.close()
