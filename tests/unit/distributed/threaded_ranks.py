"""Ranks that are threads of one process: as near to each other as ranks get, and all in one debugger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tilegrad.distributed.neighbours import Neighbours, meet_neighbours
from tilegrad.distributed.traffic import Traffic
from tilegrad.distributed.watch import Watch

Tell = Callable[[bytes], list[bytes]]


class Room:
    """Where ranks hear what all say."""

    def __init__(self, count: int):
        self.said, self.barrier = [b""] * count, threading.Barrier(count, timeout=60)

    def tell(self, rank: int) -> Tell:
        def tell(text: bytes) -> list[bytes]:
            self.said[rank] = text
            self.barrier.wait()
            found = list(self.said)
            self.barrier.wait()
            return found

        return tell


def meet(rank: int, count: int, room: Room, timeout_s: float = 60.0) -> Neighbours | None:
    tell = room.tell(rank)
    return meet_neighbours(range(count), tell, Watch(range(count), rank, tell, timeout_s), Traffic())


def together(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What all ranks return. An error of the first that has one is raised."""
    found: list[Any] = [None] * count
    errors: dict[int, BaseException] = {}

    def live(rank: int) -> None:
        try:
            found[rank] = act(rank)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    for error in errors.values():
        raise error
    return found


def leave(near: Neighbours, error: BaseException | None = None) -> None:
    near.watch.close(error)
    near.close()
