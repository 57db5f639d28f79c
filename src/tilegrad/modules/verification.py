"""Plain and tiled side by side: outputs, every gradient, memory and time."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError
from ..profile import Profile
from ..recording.record import Recorder, record
from ..sim.peak import PeakBytes
from ..torch_private import pytree
from .plan import Plan
from .tiled import tile

# Relative to the largest entry of a tensor: the same sums in another order. Below double precision a deep network
# may amplify roundings far beyond this; there plain's own distance from a double precision run is the measure.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
QUIET = 1e-3  # of the loudest gradient: below it a tensor is measured against that (a bias before batch norm has none)
NOISE = 4.0  # how many times plain's own error a difference may reach


@dataclass(frozen=True)
class Difference:
    """One tensor, compared element by element."""

    name: str
    elements: int
    differ: int
    max_absolute: float
    max_relative: float  # to the largest entry of plain's tensor


@dataclass(frozen=True)
class StepCost:
    """What a step took: the most bytes it allocated at once, and seconds."""

    peak_bytes: int
    step_s: float


@dataclass(frozen=True)
class Verification:
    """The result of `tilegrad.verify`. `ok` when not one element differs beyond tolerance."""

    differences: tuple[Difference, ...]
    plain: StepCost
    tiled: StepCost
    plan: Plan = field(repr=False)
    notes: tuple[str, ...] = ()
    profiles: tuple[Profile, Profile] | None = field(default=None, repr=False)  # plain and tiled, where recorded

    @property
    def ok(self) -> bool:
        return self.differ == 0

    @property
    def differ(self) -> int:
        return sum(d.differ for d in self.differences)

    @property
    def elements(self) -> int:
        return sum(d.elements for d in self.differences)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "differ": self.differ,
            "elements": self.elements,
            "tensors": [asdict(d) for d in self.differences],
            "plain": asdict(self.plain),
            "tiled": asdict(self.tiled),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        worst = max((d.max_relative for d in self.differences), default=0.0)
        return f"{self.differ} / {self.elements} elements differ (largest relative difference {worst:.2g})"


class TileOptions(TypedDict, total=False):
    """Of `tilegrad.tile`, where there is no mesh."""

    budget: str | int | None
    tile: int | Sequence[int] | Mapping[str, int] | None
    axes: str | Sequence[str] | None
    mode: str
    halos: str
    planner: str
    cuda_graphs: bool | str
    compile: bool | Mapping[str, Any] | None


def verify(
    module: nn.Module,
    *inputs: Any,
    tolerance: float | None = None,
    recorded: bool = False,
    **options: Unpack[TileOptions],
) -> Verification:
    """Run one step of `module` plain and tiled (`options` as for `tilegrad.tile`) and compare everything.

    tolerance: relative to the largest entry of a tensor; by default what its precision and plain's own error allow.
    recorded: both steps are recorded, as by `tilegrad.record`, which makes them a little slower.

    Works on copies: the module, its gradients and buffers stay as they are. Dropout is switched off, since plain
    PyTorch and tiles draw their masks from different streams.
    """
    if tolerance is not None and not 0 <= tolerance < 1:
        raise InputError(f"a tolerance of {tolerance} is not possible", hint="1e-9, or none for one by precision")
    for name in options.keys() - TileOptions.__annotations__.keys():
        raise TypeError(f"verify() got an unexpected keyword argument '{name}'")
    first, notes = _without_dropout(copy.deepcopy(module))
    second = copy.deepcopy(first)
    tiled = tile(second, **options)
    tiled.plan_for(*map(_leaf, inputs))  # so that planning is not part of the step's time and memory
    expected, plain_cost, plain = _step(first, first, inputs, "plain" if recorded else None)
    found, tiled_cost, other = _step(tiled, second, inputs, "tiled" if recorded else None)
    differences = _differences(module, inputs, expected, found, tolerance)
    # Once more, with another seed and another input: what was baked in by the first call shows now.
    others = [_another(x) for x in inputs]
    again, _, _ = _seeded(1, first, first, others)
    tiled_again, _, _ = _seeded(2, tiled, second, others)
    later = _differences(module, others, again, tiled_again, tolerance)
    differences = tuple(map(_worse, differences, later))
    profiles = (plain, other) if plain is not None and other is not None else None
    return Verification(differences, plain_cost, tiled_cost, tiled.plan, tuple(notes), profiles)


def _differences(
    module: nn.Module,
    inputs: Sequence[Any],
    expected: dict[str, Tensor],
    found: dict[str, Tensor],
    tolerance: float | None,
) -> tuple[Difference, ...]:
    noise = _rounding(module, inputs, expected) if tolerance is None else {}
    floor = QUIET * _loudest(expected)
    return tuple(
        _compare(name, expected[name], found.get(name), tolerance, noise.get(name, 0.0), floor) for name in expected
    )


def _worse(one: Difference, other: Difference) -> Difference:
    return max(one, other, key=lambda d: (d.differ, d.max_relative))


def _another(item: Any) -> Any:
    """Another input of the same kind: other numbers of the same size, the same classes in another order."""
    if not isinstance(item, Tensor) or not item.numel():
        return item
    order = torch.randperm(item.numel(), generator=torch.Generator().manual_seed(1)).to(item.device)
    return item.detach().reshape(-1)[order].reshape(item.shape)


def _seeded(seed: int, run: nn.Module, owner: nn.Module, inputs: Sequence[Any]) -> Any:
    """A step from another seed of torch's, Python's and NumPy's generators, which are then as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            return _step(run, owner, inputs)
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _rounding(module: nn.Module, inputs: Sequence[Any], plain: dict[str, Tensor]) -> dict[str, float]:
    """How far plain's own results are from those in double precision, where they are not in double already."""
    if all(t.dtype == torch.float64 for t in plain.values() if t.is_floating_point()):
        return {}
    exact, _ = _without_dropout(copy.deepcopy(module).double())
    wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    reference, _, _ = _step(exact, exact, wide)
    return {
        name: float((t.double() - reference[name]).abs().max())
        for name, t in plain.items()
        if t.is_floating_point() and t.numel() and name in reference
    }


def _without_dropout(module: nn.Module) -> tuple[nn.Module, list[str]]:
    random = [m for m in module.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    for each in random:
        each.eval()
    return module, [f"dropout switched off in {len(random)} layers"] if random else []


def _step(
    run: nn.Module, owner: nn.Module, inputs: Sequence[Any], name: str | None = None
) -> tuple[dict[str, Tensor], StepCost, Profile | None]:
    """Outputs, gradients and buffers of one step, its cost, and with a name its recording."""
    args = [_leaf(x) for x in inputs]
    owner.zero_grad(set_to_none=True)
    device = next((p.device for p in owner.parameters()), torch.device("cpu"))
    begin = time.perf_counter()
    recorder = record(name) if name is not None else nullcontext()
    with PeakBytes(device) as peak, recorder:
        outputs = [t for t in pytree.tree_leaves(run(*args)) if isinstance(t, Tensor)]
        roots = [t for t in outputs if t.requires_grad]
        if roots:
            torch.autograd.backward(roots, [_direction(t) for t in roots])
    took = time.perf_counter() - begin
    found = {f"output {k}" if k else "output": t.detach() for k, t in enumerate(outputs)}
    for k, x in enumerate(args):
        if isinstance(x, Tensor) and x.grad is not None:
            found[f"gradient of input {k}"] = x.grad
    found |= {f"gradient of {n}": p.grad for n, p in owner.named_parameters() if p.grad is not None}
    found |= {f"buffer {n}": b.detach().clone() for n, b in owner.named_buffers()}
    profile = recorder.profile if isinstance(recorder, Recorder) else None
    return found, StepCost(peak.bytes, took), profile


def _leaf(item: Any) -> Any:
    if not isinstance(item, Tensor):
        return item
    return item.detach().clone().requires_grad_() if item.is_floating_point() else item


def _direction(output: Tensor) -> Tensor:
    """The same pseudo-random output gradient for both runs; small integers, so that integer cases stay exact."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-2, 3, output.shape, generator=generator).to(output)


def _loudest(tensors: dict[str, Tensor]) -> float:
    found = [t for name, t in tensors.items() if name.startswith("gradient") and t.numel()]
    return max((float(t.abs().nan_to_num(0).max()) for t in found), default=0.0)


def _compare(
    name: str, plain: Tensor, other: Tensor | None, tolerance: float | None, noise: float, floor: float
) -> Difference:
    if other is None or other.shape != plain.shape:
        return Difference(name, plain.numel(), plain.numel(), float("inf"), float("inf"))
    if not plain.is_floating_point():
        return Difference(name, plain.numel(), int((plain != other).sum()), 0.0, 0.0)
    a, b = plain.double(), other.double()
    scale = float(a.abs().nan_to_num(0).max()) if a.numel() else 0.0
    scale = max(scale, floor) if name.startswith("gradient") else scale
    allowed = TOLERANCE.get(plain.dtype, 1e-4) if tolerance is None else tolerance
    gap = (a - b).abs()
    same = (gap <= max(allowed * scale, NOISE * noise)) | (a == b) | (a.isnan() & b.isnan())
    largest = float(gap.nan_to_num(float("inf")).where(~(a.isnan() & b.isnan()), 0).max()) if a.numel() else 0.0
    return Difference(name, a.numel(), int((~same).sum()), largest, largest / scale if scale else largest)
