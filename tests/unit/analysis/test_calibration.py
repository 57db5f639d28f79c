"""A machine as a profile shows it."""

from __future__ import annotations

from tilegrad.analysis.calibration import calibrate
from tilegrad.profile import Operator, Profile, Span
from tilegrad.sim.machine import find_machine

V100 = find_machine("v100")


def op(id: str, start: float, end: float, flops: int | None, bytes: int | None) -> Operator:
    return Operator(id, id, "t", device=Span(start, end), stream="s", flops=flops, bytes=bytes)


def profile(*operators: Operator) -> Profile:
    return Profile("p", "recorded", operators)


def test_rates_of_the_profile() -> None:
    """Dense: 4000 flops in 2 + 2 s. Moving: 100 bytes in 4 s. Gaps 1, 3 and 2 s: the median is 2."""
    found = calibrate(
        profile(
            op("dense", 0, 2, 1000, 10),
            op("dense too", 3, 5, 3000, 20),
            op("moving", 8, 12, 10, 100),
            op("no arithmetic", 14, 15, None, 10**9),
        ),
        V100,
    )
    assert (found.flops_per_s, found.bytes_per_s, found.launch_s) == (1000, 25, 2)
    assert found.name == "as profiled, links of v100"
    assert (found.to_host_per_s, found.device_bytes) == (V100.to_host_per_s, V100.device_bytes)


def test_the_base_where_the_profile_shows_nothing() -> None:
    for shown in ((), (op("untimed", 1, 1, 1000, 10),), (Operator("x", "x", "t", flops=1000, bytes=10),)):
        found = calibrate(profile(*shown), V100)
        assert (found.flops_per_s, found.bytes_per_s) == (V100.flops_per_s, V100.bytes_per_s)
        assert found.launch_s == V100.launch_s


def test_overlaps_are_no_launch_time() -> None:
    found = calibrate(profile(op("a", 0, 2, 1, 1), op("b", 1, 3, 1, 1), op("c", 3.5, 4, 1, 1)), V100)
    assert found.launch_s == 0.5
