"""Bytes, seconds and shapes as people write them: "2GiB" <-> 2147483648, "10us" <-> 1e-5, "1x3" <-> (1, 3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite
from typing import Any

from .errors import InputError

_FACTORS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for suffix, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt", start=1)
}
_BYTES = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)

_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*of\s+(?:the\s+)?device\s*", re.IGNORECASE)
_OF_PLAIN = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*%(?:\s*of\s+plain)?\s*", re.IGNORECASE)
RANGE = 9  # budgets in a range: 10%..90% in steps of ten


def parse_bytes(text: str | int | float) -> int:
    """`"4GiB"`, `"300 MB"`, `"1.5e9"` or a number of bytes."""
    found: int | float
    if isinstance(text, str):
        match = _BYTES.fullmatch(text)
        if not match or match[2].lower() not in _FACTORS:
            raise InputError(f"{text!r} is not a number of bytes", hint='"4GiB", "300MB" or 4294967296')
        found = float(match[1]) * _FACTORS[match[2].lower()]
    else:
        found = text
    if not 1 <= found < 2**63:
        raise InputError(f"a size of {text} bytes is not possible", hint='"4GiB", "300MB" or 4294967296')
    return int(found)


def parse_budget(text: str | int | float, device_bytes: int | None = None) -> int:
    """As `parse_bytes`, and `"0.5 of device"`: a share of the device's memory."""
    match = _SHARE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return parse_bytes(text)
    share = float(match[1]) / (100 if match[2] else 1)
    if not 0 < share <= 1:
        raise InputError(f"a budget of {text} is not possible", hint='"0.5 of device", "50% of device"')
    if device_bytes is None:
        raise InputError(f"{text}: how large the device is is not known here", hint='bytes, such as "4GiB"')
    return int(share * device_bytes)


def parse_budgets(text: str, device_bytes: int | None, plain_bytes: int) -> list[int]:
    """As `parse_budget`, and `"40%"`, a share of what plain needs; `"10%..90%"` and `"2GiB..6GiB"` are nine budgets."""
    found = [_budget(part, device_bytes, plain_bytes) for part in text.split("..", 1)]
    if len(found) == 1:
        return found
    low, high = found
    if low >= high:
        raise InputError(f"the budgets {text} do not go from less to more", hint="10%..90%, or 2GiB..6GiB")
    return [low + (high - low) * step // (RANGE - 1) for step in range(RANGE)]


def _budget(text: str, device_bytes: int | None, plain_bytes: int) -> int:
    match = _OF_PLAIN.fullmatch(text)
    if match is None:
        return parse_budget(text, device_bytes)
    found = int(float(match[1]) / 100 * plain_bytes)
    if not 1 <= found < 2**63:
        raise InputError(f"a budget of {text} is not possible", hint="50%, or 10%..90%")
    return found


_DECIMAL = ContextVar("tilegrad_decimal", default=False)


def is_decimal(text: Any) -> bool:
    """Does someone who writes so count in powers of 1000? `"150MB"`, `"2GB..6GB"`"""
    return isinstance(text, str) and re.search(r"[0-9.]\s*[kmgt]b\b", text, re.IGNORECASE) is not None


@contextmanager
def units_like(decimal: bool) -> Iterator[None]:
    """Bytes are printed in the units that they were asked in."""
    token = _DECIMAL.set(decimal)
    try:
        yield
    finally:
        _DECIMAL.reset(token)


def in_decimal() -> bool:
    """Are bytes printed in powers of 1000 here?"""
    return _DECIMAL.get()


# Pages format their figures with the same rule, in `report/report_base.js`: who changes one changes both.
UNKNOWN = "–"  # never 0, which would be a figure
PREDICTED, MEASURED = 2, 3  # figures of seconds that are known


def format_bytes(count: int | float) -> str:
    """Three figures: `format_bytes(2**31) == "2.00GiB"`, inside of `units_like(True)` "2.15GB"."""
    size, decimal = float(count), _DECIMAL.get()
    for unit in ("B", "kB", "MB", "GB", "TB") if decimal else ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < (999.5 if decimal else 1024) or unit[0] == "T":
            break
        size /= 1000 if decimal else 1024
    return f"{size:.0f}{unit}" if unit == "B" else f"{_round(size, 3)}{unit}"


def _round(size: float, figures: int, whole: bool = True) -> str:
    """So many figures of which none is added by rounding: 9.996 is "10.0". `whole`: those before the point stay."""
    edge, power, places = _edge(figures), 10.0, figures - 1
    while abs(size) >= edge * power:
        places, power = places - 1, power * 10
    if places < 0 and not whole:
        return f"{size / 10**-places:.0f}{'0' * -places}"
    return f"{size:.{max(places, 0)}f}"


def _edge(figures: int) -> float:
    """Of a power of ten: what is nearer to it is rounded up to it."""
    return 1 - 5 / 10 ** (figures + 1)


def chart_unit() -> tuple[int, str]:
    """Of an axis, and of sizes to type: a million bytes, or 2**20."""
    return (10**6, "MB") if _DECIMAL.get() else (2**20, "MiB")


def round_up(count: int) -> str:
    """At least so many bytes, as someone would type them: `round_up(1) == "1MiB"`."""
    size, unit = chart_unit()
    return f"{-(-count // size)}{unit}"


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*([a-zµ]*)\s*", re.IGNORECASE)


def parse_seconds(text: str) -> float:
    """`"10us"`, `"1.5 ms"`, `"2s"`; without a unit seconds."""
    match = _DURATION.fullmatch(text)
    if not match or (match[2].lower() or "s") not in _SECONDS:
        raise InputError(f"{text!r} is not a time", hint='"10us", "1.5ms" or "2s"')
    return float(match[1]) * _SECONDS[match[2].lower() or "s"]


def format_predicted(seconds: float) -> str:
    """Two figures, for more are not known: `format_predicted(0.5432) == "540 ms"`."""
    return _format_time(seconds, PREDICTED, whole=False)


def format_seconds(seconds: float) -> str:
    """Three figures with a unit, as much as two runs agree in: `format_seconds(0.0228) == "22.8 ms"`."""
    return _format_time(seconds, MEASURED)


def _format_time(seconds: float, figures: int, whole: bool = True) -> str:
    if not isfinite(seconds):
        return UNKNOWN
    if not seconds:
        return "0 s"
    edge = _edge(figures)
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    unit, size = next((pair for pair in units if abs(seconds) / pair[1] >= edge), units[-1])
    return f"{_round(seconds / size, figures, whole)} {unit}"


def format_extra(share: float) -> str:
    """How much longer than plain a predicted step takes, in two figures: `format_extra(1.269) == "+130%"`."""
    if not isfinite(share):
        return UNKNOWN
    step = 10 ** max(0, len(f"{abs(share) * 100:.0f}") - PREDICTED)
    return f"{round(share * 100 / step) * step:+d}%"


def format_ratio(ratio: float, figures: int) -> str:
    """Of figures that are known as well: `format_ratio(2.269, PREDICTED) == "2.3"`."""
    return f"{ratio:.{figures}f}" if abs(ratio) < _edge(figures) else _round(ratio, figures, whole=False)


def format_rate(per_second: float, what: str) -> str:
    """`format_rate(5.31e12, "FLOP/s") == "5.31 TFLOP/s"`; decimal, as data sheets are."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if abs(per_second) >= size or not prefix:
            break
    return f"{per_second / size:.3g} {prefix}{what}"


def printable(text: str) -> str:
    """Text that cannot steer a terminal and can be encoded: controls and halves of surrogate pairs are replaced."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def parse_sizes(text: str, what: str = "shape") -> tuple[int, ...]:
    """`"1x3x512x512"` or `"1,3,512,512"`; every size at least 1."""
    parts = re.split(r"[x,×]", text.strip().lower())
    if not all(re.fullmatch(r"[0-9]{1,12}", part.strip()) for part in parts) or not all(map(int, parts)):
        raise InputError(f"{text!r} is not a {what}", hint="sizes of at least 1 joined by x, such as 1x3x512x512")
    return tuple(int(part) for part in parts)


def format_sizes(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))
