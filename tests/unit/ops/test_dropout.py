"""Dropout draws by place: the same element gets the same draw in any box, and different elements differ."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.importers import export_module
from tilegrad.ir import Node
from tilegrad.ops import Call, Place, find
from tilegrad.ops.random import uniform
from tilegrad.region import Box

SHAPE = (2, 3, 8, 9)
MODULES = {
    "dropout": nn.Dropout(0.4),
    "feature_dropout": nn.Dropout2d(0.4),
    "alpha_dropout": nn.AlphaDropout(0.4),
    "feature_alpha_dropout": nn.FeatureAlphaDropout(0.4),
}


def dropout_node(name: str) -> tuple[Node, Call]:
    graph = export_module(MODULES[name].train(), [torch.zeros(SHAPE).double()]).graph
    (node,) = [n for n in graph.nodes if n.op == name]
    return node, Call(node, (graph.type(node.reads[0]),), (graph.type(node.outputs[0]),))


def drop(name: str, x: Tensor, box: Box, seed: int = 1) -> Tensor:
    node, call = dropout_node(name)
    return find(node).run(call, [x[box.slices]], Place(box, (box,), seed))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("box", [Box(((0, 2), (0, 3), (2, 5), (4, 9))), Box(((1, 2), (0, 3), (7, 8), (0, 1)))])
def test_a_box_gets_the_draws_of_the_whole(name: str, box: Box) -> None:
    x = torch.arange(1.0, 433.0, dtype=torch.float64).view(SHAPE)
    whole = drop(name, x, Box.full(SHAPE))
    assert torch.equal(drop(name, x, box), whole[box.slices])
    assert not torch.equal(whole, x)


@pytest.mark.parametrize("name", MODULES)
def test_seeds_differ(name: str) -> None:
    x = torch.ones(SHAPE).double()
    draws = [drop(name, x, Box.full(SHAPE), seed) for seed in range(8)]
    assert any(not torch.equal(a, draws[0]) for a in draws[1:])


@pytest.mark.parametrize("name", ["feature_dropout", "feature_alpha_dropout"])
def test_a_channel_goes_as_one(name: str) -> None:
    out = drop(name, torch.ones(SHAPE).double(), Box.full(SHAPE), seed=3)
    assert torch.equal(out, out[:, :, :1, :1].expand(SHAPE))


def test_draws_are_uniform_and_unrelated() -> None:
    shape = (4, 4, 128, 128)
    draws = uniform(5, Box.full(shape), torch.device("cpu"))
    assert draws.shape == shape and float(draws.min()) >= 0 and float(draws.max()) < 1
    counts = torch.histc(draws, 64, 0, 1)
    # 4096 draws per bin: five deviations are 320
    assert float((counts - 4096).abs().max()) < 320
    for dim in range(4):
        neighbours = torch.stack([draws.narrow(dim, 0, 3).flatten(), draws.narrow(dim, 1, 3).flatten()])
        assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 0.05
    assert draws.unique().numel() == draws.numel()


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_scale_and_extremes(p: float) -> None:
    graph = export_module(nn.Dropout(p), [torch.zeros(1, 1, 64, 64)]).graph
    (node,) = graph.nodes
    call, box = Call(node, (graph.type(graph.inputs[0]),), (graph.type(node.outputs[0]),)), Box.full((1, 1, 64, 64))
    out = find(node).run(call, [torch.ones(1, 1, 64, 64)], Place(box, (box,)))
    kept = out != 0
    assert torch.equal(out[kept], torch.full_like(out[kept], 1 / (1 - p) if p < 1 else 0))
    assert abs(float(kept.float().mean()) - (1 - p)) < 0.04


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    shape = (1, 1, 256, 256)
    graph = export_module(nn.AlphaDropout(0.3), [torch.zeros(shape)]).graph
    (node,) = graph.nodes
    call, box = Call(node, (graph.type(graph.inputs[0]),), (graph.type(node.outputs[0]),)), Box.full(shape)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    out = find(node).run(call, [x], Place(box, (box,)))
    assert abs(float(out.mean())) < 0.03 and abs(float(out.var()) - 1) < 0.05
    # and torch's own has the same values where nothing was dropped
    reference = F.alpha_dropout(x, 0.3, training=True)
    assert torch.isclose(out.unsqueeze(-1), reference.unsqueeze(-1)).any()
