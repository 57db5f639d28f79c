"""A card that nobody measured is what the table or its properties say, never silently another one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tilegrad.sim.cards import PROCESSORS, card
from tilegrad.sim.machine import PRESETS
from tilegrad.sim.measure import kept_path


def properties(name: str, major: int = 8, processors: int = 46, **more: float) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, major=major, multi_processor_count=processors, total_memory=24 << 30, **{"clock_rate": 1.7e6, **more}
    )


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-16GB"])
def test_a_card_of_the_table(name: str) -> None:
    (known,) = (PRESETS[each] for each in PROCESSORS if each in name.lower())
    found = card(properties(name))
    assert (found.flops_per_s, found.bytes_per_s, found.rates) == (known.flops_per_s, known.bytes_per_s, known.rates)
    assert found.device_bytes == 24 << 30
    assert found.kernel_s is not None


def test_another_card_is_of_its_own_size(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "tilegrad"):
        small = card(properties("NVIDIA T9", memory_bus_width=256, memory_clock_rate=7_000_000.0))
        large = card(properties("NVIDIA T10", processors=92))
    assert small.name == "NVIDIA T9"
    assert small.bytes_per_s == pytest.approx(448e9)
    assert large.flops_per_s == pytest.approx(2 * small.flops_per_s)
    assert small.flops_per_s < PRESETS["a100"].flops_per_s
    assert sum("never measured" in record.message for record in caplog.records) == 2


def test_properties_that_a_driver_does_not_tell() -> None:
    found = card(SimpleNamespace(name="NVIDIA X", major=12, multi_processor_count=132, total_memory=1 << 34))
    assert 0 < found.flops_per_s <= PRESETS["h200"].flops_per_s
    assert 0 < found.bytes_per_s <= PRESETS["h200"].bytes_per_s


def test_a_measurement_of_cuda_is_that_of_its_first_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilegrad.sim.measure.cache_folder", lambda: tmp_path)
    assert kept_path("cuda") == kept_path("cuda:0") != kept_path("cuda:1")
