"""One node's tape: what it holds, what it looks up, and what happens when a value comes back with other strides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.bounds import call_of
from tilegrad.execution.saved import fills
from tilegrad.importers import export_module
from tilegrad.ops import find
from tilegrad.sim.training import Tape, run_taped


class Function(nn.Module):
    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def taped(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Tape, dict[str, Tensor]]:
    """The only node of a function, run on its inputs: result, tape and values by name."""
    graph = export_module(Function(function), inputs).graph
    (node,) = graph.nodes
    anchor = torch.zeros((), requires_grad=True)
    named = dict(zip(graph.inputs, inputs, strict=True))
    tensors = [named[name] for name in node.reads]
    with torch.no_grad():
        result, tape = run_taped(find(node), call_of(graph, node), tensors, frozenset(node.reads), anchor)
    assert tape is not None
    return result, tape, {**named, node.outputs[0]: result}


def test_inputs_and_output_are_references() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    result, tape, values = taped(F.conv2d, x, w)
    assert not tape.hidden and len(tape.saved.names) == 2 and not result.requires_grad
    found = tape.backward(torch.ones_like(result), values.__getitem__)
    wanted = torch.autograd.functional.vjp(F.conv2d, (x, w), torch.ones_like(result))[1]
    assert found.keys() == {"inputs_0", "inputs_1"}
    assert all(torch.equal(found[f"inputs_{at}"], grad) for at, grad in enumerate(wanted))
    _, tape, _ = taped(torch.sigmoid, x)
    assert tape.saved.names == ["sigmoid"] and not tape.hidden


def test_indices_are_hidden() -> None:
    _, tape, _ = taped(lambda t: F.max_pool3d(t, 2), torch.randn(1, 2, 6, 6, 4))
    assert [t.dtype for t in tape.hidden] == [torch.int64] and tape.saved.names == ["inputs_0"]


def test_a_node_runs_as_it_does_by_itself() -> None:
    """By a kernel of ours, which remembers no indices."""
    _, tape, _ = taped(lambda t: F.max_pool2d(t, 2), torch.randn(1, 2, 6, 6))
    assert not tape.hidden and tape.saved.names == ["inputs_0", "max_pool2d"]


@pytest.mark.parametrize("function", [F.linear, lambda x, w: x.flatten(1) @ w[:, :1].expand(-1, 3)])
def test_a_value_may_come_back_with_other_strides(function: Callable[..., Tensor]) -> None:
    x, w = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(6, 5)
    if function is not F.linear:
        x, w = x[:, :, 0], torch.randn(15, 2)
        x, function = x.flatten(1).t().contiguous().t(), torch.matmul
    result, tape, values = taped(function, x, w)
    again = {name: value.contiguous() for name, value in values.items()}
    found = tape.backward(torch.ones_like(result), again.__getitem__)
    wanted = torch.autograd.functional.vjp(function, (x, w), torch.ones_like(result))[1]
    assert found.keys() == {"inputs_0", "inputs_1"}
    for at, grad in enumerate(wanted):
        torch.testing.assert_close(found[f"inputs_{at}"], grad)


def test_a_value_that_nobody_has() -> None:
    result, tape, _ = taped(torch.sigmoid, torch.randn(3, 4))
    with pytest.raises(KeyError, match="sigmoid"):
        tape.backward(torch.ones_like(result), dict[str, Tensor]().__getitem__)


def test_a_reduced_loss_gives_back_the_memory_it_lies_in() -> None:
    """torch's own lies in memory for all that it reduces."""
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    result, _, _ = taped(torch.ops.aten.mse_loss.default, x, y)
    assert fills(result) and torch.equal(result, F.mse_loss(x, y))
