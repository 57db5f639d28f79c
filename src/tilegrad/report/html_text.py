"""Figures as the report shows them, and texts made harmless to read: `report.js` formats numbers in the same way."""

from __future__ import annotations

import math
import re

MIB, GIB = 2**20, 2**30
MOST_TEXT = 500  # characters; who reads more in a tip?

# What breaks lines, turns the direction of writing or is half a character would garble the text around a name.
_UNRULY = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean_text(text: str, most: int = MOST_TEXT) -> str:
    """One line without characters that act on others, cut where it is long."""
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    return _UNRULY.sub("\ufffd", cut)


def format_mib(count: float) -> str:
    """MiB or GiB, nothing else: figures of one page can be compared at a glance."""
    if count == 0:
        return "0 MiB"
    size, unit = (count / GIB, "GiB") if abs(count) >= GIB else (count / MIB, "MiB")
    if abs(size) < 1e-4:
        return "<0.0001 MiB"
    return f"{size:.{0 if abs(size) >= 100 else 1 if abs(size) >= 10 else 2 if abs(size) >= 0.1 else 4}f} {unit}"


def format_seconds(seconds: float) -> str:
    """Seconds, milliseconds or microseconds, four figures."""
    if not math.isfinite(seconds):
        return "unknown"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if abs(seconds) * factor >= 1 or unit == "µs":
            break
    size = seconds * factor
    return f"{size:.{0 if abs(size) >= 1000 else 1 if abs(size) >= 100 else 2 if abs(size) >= 10 else 3}f} {unit}"


def format_share(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "unknown"
