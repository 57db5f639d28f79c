"""Reports in a real browser. Whatever a page does, it must stay silent: no error, no message, no request."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as Tab
from tabs import Open, settle

from tilegrad.report.html import save_page
from tilegrad.report.page import Page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("needs a chromium on the PATH")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens pages, and says at the end what they should not have done."""
    complaints: list[str] = []
    tabs: list[Tab] = []

    def open_one(page: Page, width: int = 1400, **options: Any) -> Tab:
        path = tmp_path / f"page{len(tabs)}.html"
        save_page(page, path)
        tab = chromium.new_page(viewport={"width": width, "height": 900}, **options)
        tabs.append(tab)
        tab.on("console", lambda message: complaints.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: complaints.append(f"error: {error.message}"))
        tab.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        tab.on("request", lambda request: request.url == path.as_uri() or complaints.append(f"asks for {request.url}"))
        tab.goto(path.as_uri())
        settle(tab)
        return tab

    yield open_one
    for tab in tabs:
        tab.close()
    assert not complaints
