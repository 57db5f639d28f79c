"""Normalisations that remember: lowering leaves the buffers' new values, once, as torch would have set them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from tilegrad.bounds import lower_graph
from tilegrad.importers import export_module
from tilegrad.ir import Graph
from tilegrad.ops import Call, Place, aten, find
from tilegrad.ops.norm import frozen_norm, frozen_numbers
from tilegrad.region import Box

MODULES = {
    "batch": nn.BatchNorm2d(3),
    "batch, 1d": nn.BatchNorm1d(3),
    "batch, 3d": nn.BatchNorm3d(3),
    "batch, slow": nn.BatchNorm2d(3, momentum=0.01, eps=0.1),
    "batch, plain": nn.BatchNorm2d(3, affine=False),
    "batch, forgets": nn.BatchNorm2d(3, track_running_stats=False),
    "instance": nn.InstanceNorm2d(3),
    "instance, remembers": nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    "group": nn.GroupNorm(1, 3),
    "group, plain": nn.GroupNorm(3, 3, affine=False),
}
SHAPES = {"batch, 1d": (2, 3, 7), "batch, 3d": (2, 3, 4, 3, 5)}


def evaluate(graph: Graph, values: dict[str, Tensor]) -> dict[str, Tensor]:
    for node in graph.nodes:
        inputs = [values[v] for v in node.reads]
        call = Call(node, tuple(map(graph.type, node.reads)), tuple(map(graph.type, node.outputs)))
        place = Place(Box.full(call.out.shape), tuple(Box.full(t.shape) for t in inputs))
        values[node.outputs[0]] = aten.call(node, inputs) if node.target else find(node).run(call, inputs, place)
    return values


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_result_and_buffers(name: str, train: bool) -> None:
    module = copy.deepcopy(MODULES[name]).double().train(train)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 2)
    x = torch.randn(SHAPES.get(name, (2, 3, 5, 4)), dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 3
    captured = export_module(module, [x])
    graph = lower_graph(captured.graph)
    state = module.state_dict()
    values = {v.name: state[v.target].clone() for v in graph.values if v.target in state}
    values |= dict(captured.constants) | {graph.inputs[0]: x}
    values = evaluate(graph, values)
    wanted = module(x)  # only now, for it changes the buffers
    assert torch.allclose(values[graph.outputs[0]], wanted, rtol=1e-12, atol=1e-12)
    after = {old: values[new] for old, new in graph.updates}
    for buffer in (v for v in graph.values if v.target in dict(module.named_buffers())):
        found = after.get(buffer.name, values[buffer.name])
        assert torch.allclose(found, dict(module.named_buffers())[buffer.target or ""], rtol=1e-12), buffer.target
    assert len(after) == len(graph.updates)
    assert bool(after) == (train and any(True for _ in module.buffers()))


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 5, 4), (2, 3, 4, 3, 5)], ids=str)
def test_a_frozen_norm_knows_its_gradients(shape: tuple[int, ...], dtype: torch.dtype, learns: bool) -> None:
    """No further from double precision than torch's own, but for what sums in another order round otherwise."""
    torch.manual_seed(0)
    x, grad, mean, var = torch.randn(shape), torch.randn(shape), torch.randn(3), torch.rand(3) + 0.5
    weight, bias = torch.randn(3), torch.randn(3)

    def gradients(kind: torch.dtype, own: bool) -> list[Tensor]:
        image = x.to(dtype).to(kind).requires_grad_()
        numbers = [t.to(dtype).to(kind).requires_grad_(learns) for t in (weight, bias)]
        known = [t.to(dtype).to(kind) for t in (mean, var)]
        if own:
            rest = (*numbers, *known, 1e-5)
            out = frozen_norm(image, *rest, frozen_numbers(image, *rest))
        else:
            out = nn.functional.batch_norm(image, *known, *numbers, False, 0.0, 1e-5)
        found = torch.autograd.grad(out, [image, *(numbers if learns else ())], grad.to(dtype).to(kind))
        return [out.detach().double(), *(t.double() for t in found)]

    exact, plain, mine = gradients(torch.float64, False), gradients(dtype, False), gradients(dtype, True)
    rounding = 4 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    for right, theirs, ours in zip(exact, plain, mine, strict=True):
        allowed = (theirs - right).abs().max() + rounding * right.abs().max()
        assert (ours - right).abs().max() <= allowed


def test_a_frozen_norm_that_learns_nothing_keeps_no_image() -> None:
    x = torch.randn(1, 3, 16, 16, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):  # type: ignore[func-returns-value]
        rest = torch.ones(3), None, torch.zeros(3), torch.ones(3), 1e-5
        frozen_norm(x, *rest, frozen_numbers(x, *rest))
    assert max(kept, default=0) <= 3
