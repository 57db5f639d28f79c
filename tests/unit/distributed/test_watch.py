"""Lines, the judge, and ranks that die, hang, stop, leave or sleep at exact moments. Real processes, but no torch."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tilegrad.distributed import verdict
from tilegrad.distributed import watch as watch_module
from tilegrad.distributed.judge import Judge
from tilegrad.distributed.watch import RankError, Watch
from tilegrad.distributed.wire import CLOSED, Wire, own_addresses
from tilegrad.errors import RunError

PROGRAM = Path(__file__).parent / "forked_ranks.py"
TIMEOUT_S = 5.0  # of the ranks in that program
linux = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")


FAULTS = ["die", "die-with-a-child", "hang", "fail", "leave", "stop"]
SCENARIOS = ["nothing", "asleep", *(f"{fault}-{rank}" for fault in FAULTS for rank in (0, 2))]
Said = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def scenarios() -> dict[str, Said]:
    """What the ranks of every scenario say."""
    quiet = [
        "-W",
        "ignore::DeprecationWarning",
    ]  # Python 3.12 on: of a fork beside threads, which one scenario is about
    command = [sys.executable, *quiet, str(PROGRAM), *SCENARIOS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    said = done.stderr.splitlines()  # at once, before anybody ends the ranks
    assert done.returncode == 0 and all(line.startswith(("rank ", "no rank ")) for line in said), done.stderr
    assert any(line.startswith("rank 2 stops: ZeroDivisionError: a mistake of one rank") for line in said), said
    assert "rank 2 is gone" in said and "rank 0 is gone" in said and "rank 2 hangs" in said, said
    assert not [line for line in said if line.startswith(("rank 1", "rank 3"))], said
    found = json.loads(done.stdout)
    return {name: {int(rank): report for rank, report in found[name].items()} for name in SCENARIOS}


@linux
def test_nothing_happens(scenarios: dict[str, Said]) -> None:
    assert scenarios["nothing"] == {rank: {} for rank in range(4)}


@linux
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("fault", "how"),
    [("die", "is gone"), ("die-with-a-child", "is gone"), ("fail", "is gone"), ("leave", "is gone"), ("hang", "hangs")],
)
def test_the_rank_is_named(fault: str, how: str, rank: int, scenarios: dict[str, Said]) -> None:
    """By all others, also by those that have no call with it, unless its judge left in order."""
    found = scenarios[f"{fault}-{rank}"]
    assert set(found) == set(range(4)) - {rank}
    for other, report in found.items():
        if fault == "leave" and rank == 0 and other > 1:
            assert report["ranks"] == [] and "rank 0, which would know, had ended before" in report["text"]
        else:
            assert report["ranks"] == [rank] and report["text"].startswith(f"rank {rank} {how}, and the others stop")
        assert report["seconds"] < TIMEOUT_S + 10


@linux
def test_a_rank_that_is_stopped(scenarios: dict[str, Said]) -> None:
    """Its system keeps the connection; it does not even say that it hangs. On a busy machine that proves nothing."""
    for report in scenarios["stop-2"].values():
        if report["ranks"]:
            assert report["ranks"] == [2] and report["text"].startswith("rank 2 does not answer")
            assert report["seconds"] < TIMEOUT_S + 10
        else:
            assert "not known" in report["text"]


@linux
def test_a_judge_that_is_stopped(scenarios: dict[str, Said]) -> None:
    for report in scenarios["stop-0"].values():
        assert report["ranks"] == [] and "not known: rank 0, which would know, does not answer" in report["text"]
        assert report["seconds"] < TIMEOUT_S + 10


@linux
def test_a_rank_that_sleeps_through_it_all(scenarios: dict[str, Said]) -> None:
    """The others have stopped and ended, the judge among them, before it reads a word: and it names the right one."""
    found = scenarios["asleep"]
    assert found.pop(-1)["ended"] == [0, 3]
    assert set(found) == {0, 1, 3}
    assert all(report["ranks"] == [2] for report in found.values()), found


# In one process


def meet(ranks: list[int], timeout_s: float = 5.0) -> list[Watch]:
    """Watches of all ranks, made at the same time."""
    told, ready = list[bytes](), threading.Event()

    def tell(text: bytes) -> list[bytes]:
        if text:
            told.append(text)
            ready.set()
        ready.wait(10)
        return told

    found: dict[int, Watch] = {}

    def make(rank: int) -> None:
        found[rank] = Watch(ranks, rank, tell, timeout_s)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [found[rank] for rank in ranks]


def call_fails(watch: Watch, *peers: int, seconds: float = 0.0) -> RankError:
    try:
        with watch.during("a call", peers):
            time.sleep(seconds)
            raise RuntimeError("Connection closed by peer\nand more")
    except RankError as error:
        return error


def hang_up(watch: Watch) -> None:
    """As the system does for a process that is killed."""
    watch._line.socket.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody is named in the end, it need not take long."""
    monkeypatch.setattr(watch_module, "GRACE_S", 0.5)
    monkeypatch.setattr(verdict, "GRACE_S", 0.5)


def test_one_rank_has_nobody_to_watch() -> None:
    watch = Watch([3], 3, lambda text: [text], 1.0)
    with watch.during("a call", [3]):
        pass
    with pytest.raises(RuntimeError, match="as it was"), watch.during("a call", [3]):
        raise RuntimeError("as it was")
    watch.close()


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_all_leave(order: list[int]) -> None:
    others = set(threading.enumerate())
    watches, begin = meet([0, 1, 2]), time.monotonic()
    for rank in order:
        watches[rank].close()
    assert time.monotonic() - begin < 2
    assert not [t for t in set(threading.enumerate()) - others if t.name.startswith("tilegrad")]


def test_the_text_of_an_error() -> None:
    first, second, third = meet([0, 1, 2])
    hang_up(third)
    error = call_fails(first, 1, 2)
    words = str(error).splitlines()
    assert isinstance(error, RunError) and isinstance(error, RuntimeError) and error.ranks == (2,)
    assert words[0] == "rank 2 is gone, and the others stop"
    assert words[1].startswith("  at   a call, noticed by rank 0 after 0.")
    assert words[1].endswith("(Connection closed by peer)")
    assert words[2] == "  try  look at the output of that rank"
    back = pickle.loads(pickle.dumps(error))
    assert back.ranks == (2,) and str(back) == str(error)
    assert call_fails(second, 0, 2).ranks == (2,)  # the verdict is there
    with pytest.raises(RankError, match="the others had stopped before"), second.during("another", [0]):
        pytest.fail("nobody is left to call")
    first.close()
    second.close()


@pytest.mark.usefixtures("hurried")
def test_a_mistake_of_ones_own_blames_nobody() -> None:
    """A call that fails although all others are well: the error says what is known, and names no rank."""
    watches = meet([0, 1], timeout_s=60.0)
    error = call_fails(watches[1], 0)
    assert error.ranks == ()
    assert "which one is missing is not known: no rank is gone; the call of rank 1 failed: Connection closed" in str(
        error
    )
    for watch in watches:
        watch.close()


@pytest.mark.usefixtures("hurried")
def test_a_call_of_another_mesh_is_a_call() -> None:
    """Rank 1 waits in the second mesh for a third rank, so it is not the one that hangs in the first."""
    first, second = meet([0, 1], timeout_s=0.5), meet([1, 2], timeout_s=60.0)
    with second[0].during("elsewhere", [2]):
        time.sleep(0.5)
        error = call_fails(first[0], 1, seconds=0.5)
    assert error.ranks == () and "perhaps one was slower than the timeout" in str(error)
    for watch in (*first, *second):
        watch.close()


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("leaver", [0, 1])
def test_who_leaves_a_second_mesh_because_of_the_first(leaver: int) -> None:
    """Whether the judge sits with it or with the others, they hear why, and blame nobody of their own."""
    watches = meet([0, 1], timeout_s=60.0)
    watches[leaver].close(RankError("rank 9 is gone, and the others stop", [9]))
    error = call_fails(watches[1 - leaver], leaver)
    assert error.ranks == () and f"rank {leaver} had stopped before: rank 9 is gone" in str(error)
    watches[1 - leaver].close()


def test_the_same_call_goes_on() -> None:
    """A sum is begun and waited for later: one call, with one number."""
    watches = meet([0, 1])
    before = dict(watches[0].counts)
    with watches[0].during("a sum", [0, 1]) as call:
        pass
    with watches[0].during("a sum", [0, 1], call) as again:
        assert call is not None and again is not None and again.numbers == call.numbers
    assert watches[0].counts == {rank: n + 1 for rank, n in before.items()}
    for watch in watches:
        watch.close()


def test_strangers_are_not_heard() -> None:
    """A port is open until all ranks have come; only who knows the token is let in."""
    judge = Judge([0, 1], 60.0)
    guesses = ('{"rank": 1, "token": "guess"}', '{"rank": [], "token": "\\ud800"}', "[]\n{}", "\x00" * 10 + "\n{}")
    for hello in guesses:
        with socket.create_connection(("localhost", judge.address["port"]), timeout=20) as stranger:
            stranger.sendall(hello.encode() + b"\n")
            assert stranger.recv(100) == b""
    with socket.create_connection(("localhost", judge.address["port"]), timeout=20) as rank:
        rank.sendall(json.dumps({"rank": 1, "token": judge.address["token"]}).encode() + b"\n")
        assert rank.recv(100).startswith(b'{"kind": "hello"}\n')
    judge.own.close()
    judge.close()


@pytest.mark.usefixtures("hurried")
def test_a_judge_who_is_woken_before_the_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that closes may be put to sleep before it rings, while the judge hears something else."""
    judge = Judge([0, 1], 60.0)
    rope = judge._rope

    class LateRope:
        def send(self, text: bytes) -> int:
            judge.own.finish()
            judge._thread.join(0.3)
            return rope.send(text)

        def close(self) -> None:
            rope.close()

    monkeypatch.setattr(judge, "_rope", LateRope())
    judge.close()
    judge.own.close()
    assert not judge._thread.is_alive()


@pytest.mark.usefixtures("hurried")
def test_a_rank_that_never_comes() -> None:
    """The others wait for it as in a call."""
    with pytest.raises(RankError) as caught:
        Watch([0, 1], 0, lambda text: [text], 1.0)
    assert caught.value.ranks in ((1,), ())  # busy machines do not tell silence from work
    assert str(caught.value).startswith("rank 1 does not answer" if caught.value.ranks else "ranks cannot go on")
    assert "the first call, noticed by rank 0 after" in str(caught.value)


@pytest.mark.usefixtures("hurried")
def test_a_judge_who_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = json.dumps({"hosts": ["127.0.0.1"], "port": port, "token": "x"}).encode()
    with pytest.raises(
        RankError, match=r"rank 1 cannot reach rank 0, .*refused\n  at   127.0.0.1, port \d+\n  try  MASTER"
    ):
        Watch([0, 1], 1, lambda text: [address], 0.5)


def test_what_was_said_is_read_before_the_end() -> None:
    one, other = map(Wire, socket.socketpair())
    for k in range(100):
        one.send({"k": k})
    one.close()
    found = []
    while not other.ended:
        found += other.read()
    assert [message["k"] for message in found] == list(range(100)) and other.ended == CLOSED
    other.send({})  # nobody is there, and that is all right
    other.close()


def test_the_address_of_a_first_rank_that_is_not_on_the_masters_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """192.0.2.0/24 belongs to nobody: a judge cannot listen there, and tells the others where he does."""
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.77")
    assert "192.0.2.77" not in own_addresses()
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert own_addresses()[0] == "localhost"
    monkeypatch.delenv("MASTER_ADDR")
    assert own_addresses()[-1] == "127.0.0.1"
