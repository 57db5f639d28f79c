"""Whose turn it is: a capture puts other tensors into a module for a moment, and no other thread may look at it then.

- `with TURNS:` look at modules (their tensors, devices): nobody captures meanwhile
- `with TURNS.capture():` change modules: no other thread looks at one, nor runs one as it is
- `with TURNS.run():` run a module as it is, side by side with other threads that do the same
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator


class Turns:
    """One capture at a time, or any number of runs. A thread may do within its turn whatever it likes."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._running: Counter[int] = Counter()  # runs by thread
        self._waiting = 0  # captures that want their turn: no new runs until they had it

    def __enter__(self) -> None:
        self._changed.acquire()

    def __exit__(self, *_: object) -> None:
        self._changed.release()

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._running.keys() - {threading.get_ident()})
            finally:
                self._waiting -= 1
            try:
                yield
            finally:
                self._changed.notify_all()

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or me in self._running)
            self._running[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= Counter([me])  # drops what is zero
                self._changed.notify_all()


TURNS = Turns()
