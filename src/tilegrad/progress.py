"""What long work is at: a bar on a terminal, lines in the log elsewhere, and not a word of what is over in a moment.

Whoever works opens a `Progress` and tells it the news. Nothing runs beside the work: what it calls may `tick`, so that
the bar moves while there is no news. Work inside of work is part of it.
"""

from __future__ import annotations

import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

MOMENT = 0.5  # seconds without a word
FRAME = 0.1  # seconds between two pictures of the bar
_log = logging.getLogger("tilegrad")
_current: ContextVar[Progress | None] = ContextVar("tilegrad_progress", default=None)


class Progress:
    """One piece of work: how many of its parts are done, and what is to be said of it."""

    def __init__(self, title: str):
        self.title, self.news, self.done, self.total = title, "", 0, 0
        self.stopped = False  # has the user had enough?
        self._begun = self._drawn = time.monotonic()
        quiet = not _log.isEnabledFor(logging.WARNING)
        self._terminal = sys.stderr is not None and sys.stderr.isatty() and not quiet
        self._said = ""
        self._bar: Any = None

    def __enter__(self) -> Progress:
        outer = _current.get()
        self._token = _current.set(outer or self)
        return outer or self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)
        if _current.get() is None:
            self.show()
        if self._bar is not None:
            self._bar.stop()

    def tell(self, news: str, done: int = 0, total: int = 0) -> None:
        """To be shown with the next tick, if work goes on for so long."""
        self.news, self.done, self.total = news, done, total

    def show(self) -> None:
        now = time.monotonic()
        if now - self._begun < MOMENT:
            return
        if not self._terminal and self.news != self._said:
            _log.info("%s: %s", self.title, self.news)
            self._said = self.news
        elif self._terminal and now - self._drawn >= FRAME:
            self._drawn = now
            self._draw()

    def _draw(self) -> None:
        if self._bar is None:
            from rich import progress as rich
            from rich.console import Console

            columns = "{task.description}", rich.BarColumn(20), rich.TimeElapsedColumn(), "{task.fields[news]}"
            self._bar = rich.Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
            self._bar.start()
            self._bar.add_task(self.title, total=None, news="")
        self._bar.update(0, completed=self.done, total=self.total or None, news=self.news, refresh=True)

    def stop(self) -> None:
        """Ctrl-C: end with what there is. The second one is an interrupt, whatever there is."""
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True


def tick() -> None:
    """Work goes on."""
    if (found := _current.get()) is not None:
        found.show()


def stop() -> None:
    """Ctrl-C, where what was found so far is an answer. If nobody waits for one, it stays an interrupt."""
    if (found := _current.get()) is None:
        raise KeyboardInterrupt
    found.stop()
