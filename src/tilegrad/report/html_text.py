"""Texts made harmless to read."""

from __future__ import annotations

import re

MOST_TEXT = 500  # characters; who reads more in a tip?

# What breaks lines, turns the direction of writing or is half a character would garble the text around a name.
_UNRULY = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean_text(text: str, most: int = MOST_TEXT) -> str:
    """One line without characters that act on others, cut where it is long."""
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    return _UNRULY.sub("\ufffd", cut)
