"""Tilings of a graph: boxes by name, and what is said of a grid that does not fit."""

from __future__ import annotations

import pytest
from torch import nn

from reference_graphs import reference_graph
from tilegrad.bounds import tile_graph
from tilegrad.errors import GridError
from tilegrad.importers import capture
from tilegrad.region import Box

CHAIN = capture(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2)), (2, 3, 12, 20))


def test_boxes_of_a_small_chain() -> None:
    tiling = tile_graph(CHAIN, "scatter", {"h": 3, "w": 2})
    source, conv, pool = CHAIN.inputs[0], *(n.outputs[0] for n in CHAIN.nodes)
    assert tiling.grid == (3, 2) and len(tiling.tiles()) == 6 and tiling.last == pool
    assert tiling.box("own", pool, (1, 0)) == Box(((0, 2), (0, 4), (2, 4), (0, 5)))
    assert tiling.box("own", conv, (1, 0)) == Box(((0, 2), (0, 4), (4, 8), (0, 10)))
    assert tiling.box("own", source, (1, 0)) == Box(((0, 2), (0, 3), (3, 9), (0, 11)))


def test_a_stream_carries_the_halo() -> None:
    tiling = tile_graph(CHAIN, "stream", {"h": 3})
    source, conv, _ = CHAIN.inputs[0], *(n.outputs[0] for n in CHAIN.nodes)
    assert tiling.spans["h"].own[source] == ((0, 5), (5, 9), (9, 12))
    assert tiling.spans["h"].held[source] == ((0, 5), (3, 9), (7, 12))  # two rows, as a 3x3 convolution needs
    assert tiling.spans["h"].held[conv] == tiling.spans["h"].own[conv] == ((0, 4), (4, 8), (8, 12))


@pytest.mark.parametrize(
    ("mode", "grid", "message", "hint"),
    [
        ("scatter", {"h": 7}, "7 tiles along h, but 'max_pool2d' has only 6 elements there", "at most 6 tiles along h"),
        ("gather", {"w": 21}, "21 tiles along w, but 'input' has only 20 elements there", "at most 20 tiles along w"),
        ("stream", {"d": 2}, "'Sequential' has no axis 'd'", "one of h, n, w"),
        ("sideways", {"h": 2}, "'sideways' is not a way to tile", "one of gather, scatter, stream"),
    ],
)
def test_what_does_not_fit(mode: str, grid: dict[str, int], message: str, hint: str) -> None:
    with pytest.raises(GridError, match=message) as caught:
        tile_graph(CHAIN, mode, grid)
    assert caught.value.hint == hint


def test_a_network_without_image_axes() -> None:
    with pytest.raises(GridError, match="has no axis 'h'"):
        tile_graph(capture(nn.Linear(3, 4), (2, 3)), "stream", {"h": 2})


def test_nothing_local_along_the_axis() -> None:
    class Flips(nn.Module):
        def forward(self, x):
            return x.flip(2)

    with pytest.raises(GridError, match="nothing in 'Flips' can be tiled along h"):
        tile_graph(capture(Flips(), (1, 3, 8, 8)), "stream", {"h": 2})


def test_the_batch_can_be_tiled() -> None:
    tiling = tile_graph(CHAIN, "stream", {"n": 2})
    assert tiling.box("own", CHAIN.outputs[0], (1,)) == Box(((1, 2), (0, 4), (0, 6), (0, 10)))


def test_a_head_ends_the_image() -> None:
    tiling = tile_graph(reference_graph("resnet18"), "stream", {"h": 2})
    assert tiling.graph.shape(tiling.last)[2:] == (5, 5)
