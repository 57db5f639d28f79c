"""What a GPU's allocator holds for a step, and what is learned from it; the allocator is a stand-in."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tilegrad
from tilegrad.execution import Pass
from tilegrad.modules import reserved, runner
from tilegrad.modules.planned import predicted
from tilegrad.modules.reserved import COARSE, FEW, NEAR, ROOM, Limit, Reserved, first_budget, is_out_of_memory
from tilegrad.sim.machine import CPU

MIB = 1 << 20
MINE = torch.zeros(4 * MIB)  # 16 MiB


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(allocated=16 * MIB, reserved=16 * MIB, share=1.0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1000 * MIB))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: found.share)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: found.__dict__.update(share=share)
    )
    monkeypatch.setattr(reserved, "expand_segments", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(reserved, "allocated_bytes", lambda device: found.allocated)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: found.reserved)
    return found


def plan(need: int) -> SimpleNamespace:
    value = SimpleNamespace(bytes=MIB)
    graph = SimpleNamespace(outputs=("y",), type=lambda name: value, outside_bytes=lambda: 16 * MIB)
    return SimpleNamespace(graph=graph, predicted={"total_bytes": need})


def look(found: Reserved, allocator: SimpleNamespace, held: int, *, others: int = 0, stays: int = 0) -> None:
    """A step that holds so much at most, beside what others have; `stays`: after it."""
    allocator.allocated = allocator.reserved = 16 * MIB + others
    found.begin({"x": MINE}, 0)
    allocator.reserved = held + others
    allocator.allocated += stays + 2 * MIB + 16 * MIB  # an output, its gradient, and the gradient that it came for
    found.end(plan(0), [MINE])  # type: ignore[arg-type]


def limited(budget: int) -> Limit:
    limit = Reserved(torch.device("cpu"), budget).begin({"x": MINE}, budget)
    assert limit is not None
    return limit


def test_within_the_budget_nothing_is_planned_again(allocator: SimpleNamespace) -> None:
    found = Reserved(torch.device("cpu"), 1000 * MIB)
    look(found, allocator, 1000 * MIB + COARSE)
    assert found.lesson(plan(900 * MIB)) is None  # type: ignore[arg-type]


def test_what_others_hold_does_not_count(allocator: SimpleNamespace) -> None:
    found = Reserved(torch.device("cpu"), 1000 * MIB)
    look(found, allocator, 900 * MIB, others=5000 * MIB)
    assert found.lesson(plan(900 * MIB)) is None  # type: ignore[arg-type]


def test_planned_again_for_as_much_less_then_for_less_and_thrice_at_most(allocator: SimpleNamespace) -> None:
    found = Reserved(torch.device("cpu"), 1016 * MIB)
    look(found, allocator, 2016 * MIB)
    assert found.lesson(plan(1016 * MIB)) == 516 * MIB  # type: ignore[arg-type]  # half of what is ours
    look(found, allocator, 1116 * MIB)  # 600 between what is planned
    assert found.lesson(plan(516 * MIB)) == 416 * MIB * 31 // 32  # type: ignore[arg-type]
    look(found, allocator, 2016 * MIB)
    assert found.lesson(plan(1016 * MIB)) == 387 * MIB * 31 // 32  # type: ignore[arg-type]  # not all at once
    look(found, allocator, 2016 * MIB)
    assert found.lesson(plan(1016 * MIB)) is None  # type: ignore[arg-type]


def test_what_libraries_keep_does_not_shrink_with_tiles(allocator: SimpleNamespace) -> None:
    found = Reserved(torch.device("cpu"), 1116 * MIB)
    look(found, allocator, 2116 * MIB, stays=100 * MIB)
    assert found.lesson(plan(1016 * MIB)) == 516 * MIB  # type: ignore[arg-type]  # 500 + 500 for tiles, 100, 16


def test_some_is_left_for_what_no_plan_counts() -> None:
    assert first_budget(1600 * MIB) == 1500 * MIB
    assert first_budget(100 << 30) == (100 << 30) - ROOM


def test_only_the_first_steps_are_looked_at(allocator: SimpleNamespace) -> None:
    found = Reserved(torch.device("cpu"), 1000 * MIB)
    for _ in range(FEW):
        look(found, allocator, 500 * MIB)
    look(found, allocator, 5000 * MIB)
    assert found.lesson(plan(900 * MIB)) is None  # type: ignore[arg-type]


def test_a_step_may_hold_what_others_have_and_the_budget(allocator: SimpleNamespace) -> None:
    found = Reserved(torch.device("cpu"), 100 * MIB)
    allocator.allocated = 216 * MIB  # 16 are the model's
    limit = found.begin({"x": MINE}, 100 * MIB)
    assert limit is not None
    with limit:
        assert allocator.share == 0.3
        allocator.allocated = 250 * MIB  # what forward keeps
    assert allocator.share == 1.0
    allocator.allocated = 300 * MIB  # of which the loss, or another network, has made 50
    with limit:
        assert allocator.share == 0.35
    assert allocator.share == 1.0


def test_a_step_holds_little_more_than_is_predicted_if_that_is_enough(allocator: SimpleNamespace) -> None:
    found = Reserved(torch.device("cpu"), 500 * MIB)
    limit = found.begin({"x": MINE}, 100 * MIB)
    assert limit is not None
    with limit:
        assert allocator.share == pytest.approx(NEAR * 0.1, abs=1e-6)
    assert found.widen(limit)  # it was not
    with limit:
        assert allocator.share == 0.5
    assert not found.widen(limit)  # more than the budget there is not
    later = found.begin({"x": MINE}, 100 * MIB)
    assert later is not None
    with later:
        assert allocator.share == 0.5


def test_a_step_that_needs_more_than_is_predicted_runs_again_within_the_budget(
    allocator: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
    net = net.double()
    tiled, x = tilegrad.tile(net, tile=64), torch.randn(1, 1, 128, 128).double()
    expected = [x.clone(), *torch.autograd.grad(net(x).sum(), list(net.parameters()))]
    tiled.plan_for(x)
    run = tiled._state.last
    run.reserved, allocator.allocated = Reserved(torch.device("cpu"), 500 * MIB), 0
    shares = dict[str, list[float]](forward=[], backward=[])

    def short(name: str) -> None:
        before = getattr(Pass, name)

        def asked(self: Pass, *args: object) -> object:
            shares[name].append(allocator.share)
            if allocator.share < 0.4:
                raise torch.OutOfMemoryError
            return before(self, *args)

        monkeypatch.setattr(Pass, name, asked)

    monkeypatch.setattr(type(run), "total_bytes", 100 * MIB)
    short("forward")
    short("backward")
    monkeypatch.setattr(run, "plan_smaller", lambda: pytest.fail("the plan is fine"))
    found = [x, *torch.autograd.grad(tiled(x).sum(), list(net.parameters()))]
    assert [round(share, 2) for share in shares["forward"]] == [round(0.1 * NEAR, 2), 0.5]
    torch.testing.assert_close(found, expected)


def test_a_limit_ends_with_its_step_however_that_ends(allocator: SimpleNamespace) -> None:
    def step() -> None:
        with limited(100 * MIB):
            assert allocator.share == 0.1
            raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        step()
    assert allocator.share == 1.0


def test_a_limit_that_cannot_be_kept_is_lifted_until_it_is_planned_again(allocator: SimpleNamespace) -> None:
    found = Reserved(torch.device("cpu"), 1016 * MIB)
    for _ in range(FEW):
        look(found, allocator, 1000 * MIB)
    found.lift()
    assert found.begin({"x": MINE}, 1000 * MIB) is None
    look(found, allocator, 2016 * MIB)  # which is looked at, though the first steps are over
    assert found.lesson(plan(1016 * MIB)) == 516 * MIB  # type: ignore[arg-type]
    assert found.begin({"x": MINE}, 1000 * MIB) is not None


def test_a_limit_of_the_users_own_stays(allocator: SimpleNamespace) -> None:
    allocator.share = 0.2
    with limited(500 * MIB):
        assert allocator.share == 0.2
    assert allocator.share == 0.2


@pytest.mark.parametrize(("launch", "size"), [(1e-6, 16), (1e-2, 64)], ids=["slow tiles", "slow launches"])
def test_what_is_faster_without_a_recording_than_in_less_runs_without(
    launch: float, size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A recorded step held too much. What would fit recorded are many small tiles, or few."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
    plans = []
    for tile in (128, size):
        tiled = tilegrad.tile(net, tile=tile)
        tiled.plan_for((1, 1, 256, 256))
        plans.append(predicted(tiled._state.last.schedule, list(net.state_dict())))
    run = tiled._state.last
    total = plans[0].predicted["total_bytes"]
    run.schedule = replace(plans[0], predicted={**plans[0].predicted, "total_bytes": total + 7, "recorded_bytes": 7})
    run.recorded = object()

    def plan_for(budget: int) -> bool:
        run.schedule = plans[1]
        return True

    monkeypatch.setattr(run, "_plan_for", plan_for)
    monkeypatch.setattr(runner, "known_machine", lambda device: replace(CPU, launch_s=launch, kernel_s=launch / 10))
    run._plan_within(total // 2)
    without = size == 16
    assert (run.schedule.phases == plans[0].phases) == without == ("without a recording" in caplog.text)
    assert "recorded_bytes" not in run.schedule.predicted and (run.recorded is None) == without
    assert not without or run.schedule.predicted["total_bytes"] == total


def test_what_is_out_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(RuntimeError("FIND was unable to find an engine to execute this computation"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert not is_out_of_memory(RuntimeError("expected scalar type Float"))
