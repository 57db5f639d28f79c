"""What autograd saves of an island: by name what the plan has there for backward, all else is the record's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.execution import Executor, Pass
from tilegrad.execution.saved import References, memory_of
from tilegrad.importers import export_module
from tilegrad.planners import plan_keep
from tilegrad.schedule import Schedule, fuse
from tilegrad.sim.training import training_graph

CPU = torch.device("cpu")


class Function(nn.Module):
    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def kept(function: Callable[..., Tensor], *inputs: Tensor) -> Schedule:
    """All nodes of a function kept, each an island by itself."""
    graph = export_module(Function(function), inputs).graph
    return fuse(plan_keep(training_graph(graph, graph.inputs)), graph, apart=True)


def begun(schedule: Schedule, *inputs: Tensor) -> tuple[Pass, Tensor]:
    tensors = {name: x.clone().requires_grad_() for name, x in zip(schedule.graph.inputs, inputs, strict=True)}
    run = Pass(Executor(schedule), tensors, CPU)
    (out,), _ = run.forward()
    return run, out


def nothing(name: str) -> Tensor:
    raise AssertionError(name)


def test_only_named_values_are_references() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    for named in (True, False):
        references = References(nothing)
        with references.hooks():
            result = x.sigmoid()
        references.refer({"y": result.detach()} if named else {})
        assert references.names == (["y"] if named else [])
        assert len(references.own) == (0 if named else 1)
        own = [item.tensor for item in references.own]
        assert all(t is not None and memory_of(t) == memory_of(result) for t in own)


def test_a_reference_is_looked_up_in_backward() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    references = References(nothing)
    with references.hooks():
        result = x.sigmoid()
    references.refer({"y": result.detach()})
    asked: list[str] = []

    def other(name: str) -> Tensor:
        asked.append(name)
        return torch.full((3, 4), 0.25)

    references.lookup = other
    (grad,) = torch.autograd.grad(result, x, torch.ones(3, 4))
    assert asked == ["y"] and torch.equal(grad, torch.full((3, 4), 0.25 * 0.75))


def test_islands_refer_to_what_the_plan_has_for_backward() -> None:
    schedule = kept(lambda x: F.max_pool2d(x.sigmoid(), 2).square(), torch.randn(1, 2, 6, 6))
    refers = {name: set(island.refers or ()) for name, island in schedule.islands.items()}
    # an input is there throughout
    pooled = {"sigmoid", "max_pool2d"}
    assert refers == {"sigmoid": {"inputs_0", "sigmoid"}, "max_pool2d": pooled, "square": {"max_pool2d"}}


def test_what_the_plan_does_not_keep_is_the_records_own() -> None:
    """Kernels on real tensors may save what those without data did not."""
    x = torch.randn(3, 4)
    schedule = kept(torch.sigmoid, x)
    (island,) = schedule.islands.values()
    assert island.refers == frozenset({"inputs_0", "sigmoid"})
    bare = replace(schedule, islands={island.name: replace(island, refers=frozenset())})
    for plan, own in ((schedule, 0), (bare, 1)):
        run, out = begun(plan, x)
        (record,) = run.records.values()
        assert len(record.own()) == own and all(memory_of(t) == memory_of(out) for t in record.own().values())
        (grad,) = run.backward([torch.ones_like(out)]).values()
        assert torch.allclose(grad, x.sigmoid() * (1 - x.sigmoid()))


@pytest.mark.parametrize("fails", [False, True])
def test_lookups_end_with_backward(fails: bool) -> None:
    """A record that is done, or that found nothing, knows nobody any more."""
    run, out = begun(kept(torch.sigmoid, torch.randn(3, 4)), torch.randn(3, 4))
    (record,) = run.records.values()
    references = record.hooks
    assert isinstance(references, References)
    if fails:
        references.lookup = nothing
        with pytest.raises(AssertionError, match="sigmoid"):
            run.backward([torch.ones_like(out)])
    else:
        run.backward([torch.ones_like(out)])
    assert not run.records and not record.stored and not record.whole
    assert record.__dict__["hooks"] is None


@pytest.mark.parametrize("move", [False, True])
def test_what_is_the_records_own_goes_and_comes_back(move: bool) -> None:
    """The places of the largest, which are no value's; of a plane they would be forgotten."""
    x = torch.randn(1, 2, 6, 6, 4)
    run, out = begun(kept(lambda t: F.max_pool3d(t, 2), x), x)
    (record,) = run.records.values()
    (places,) = record.own().values()
    assert places.dtype is torch.int64
    saved = record.island.saved
    if move:
        run._move(saved, "host")
        run._free(saved)
        assert not record.own()
        run._move(saved, "device")
        assert [torch.equal(t, places) for t in record.own().values()] == [True]
    (grad,) = run.backward([torch.ones_like(out)]).values()
    assert int(grad.sum()) == out.numel() and torch.equal(x[grad > 0].sort()[0], out.flatten().sort()[0])
