"""Graphs of the reference networks, narrow and small, captured once per test process and without weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from tilegrad.importers import capture
from tilegrad.ir import Graph
from tilegrad.models import NETWORKS, example_shape

# Keyword arguments of a small version of each network, and an odd input size it can take.
SMALL: dict[str, tuple[dict[str, Any], int]] = {
    **{name: ({"width": 1 / 16}, 129) for name in NETWORKS},
    "unet": ({"width": 1 / 16, "depth": 3}, 45),
    "unet_valid": ({"base": 4, "depth": 2}, 47),
    "unet3d": ({"width": 1 / 8, "padding": "same"}, 19),
    "wavenet1d": ({"width": 1 / 16, "layers": 3, "stacks": 2}, 61),
}
NAMES = tuple(SMALL)


@cache
def reference_graph(name: str) -> Graph:
    kwargs, size = SMALL[name]
    with torch.device("meta"):
        network = NETWORKS[name](**kwargs)
    return capture(network, example_shape(name, size))
