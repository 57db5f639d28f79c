"""Operators by type, module, shape, phase and stream, and their rates against a machine's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilegrad.analysis.groups import By, find_rates, format_shapes, group_operators
from tilegrad.ir import Phase
from tilegrad.profile import Operator, Span
from tilegrad.sim.machine import find_machine

MACHINE = replace(find_machine("v100"), flops_per_s=100.0, bytes_per_s=20.0)
CONV = Operator(
    "0", "a", "conv", device=Span(0, 3, 1), stream="s1", flops=100, bytes=10, in_shapes=((1, 3), ()),
    out_shapes=((2, 4),), module="net.conv", phase=Phase.FORWARD,
)  # fmt: skip
AGAIN = replace(CONV, id="1", device=Span(3, 6), phase=Phase.BACKWARD)
RELU = Operator("2", "b", "relu", host=Span(6, 11), thread="main", bytes=40)


def test_groups_by_type() -> None:
    conv, relu = group_operators((CONV, AGAIN, RELU), "type", MACHINE)
    assert (conv.key, conv.count, conv.total_s, conv.rates.kernel_s, conv.share) == ("conv", 2, 6, 5, 0.5)
    assert (conv.rates.flops, conv.rates.bytes, conv.rates.flops_per_s, conv.rates.bytes_per_s) == (200, 20, 40, 4)
    assert (relu.key, relu.count, relu.rates.flops, relu.rates.bytes_per_s) == ("relu", 1, None, 8)
    assert (conv.seconds("kernel"), conv.seconds("total")) == (5, 6)


def test_roofline_is_the_least_time_of_the_time_taken() -> None:
    """Each convolution could take 100 / 100 = 1 s, the rectifier 40 / 20 = 2 s; each group took 5 s."""
    conv, relu = group_operators((CONV, AGAIN, RELU), "type", MACHINE)
    assert (conv.rates.roof_share, conv.rates.bound) == (2 / 5, "compute")
    assert (relu.rates.roof_share, relu.rates.bound) == (2 / 5, "memory")
    assert find_rates((CONV, RELU), MACHINE).roof_share == (1 + 2) / (2 + 5)


def test_no_roofline_without_a_machine_work_or_time() -> None:
    nothing = Operator("3", "c", "view", host=Span(0, 1))
    at_once = Operator("4", "d", "conv", host=Span(1, 1), flops=5)
    for rates in (find_rates((CONV,), None), find_rates((nothing,), MACHINE), find_rates((at_once,), MACHINE)):
        assert (rates.roof_share, rates.bound) == (None, None)
    assert find_rates((at_once,), MACHINE).flops_per_s is None


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("type", ["conv", "relu"]),
        ("module", ["(none)", "net.conv"]),
        ("shape", ["conv 1x3, scalar -> 2x4", "relu  -> "]),
        ("phase", ["(unknown)", "backward", "forward"]),
        ("stream", ["main", "s1"]),
    ],
)
def test_what_groups_are_called(by: By, keys: list[str]) -> None:
    assert sorted(group.key for group in group_operators((CONV, AGAIN, RELU), by)) == keys


def test_most_kernel_time_first_then_by_name() -> None:
    same = [replace(RELU, id=name, type=name) for name in ("z", "a")]
    longer = replace(CONV, id="l", type="longer", device=Span(0, 9))
    assert [group.key for group in group_operators((*same, longer), "type")] == ["longer", "a", "z"]


def test_shapes_as_text() -> None:
    assert format_shapes(((1, 3, 8), (), (5,))) == "1x3x8, scalar, 5"
    assert format_shapes(()) == ""
