"""A GPU that nobody has measured: the table's figures where it is in the table, else what its properties say."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from typing import Any

from .machine import PRESETS, Machine

# By compute capability: the card of the table whose operations per clock and processor are taken.
RELATIVES = {7: "v100", 8: "a100"}
LATEST = "h200"
PROCESSORS = {"v100": (80, 1.53e9), "a100": (108, 1.41e9), "h200": (132, 1.98e9)}  # how many, and their clock
USUAL_CLOCK = 1.5e9  # where a driver does not tell
_log = logging.getLogger("tilegrad")


def card(properties: Any) -> Machine:
    """`properties`: as torch.cuda.get_device_properties gives them."""
    name = str(properties.name)
    known = next((each for each in PRESETS if each in name.lower()), None)
    if known is not None and known in PROCESSORS:
        return replace(PRESETS[known], device_bytes=int(properties.total_memory), kernel_s=PRESETS[LATEST].kernel_s)
    like = RELATIVES.get(int(properties.major), LATEST)
    _say(name, like)
    relative, (count, clock) = PRESETS[like], PROCESSORS[like]
    here = int(properties.multi_processor_count) * (getattr(properties, "clock_rate", 0) * 1e3 or USUAL_CLOCK)
    share = here / (count * clock)
    wide = getattr(properties, "memory_bus_width", 0) / 8 * getattr(properties, "memory_clock_rate", 0) * 2e3
    return replace(
        relative,
        name=name,
        flops_per_s=relative.flops_per_s * share,
        rates={dtype: rate * share for dtype, rate in relative.rates.items()},
        bytes_per_s=wide or relative.bytes_per_s * share,
        device_bytes=int(properties.total_memory),
        launch_s=PRESETS[LATEST].launch_s,
        kernel_s=PRESETS[LATEST].kernel_s,
    )


@cache
def _say(name: str, like: str) -> None:
    _log.info("%s was never measured: taken as a %s of its size (tilegrad bench machine measures it)", name, like)
