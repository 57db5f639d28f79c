"""In-place writes made pure: these functions give what eager PyTorch gives, through all aliases, or are refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.errors import CaptureError
from tilegrad.importers import export_module
from tilegrad.ir import Graph
from tilegrad.ops import Call, Place, find
from tilegrad.region import Box

# Statements on y, a fresh (1, 4, 5, 6) tensor; what they leave in `out` is the result.
EXACT = """
y.relu_(); out = y
y += 1; out = y
z = y; z += 1; out = y * z
y.mul_(2).add_(1); out = y
out = F.relu(y, inplace=True) + y
y[:, 0] = 0; out = y
y[:, 0] += 2; out = y
y[:, :, ::2] = 5; out = y
y[0, 1, 2, 3] = 7; out = y
y[..., 1:-1, 1:-1] = y[..., 1:-1, 1:-1] * 2; out = y
y[:, 0], y[:, 1] = y[:, 2] * 1, y[:, 3] * 1; out = y
y[:, 1] = y[:, 0]; y[:, 2] = y[:, 1] * 2; out = y
y[y > 0] = 0; out = y
y[:, torch.tensor([0, 2])] = 0; out = y
y[:, 0].add_(y[:, 1]); out = y
y[:, 0, 1:3].mul_(2); out = y
y.fill_(3); out = y
y.zero_(); out = y + 1
y.masked_fill_(y > 0, 1.0); out = y
y.clamp_(0, 1); out = y
y.squeeze_(0); out = y * 2
y.index_add_(1, torch.tensor([0]), y[:, :1] * 2); out = y
z = torch.zeros_like(y); z.copy_(y); out = z
z = torch.zeros_like(y, dtype=torch.float32); z.copy_(y); out = z
m = y > 0; n = m; m |= y < -3; out = n
m = y > 0; n = m; m &= y < 9; m ^= y < 4; out = n

v = y[:, 1]; v.mul_(2); out = y
v = y[:, 1:3]; y.add_(1); out = v
v = y[:, 0]; w = v[:, 1]; w.fill_(9); out = y + v.sum()
v = y[:, 0]; w = y[:, 0]; v.fill_(9); out = w
v = y[:, :2]; w = v.view(-1); y.add_(1); out = w * 2
v = y.view(-1); v.relu_(); out = y
v = y.flatten(2); v.mul_(2); out = y
v = y.unflatten(1, (2, 2)); v[:, 0].zero_(); out = y
v = y.reshape(4, 30); v.add_(1); out = y
v = y.transpose(1, 2).contiguous(); v.add_(1); out = y
v = y.view_as(y); v.add_(1); out = y
v = y.squeeze(0); v.add_(1); out = y
v = y.unsqueeze(0); y.add_(1); out = v
v = y.detach(); v.zero_(); out = y
v = y.contiguous(); v.add_(1); out = y
v = y.to(torch.float64); v.add_(1); out = y
v = y.clone(); v.add_(1); out = y
v = F.dropout(y, 0.5, False); v.add_(1); out = y
v = y.narrow(1, 1, 2); v.zero_(); out = y

a, b = y.chunk(2, 1); a.relu_(); out = y
a, b = y.chunk(2, 1); y.relu_(); out = a + b
a, b = y.split([1, 3], 1); b.mul_(3); out = y
a, b = y.tensor_split(2, 3); y.mul_(3); out = b
a = y.unbind(1); a[2].mul_(3); out = y + a[2]

v = y.permute(0, 2, 3, 1); y.add_(1); out = v
v = y.T; y.add_(1); out = v
v = y.mT; y.add_(1); out = v
v = y.swapaxes(1, 2); y.add_(1); out = v
v = y.movedim(1, 2); y.add_(1); out = v
v = y.expand(3, 4, 5, 6); y.add_(1); out = v
v = y.expand_as(y); y.add_(1); out = v
v = y.broadcast_to(2, 4, 5, 6); y.add_(1); out = v
v = y.unfold(2, 2, 1); y.add_(1); out = v
v = y.diagonal(dim1=2, dim2=3); y.add_(1); out = v
"""

REFUSED = {
    "y.transpose(1, 2)[..., 0] = 3; out = y": "a write into the result of 'transpose'",
    "y.permute(0, 2, 3, 1).mul_(2); out = y": "a write into the result of 'permute'",
    "y.diagonal(dim1=2, dim2=3).zero_(); out = y": "a write into the result of 'diagonal'",
    "y.as_strided((4,), (1,)).zero_(); out = y": "a write into the result of 'as_strided'",
}


class Written(nn.Module):
    def __init__(self, statements: str):
        super().__init__()
        self.code = compile(statements.replace("; ", "\n"), "<statements>", "exec")

    def forward(self, x: Tensor) -> Tensor:
        names = {"torch": torch, "F": F, "y": x * 1}
        exec(self.code, names)
        return names["out"]


def evaluate(graph: Graph, values: dict[str, Tensor]) -> Tensor:
    """Node by node, with fingerprints: no node may change what another made."""
    before = {name: value.clone() for name, value in values.items()}
    for node in graph.nodes:
        call = Call(node, tuple(map(graph.type, node.reads)), tuple(map(graph.type, node.outputs)))
        op, out = find(node), Box.full(call.out.shape)
        needs = op.needs(call, out) or tuple(Box.full(t.shape) for t in call.inputs)
        tiles = [values[v][box.slices] for v, box in zip(node.reads, needs, strict=True)]
        values[node.outputs[0]] = op.run(call, tiles, Place(out, needs))
        before[node.outputs[0]] = values[node.outputs[0]].clone()
    assert all(torch.equal(before[name], value) for name, value in values.items())
    return values[graph.outputs[0]]


IMAGE = torch.arange(120, dtype=torch.float64).view(1, 4, 5, 6) - 60


@pytest.mark.parametrize("statements", [line for line in EXACT.split("\n") if line])
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_writes_reach_every_alias(statements: str) -> None:
    captured = export_module(Written(statements), [IMAGE])
    found = evaluate(captured.graph, captured.bind([IMAGE.clone()]))
    wanted = Written(statements)(IMAGE)
    assert found.dtype == wanted.dtype and torch.equal(found, wanted)


@pytest.mark.parametrize(("statements", "message"), REFUSED.items())
def test_what_cannot_be_made_pure_is_refused(statements: str, message: str) -> None:
    with pytest.raises(CaptureError, match=f"in-place write that cannot be made pure: {message}") as caught:
        export_module(Written(statements), [IMAGE])
    assert "test_in_place.py" in caught.value.where and "new tensor" in caught.value.hint


def test_no_node_of_a_captured_network_writes() -> None:
    network = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(True), nn.Hardtanh(inplace=True))
    graph = export_module(network, [(1, 4, 5, 6)]).graph
    assert [n.op for n in graph.nodes] == ["conv2d", "relu", "hardtanh"]
