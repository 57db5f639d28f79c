"""One training step, plain and tiled, compared number by number.

Sums in another order round differently, so exactness is tested where rounding cannot happen: on integer-valued
float64, with `torch.equal`. Where a network has divisions (norms, means, losses) a relative tolerance takes its place.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..modules.tiled import tile
from ..torch_private import pytree


def integer_tensor(shape: Sequence[int], low: int = -2, high: int = 2, seed: int = 0) -> Tensor:
    """Random integers in [low, high] as float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, tuple(shape), generator=generator).double()


def integer_module(module: nn.Module, low: int = -2, high: int = 2, seed: int = 0) -> nn.Module:
    """Make `module` float64 with integer-valued parameters and buffers, in place, and return it."""
    module.double()
    with torch.no_grad():
        for at, (name, tensor) in enumerate((*module.named_parameters(), *module.named_buffers())):
            if tensor.is_floating_point():
                made = integer_tensor(tensor.shape, low, high, seed + at)
                tensor.copy_(made.abs() + 1 if name.endswith("running_var") else made)
    return module


@dataclass(frozen=True)
class StepResult:
    """All that a step of training leaves behind, by name: outputs, gradients, buffers."""

    outputs: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor | None]
    buffers: Mapping[str, Tensor]


def run_step(module: nn.Module, inputs: Sequence[Any], *, constant: Sequence[int] = (), seed: int = 0) -> StepResult:
    """Forward and backward, from an integer-valued gradient at every output. `inputs` are not written to; those at
    the positions `constant`, and integers, get no gradient."""
    leaf, fixed = partial(_leaf, graded=True), partial(_leaf, graded=False)
    given = [pytree.tree_map_only(Tensor, fixed if at in constant else leaf, x) for at, x in enumerate(inputs)]
    flat = [item for item in pytree.tree_leaves(module(*given)) if isinstance(item, Tensor)]
    graded = [item for item in flat if item.requires_grad]
    seeds = [integer_tensor(item.shape, -2, 2, seed + at).to(item) for at, item in enumerate(graded)]
    if graded:
        torch.autograd.backward(graded, seeds)
    leaves = [item for item in pytree.tree_leaves(given) if isinstance(item, Tensor)]
    gradients = {f"input {at}": leaf.grad for at, leaf in enumerate(leaves) if leaf.requires_grad}
    gradients |= {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    return StepResult(
        {f"output {at}": item.detach() for at, item in enumerate(flat)},
        {f"gradient of {name}": grad for name, grad in gradients.items()},
        {f"buffer {name}": buffer.detach().clone() for name, buffer in module.named_buffers()},
    )


def _leaf(item: Tensor, graded: bool) -> Tensor:
    return item.detach().clone().requires_grad_(graded and item.is_floating_point())


def assert_same_step(
    module: nn.Module,
    inputs: Tensor | Sequence[Any],
    *,
    exact: bool = True,
    tolerance: float = 1e-10,
    quiet: float = 1e-3,
    constant: Sequence[int] = (),
    seed: int = 0,
    **tile_options: Any,
) -> StepResult:
    """Run a step of a copy of `module` plain and of another one tiled, and compare all they leave behind.

    exact: every number equal (use `integer_module`); otherwise within `tolerance` of the largest entry of a tensor.
    quiet: a tensor smaller than this share of the largest output (gradient, buffer) is measured against that share: it
    may be zero but for rounding, as is the gradient of a bias before batch norm. Returns the plain step.
    """
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    wanted = run_step(copy.deepcopy(module), inputs, constant=constant, seed=seed)
    found = run_step(tile(copy.deepcopy(module), **tile_options), inputs, constant=constant, seed=seed)
    assert_same(found, wanted, exact=exact, tolerance=tolerance, quiet=quiet, note=f"tiled with {tile_options}")
    return wanted


def assert_same(
    found: StepResult,
    wanted: StepResult,
    *,
    exact: bool = True,
    tolerance: float = 1e-10,
    quiet: float = 1e-3,
    note: str = "",
) -> None:
    """Raise an AssertionError that names all that differs between two steps, and where first."""
    wrong = []
    for part in ("outputs", "gradients", "buffers"):
        a, b = getattr(found, part), getattr(wanted, part)
        floor = quiet * max(map(size_of, b.values()), default=0.0)
        if a.keys() != b.keys():
            wrong.append(f"{part}: {', '.join(a)} where {', '.join(b)} were due")
            continue
        for name, tensor in b.items():
            allowed = None if exact else tolerance * max(floor, size_of(tensor))
            wrong += _differences(name, a[name], tensor, allowed)
    if wrong:
        raise AssertionError("\n  ".join((note or "two steps differ", *wrong)))


def size_of(tensor: Tensor | None) -> float:
    """The largest absolute entry."""
    if tensor is None or not tensor.numel():
        return 0.0
    return float(tensor.detach().double().abs().nan_to_num(posinf=0.0).max())


def same_entries(found: Tensor, wanted: Tensor, allowed: float | None) -> Tensor:
    """Where two tensors are equal, NaN too, or differ by no more than is allowed."""
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    return same if allowed is None or not found.is_floating_point() else same | ((found - wanted).abs() <= allowed)


def _differences(name: str, found: Tensor | None, wanted: Tensor | None, allowed: float | None) -> list[str]:
    if found is None and wanted is None:
        return []
    if found is None or wanted is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return [f"{name}: {_kind(found)} where {_kind(wanted)} was due"]
    same = same_entries(found, wanted, allowed)
    if bool(same.all()):
        return []
    first = tuple((~same).nonzero()[0].tolist())
    return [
        f"{name}: {int((~same).sum())} of {same.numel()} differ, first at {list(first)}: "
        f"{found[first].item():.17g} for {wanted[first].item():.17g}; largest difference "
        f"{size_of(found.double() - wanted.double()):.3g}, largest entry {size_of(wanted):.3g}"
    ]


def _kind(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
