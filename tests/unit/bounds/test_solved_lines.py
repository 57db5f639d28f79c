"""Lines that differ in names alone are solved once, and each has what solving it by itself gives; so have values that
are made where their one reader is (rule L5)."""

from __future__ import annotations

import pytest
import torch

from tilegrad.bounds import SolvedLines, lower_graph, tile_line
from tilegrad.bounds.lines import _tile_line
from tilegrad.importers import export_module
from tilegrad.models import NETWORKS, example_shape
from tilegrad.planners.tiling import UncutPhase, Walks
from tilegrad.region import cuts_of_count


@pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])
@pytest.mark.parametrize("name", ["resnet18", "densenet121", "unet"])
def test_lines_of_one_shape(name: str, mode: str) -> None:
    net = NETWORKS[name](width=0.25).train()
    graph = lower_graph(export_module(net, (torch.zeros(example_shape(name, 256)),), {}).graph)
    parts = [p for p in Walks(graph).parts(("h", "w"), complete=True) if isinstance(p, UncutPhase)]
    lines, solved = [line for part in parts for line in part.lines.values()], SolvedLines()
    for line in lines:
        cuts = {value: cuts_of_count(line.sizes[value], 3) for value in line.starts(mode)}
        some = [value for at, value in enumerate(line.sizes) if at % 2]
        ones = [value for value, one in line.folded.one.items() if list(line.sizes).index(one) % 2]
        for carried in (None, some, ones) if mode == "stream" else (None,):
            assert solved(line, mode, cuts, carried) == tile_line(line, mode, cuts, carried)
            assert tile_line(line, mode, cuts, carried) == _tile_line(line, mode, cuts, carried)
        assert mode == "gather" or line.folded.fits(cuts, ones)
    assert len({line.shape for line in lines}) < len(lines)
    assert any(len(line.folded.line.sizes) < len(line.sizes) for line in lines)
