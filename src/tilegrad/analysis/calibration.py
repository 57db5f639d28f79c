"""A machine as a profile shows it: rates that its own kernels reached."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from ..profile import Operator, Profile
from ..sim.machine import Machine
from .groups import find_rates
from .times import find_gaps

DENSE_FLOPS_PER_BYTE = 8.0  # an operator with more arithmetic than this for a byte is limited by arithmetic


def calibrate(profile: Profile, base: Machine) -> Machine:
    """`base` with the arithmetic, memory and launch rates of the profile, where it shows any."""
    dense = [op for op in profile.operators if _timed(op) and _intensity(op) >= DENSE_FLOPS_PER_BYTE]
    moving = [op for op in profile.operators if _timed(op) and 0 < _intensity(op) < DENSE_FLOPS_PER_BYTE]
    found = replace(base, name=f"as profiled, links of {base.name}", rates={})
    if (reached := find_rates(dense, None).flops_per_s) is not None:
        found = replace(found, flops_per_s=reached)
    if (reached := find_rates(moving, None).bytes_per_s) is not None:
        found = replace(found, bytes_per_s=reached)
    side = "device" if any(op.device is not None for op in profile.operators) else "host"
    gaps = [gap.seconds for gap in find_gaps(profile.operators, side).every if gap.seconds > 0]  # type: ignore[arg-type]
    return replace(found, launch_s=median(gaps)) if gaps else found


def _timed(op: Operator) -> bool:
    return op.span is not None and op.span.kernel_s > 0


def _intensity(op: Operator) -> float:
    return (op.flops or 0) / op.bytes if op.bytes else 0.0
