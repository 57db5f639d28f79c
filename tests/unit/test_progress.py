"""Long work says what it is at: on a terminal, or in the log; short work says nothing."""

from __future__ import annotations

import io
import logging

import pytest

from tilegrad import progress
from tilegrad.progress import Progress, stop, tick


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work is long, and every picture is drawn."""
    monkeypatch.setattr(progress, "MOMENT", 0.0)
    monkeypatch.setattr(progress, "FRAME", 0.0)


def work() -> None:
    with Progress("planning") as outer:
        outer.tell("tile at work", 1, 4)
        tick()
        tick()
        with Progress("more of it") as inner:
            inner.tell("mixed at work", 2, 4)
            tick()


def test_the_log(long: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tilegrad"):
        work()
    assert caplog.messages == ["planning: tile at work", "planning: mixed at work"]


def test_a_bar_that_leaves_nothing_behind(
    long: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with caplog.at_level(logging.INFO, "tilegrad"):
        work()
    text = terminal.getvalue()
    assert "planning" in text and "tile at work" in text and "mixed at work" in text
    assert text.endswith("\x1b[2K")  # its line is erased
    assert not caplog.messages


def test_short_work_is_silent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with caplog.at_level(logging.DEBUG, "tilegrad"):
        work()
    assert not terminal.getvalue() and not caplog.messages


def test_no_work_no_word() -> None:
    tick()


def test_the_second_stop_is_an_interrupt() -> None:
    with Progress("planning") as found:
        stop()
        assert found.stopped
        with pytest.raises(KeyboardInterrupt):
            stop()
    with pytest.raises(KeyboardInterrupt):
        stop()  # nobody waits for an answer
