"""Bytes and shapes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.errors import InputError
from tilegrad.units import (
    format_bytes,
    format_extra,
    format_predicted,
    format_ratio,
    format_seconds,
    format_sizes,
    is_decimal,
    parse_budget,
    parse_budgets,
    parse_bytes,
    parse_sizes,
    round_up,
    units_like,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4GiB", 4 * 2**30),
        ("300MB", 300_000_000),
        ("300 mb", 300_000_000),
        (" 1.5 KiB ", 1536),
        ("1.5e9", 1_500_000_000),
        (".5KB", 500),
        ("2TiB", 2**41),
        ("7", 7),
        ("7B", 7),
        (4096, 4096),
        (4e9, 4_000_000_000),
        (2**62 + 1, 2**62 + 1),
    ],
)
def test_parse_bytes(text: str | float, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "GiB", "4 GiB more", "4XB", "1,5GB", "-3MB", "nan", "inf", "0x10", "٤GB", "4e-2GB"]
)
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(InputError, match="is not a number of bytes") as caught:
        parse_bytes(text)
    assert caught.value.hint is not None and "4GiB" in caught.value.hint


@pytest.mark.parametrize("size", [0, -1, "0", "0.4", "1e400", 2**63, 10**400, float("nan"), float("inf"), "9" * 5000])
def test_impossible_sizes(size: str | float) -> None:
    with pytest.raises(InputError, match="is not possible"):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4GB", 4_000_000_000),
        ("4GiB", 2**32),
        (4096, 4096),
        (4e9, 4_000_000_000),
        ("0.5 of device", 8_000_000_000),
        ("50% of device", 8_000_000_000),
        (" 12.5 %  of the Device ", 2_000_000_000),
        (".25 of device", 4_000_000_000),
        ("1 of device", 16_000_000_000),
        ("100% of device", 16_000_000_000),
    ],
)
def test_parse_budget(text: str | float, count: int) -> None:
    assert parse_budget(text, 16_000_000_000) == count


@pytest.mark.parametrize("text", ["0 of device", "0% of device", "2 of device", "101% of device", "1.0001 of device"])
def test_impossible_shares(text: str) -> None:
    with pytest.raises(InputError, match=f"a budget of {text} is not possible"):
        parse_budget(text, 16_000_000_000)


@pytest.mark.parametrize(
    "text",
    ["", "of device", "half of device", "-0.5 of device", "nan of device", "0.5 of", "0.5 of the host", "0.5device"],
)
def test_what_is_not_a_budget(text: str) -> None:
    with pytest.raises(InputError, match="is not a number of bytes"):
        parse_budget(text, 16_000_000_000)


@pytest.mark.parametrize("size", [0, -1, float("nan"), "0"])
def test_impossible_budgets(size: str | float) -> None:
    with pytest.raises(InputError, match="is not possible"):
        parse_budget(size, 16_000_000_000)


def test_a_share_of_a_device_of_unknown_size() -> None:
    assert parse_budget("4GB", None) == 4_000_000_000
    with pytest.raises(InputError, match=r"0.5 of device: how large the device is is not known here"):
        parse_budget("0.5 of device", None)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.00KiB"),
        (2**31, "2.00GiB"),
        (1000 * 1024, "1000KiB"),
        (2**20 - 1, "1024KiB"),
        (int(12.34 * 2**20), "12.3MiB"),
        (int(9.996 * 2**20), "10.0MiB"),
        (int(99.96 * 2**20), "100MiB"),
        (2**60, "1048576TiB"),
        (-(2**31), "-2.00GiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(1, 2**62))
def test_what_is_written_can_be_read(count: int) -> None:
    """Three figures are kept: half a unit of the third is one in two hundred."""
    assert abs(parse_bytes(format_bytes(count)) - count) <= count / 200


@given(st.lists(st.integers(1, 10**12 - 1), min_size=1, max_size=6).map(tuple))
def test_sizes_round_trip(sizes: tuple[int, ...]) -> None:
    assert parse_sizes(format_sizes(sizes)) == sizes


@pytest.mark.parametrize("text", ["1x3x64x64", "1,3,64,64", "1, 3, 64, 64", " 1X3×64x64 "])
def test_ways_to_write_a_shape(text: str) -> None:
    assert parse_sizes(text) == (1, 3, 64, 64)


@pytest.mark.parametrize("text", ["", "x", "1x", "1xx2", "0x3", "-1x3", "1.5x2", "3 4", "1x" + "9" * 5000, "٣x٣"])
def test_what_is_not_a_shape(text: str) -> None:
    with pytest.raises(InputError, match="is not a grid") as caught:
        parse_sizes(text, "grid")
    assert "1x3x512x512" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "budgets"),
    [
        ("4GB", [4_000_000_000]),
        ("50% of device", [8_000_000_000]),
        ("40%", [400]),
        ("2.5 % of plain", [25]),
        ("120%", [1200]),
        ("10%..90%", [100, 200, 300, 400, 500, 600, 700, 800, 900]),
        ("1.5kB..1.9kB", [1500, 1550, 1600, 1650, 1700, 1750, 1800, 1850, 1900]),
        ("10%..900", [100, 200, 300, 400, 500, 600, 700, 800, 900]),
    ],
)
def test_budgets_and_ranges_of_them(text: str, budgets: list[int]) -> None:
    assert parse_budgets(text, 16_000_000_000, 1000) == budgets


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0%", "a budget of 0% is not possible"),
        ("90%..10%", "the budgets 90%..10% do not go from less to more"),
        ("1GB..1GB", "do not go from less to more"),
        ("..4GB", "'' is not a number of bytes"),
        ("1GB..", "'' is not a number of bytes"),
        ("1GB..2GB..3GB", "'2GB..3GB' is not a number of bytes"),
        ("-10%", "'-10%' is not a number of bytes"),
    ],
)
def test_what_are_no_budgets(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_budgets(text, 16_000_000_000, 1000)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(84.0, "84 s"), (1.038, "1.0 s"), (0.999, "1.0 s"), (0.5432, "540 ms"), (0.0228, "23 ms"), (3.1e-5, "31 µs"),
     (1234.0, "1200 s"), (4e-8, "40 ns"), (0.0, "0 s"), (float("inf"), "–"), (float("nan"), "–")],
)  # fmt: skip
def test_predicted_seconds_have_two_figures(seconds: float, text: str) -> None:
    assert format_predicted(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4000.0, "4000 s"), (84.0, "84.0 s"), (9.996, "10.0 s"), (0.9996, "1.00 s"), (0.996, "996 ms"),
     (0.0228, "22.8 ms"), (3.79e-4, "379 µs"), (4e-8, "40.0 ns"), (-0.0228, "-22.8 ms"), (0.0, "0 s"),
     (float("inf"), "–")],
)  # fmt: skip
def test_seconds_have_three_figures(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.269, "+130%"), (1.074, "+110%"), (0.269, "+27%"), (0.034, "+3%"), (0.0, "+0%"), (-0.003, "+0%"),
     (-0.41, "-41%"), (0.994, "+99%"), (0.9951, "+100%"), (12.34, "+1200%"), (float("inf"), "–")],
)  # fmt: skip
def test_extra_time_is_known_to_two_figures(share: float, text: str) -> None:
    assert format_extra(share) == text


@pytest.mark.parametrize(
    ("ratio", "figures", "text"),
    [
        (2.269, 2, "2.3"),
        (2.269, 3, "2.27"),
        (0.4712, 2, "0.47"),
        (0.9961, 2, "1.0"),
        (126.9, 2, "130"),
        (1.0, 3, "1.00"),
    ],
)
def test_ratios_have_the_figures_of_what_they_are_made_of(ratio: float, figures: int, text: str) -> None:
    assert format_ratio(ratio, figures) == text


def test_bytes_in_the_units_of_who_asks() -> None:
    sizes = (999, 1000, 999_499, 999_999, 10**9, 2**31)
    with units_like(is_decimal("2GB..6GB")):
        assert [format_bytes(size) for size in sizes] == ["999B", "1.00kB", "999kB", "1.00MB", "1.00GB", "2.15GB"]
        assert round_up(1_000_001) == "2MB"
    assert format_bytes(2**31) == "2.00GiB" and round_up(2**20) == "1MiB"
    assert [text for text in ("4GB", "4 kb", "4GiB", "40%", "1e9", "0.5 of device") if is_decimal(text)] == [
        "4GB",
        "4 kb",
    ]
