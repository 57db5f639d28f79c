"""A report in a tab of the browser: waiting for it, pointing at its charts, reading what they say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page as Tab

Open = Callable[..., Tab]
END_MS = 8.0  # of the small profile


def wait_until(tab: Tab, expression: str, *arguments: Any) -> None:
    """The policy of the page forbids what Playwright would do: to wait inside it."""
    deadline = time.monotonic() + 10
    while not tab.evaluate(expression, *arguments):
        assert time.monotonic() < deadline, expression
        settle(tab)


def settle(tab: Tab) -> None:
    """Wait for what is drawn with the next frame."""
    tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def time_x(tab: Tab, chart: str, ms: float, lo_ms: float = 0.0, hi_ms: float = END_MS) -> float:
    """The pixel of a moment: as `frameOf` of the report has it, on a wide screen."""
    box = tab.locator(f"#{chart}-chart").bounding_box()
    assert box is not None
    return 76 + (ms - lo_ms) / (hi_ms - lo_ms) * (box["width"] - 76 - 16)


def hover(tab: Tab, chart: str, x: float, y: float) -> list[str]:
    """The lines of the tip; none where nothing is shown."""
    tab.locator(f"#{chart}-chart").hover(position={"x": x, "y": y})
    return tip(tab, chart)


def tip(tab: Tab, chart: str) -> list[str]:
    found = tab.locator(f"#{chart}-chart .tip")
    return found.locator("div").all_text_contents() if found.is_visible() else []


def drag(tab: Tab, chart: str, from_x: float, to_x: float) -> None:
    place = tab.locator(f"#{chart}-chart")
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + from_x, box["y"] + 100)
    tab.mouse.down()
    tab.mouse.move(box["x"] + (from_x + to_x) / 2, box["y"] + 110)
    tab.mouse.move(box["x"] + to_x, box["y"] + 120)
    tab.mouse.up()


def shown_range(tab: Tab) -> str:
    return tab.locator("#range").inner_text()
