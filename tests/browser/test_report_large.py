"""A hundred thousand operators and fifteen thousand blocks stay smooth. Figures: bench/report.py."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType

import pytest
from tabs import Open, drag, shown_range

OPERATORS, BLOCKS = 100_000, 15_000


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_report", Path(__file__).parents[2] / "bench" / "report.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_large_profile(open_page: Open, bench: ModuleType, tmp_path: Path) -> None:
    page = bench.large_page(OPERATORS, BLOCKS)
    begin = time.perf_counter()
    tab = open_page(page)
    assert time.perf_counter() - begin < 15  # writing included; opening alone takes about one second
    assert 5e6 < (tmp_path / "page0.html").stat().st_size < 16e6
    assert "of 100,000" in tab.inner_text("#operators .pages") and "15,000 blocks" in tab.inner_text("#map-caption")
    for chart in ("memory", "map", "timeline"):
        tab.locator(f"#{chart}-chart").scroll_into_view_if_needed()
        assert bench.summary(tab.evaluate(bench.HOVER, chart))["median"] < 200
        assert bench.summary(tab.evaluate(bench.ZOOM, chart))["median"] < 1000
    assert tab.evaluate(bench.SEARCH, "layer3") < 2000
    drag(tab, "memory", 300, 310)
    assert not shown_range(tab).startswith("all")
