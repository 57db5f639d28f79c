"""Fused additions are what their two operators are, on every box and in their gradients."""

from __future__ import annotations

import pytest
import torch

from tilegrad.bounds import call_of
from tilegrad.ir import Build, Kind, TensorType
from tilegrad.ops import Place, find
from tilegrad.region import Box


@pytest.mark.parametrize("name", ["add_relu", "add_sigmoid", "add_tanh"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (1, 3, 1, 1)])
def test_a_box_of_the_sum(name: str, shape: tuple[int, ...]) -> None:
    build = Build()
    x = build.value("x", TensorType((2, 3, 5, 6), "float64"), Kind.INPUT)
    y = build.value("y", TensorType(shape, "float64"), Kind.INPUT)
    out = build.emit(name, [("self", x), ("other", y)], TensorType((2, 3, 5, 6), "float64"))
    graph = build.graph([out])
    call, op = call_of(graph, graph.nodes[0]), find(graph.nodes[0])
    torch.manual_seed(0)
    a, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 5, 6), shape))
    wanted = getattr(torch, name.removeprefix("add_"))(a + b)
    box = Box(((0, 1), (0, 3), (1, 4), (2, 6)))
    reads = op.needs(call, box)
    assert reads is not None
    tiles = [t[r.clip(t.shape).slices] for t, r in zip((a, b), reads, strict=True)]
    found = op.run(call, tiles, Place(box, reads))
    torch.testing.assert_close(found, wanted[box.slices], rtol=1e-14, atol=0)
    for mine, theirs in zip(
        torch.autograd.grad(found.sum(), (a, b)), torch.autograd.grad(wanted[box.slices].sum(), (a, b)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)  # sums over a broadcast in another order
