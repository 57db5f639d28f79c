"""The width multiplier that every factory of this package shares (Howard et al. 2017, section 3.3)."""

from __future__ import annotations

import math


def scaled(channels: int, width: float, multiple: int = 4) -> int:
    """`channels * width`, rounded to `multiple` so that grouped layers and vector lanes divide it.

    Never loses more than a tenth to the rounding (the MobileNet rule), never goes below `multiple`, and
    leaves `channels` untouched at width 1 so that the published parameter counts hold.
    """
    if not (math.isfinite(width) and width > 0):
        raise ValueError(f"width must be positive and finite, got {width}")
    if width == 1.0:
        return channels
    wanted = channels * width
    rounded = max(multiple, int(wanted + multiple / 2) // multiple * multiple)
    return rounded if rounded >= 0.9 * wanted else rounded + multiple
