"""One node's tape: what it holds, what it looks up, and what happens when a value comes back with other strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.bounds import call_of
from tilegrad.importers import export_module
from tilegrad.ops import find
from tilegrad.runtime.tape import Tape, fills, memory_of, run_taped


class Function(nn.Module):
    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def taped(function: Callable[..., Tensor], *inputs: Tensor, kept: Any = None) -> tuple[Tensor, Tape, dict[str, Tensor]]:
    """The only node of a function, run on its inputs: result, tape and values by name."""
    graph = export_module(Function(function), inputs).graph
    (node,) = graph.nodes
    anchor = torch.zeros((), requires_grad=True)
    named = dict(zip(graph.inputs, inputs, strict=True))
    tensors = [named[name] for name in node.reads]
    with torch.no_grad():
        result, tape = run_taped(
            find(node), call_of(graph, node), tensors, frozenset(node.reads), anchor, 0,
            None if kept is None else {n for n in (*node.reads, *node.outputs) if kept},
        )  # fmt: skip
    assert tape is not None
    return result, tape, {**named, node.outputs[0]: result}


def test_inputs_and_output_are_references() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    result, tape, values = taped(F.conv2d, x, w)
    assert not tape.hidden and len(tape.references) == 2 and not result.requires_grad
    found = tape.backward(torch.ones_like(result), values.__getitem__)
    wanted = torch.autograd.functional.vjp(F.conv2d, (x, w), torch.ones_like(result))[1]
    assert all(torch.equal(a, b) for a, b in zip(found.values(), wanted, strict=True))
    _, tape, _ = taped(torch.sigmoid, x)
    assert tape.references == ["sigmoid"] and not tape.hidden


def test_indices_are_hidden() -> None:
    x = torch.randn(1, 2, 6, 6)
    _, tape, _ = taped(lambda t: F.max_pool2d(t, 2), x)
    assert [t.dtype for t in tape.hidden] == [torch.int64] and tape.references == ["inputs_0"]


def test_what_the_plan_does_not_keep_is_hidden() -> None:
    """Kernels on real tensors may save what those without data did not."""
    x = torch.randn(3, 4)
    result, tape, _ = taped(torch.sigmoid, x, kept=False)
    assert not tape.references and memory_of(tape.hidden[0]) == memory_of(result)

    def nothing(name: str) -> Tensor:
        raise AssertionError(name)

    (grad,) = tape.backward(torch.ones_like(result), nothing).values()
    assert torch.allclose(grad, x.sigmoid() * (1 - x.sigmoid()))


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
    for grad, other in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(grad, other)


def test_lookups_end_with_backward() -> None:
    x = torch.randn(3, 4)
    result, tape, _ = taped(torch.sigmoid, x)
    with pytest.raises(KeyError, match="sigmoid"):
        tape.backward(torch.ones_like(result), {}.__getitem__)
    assert not tape.lookup


def test_a_reduced_loss_gives_back_the_memory_it_lies_in() -> None:
    """torch's own lies in memory for all that it reduces."""
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    result, _, _ = taped(torch.ops.aten.mse_loss.default, x, y)
    assert fills(result) and torch.equal(result, F.mse_loss(x, y))
