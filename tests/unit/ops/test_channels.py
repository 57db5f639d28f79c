"""Norms in few passes: values and all gradients against the same written out, whatever the layout, rank and type."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tilegrad.ir import Node, TensorType
from tilegrad.ir.graph import Input
from tilegrad.ops import Call, Place, find
from tilegrad.ops.channels import affine, sums
from tilegrad.region import Box

SHAPES = [
    (3, 4),
    (1, 4, 7),
    (2, 4, 9),
    (1, 6, 5, 7),
    (3, 6, 5, 4),
    (2, 4, 3, 5, 2),
    (1, 4, 1, 1),
    (0, 4, 3, 3),
    (2, 4, 0, 3),
]
LAYOUTS = ["contiguous", "channels last", "narrow", "channels last, narrow"]
DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def image(shape: tuple[int, ...], layout: str, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if "narrow" not in layout or len(shape) < 3:
        return _laid(torch.randn(shape, generator=generator).to(dtype) + 1, layout)
    large = _laid(torch.randn((*shape[:2], *(n + 3 for n in shape[2:])), generator=generator).to(dtype) + 1, layout)
    return large[(slice(None), slice(None), *(slice(2, 2 + n) for n in shape[2:]))]


def _laid(x: Tensor, layout: str) -> Tensor:
    if "last" not in layout or x.dim() < 4:
        return x
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def numbers(x: Tensor, samples: int, channels: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.rand((samples, channels, *(1 for _ in x.shape[2:])), generator=generator) + 0.5
    return found.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def close(found: Tensor | None, wanted: Tensor | None, tolerance: float) -> None:
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert found.shape == wanted.shape
        size = float(wanted.abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance * max(size, 1e-6))


@every_dtype
@every_layout
@every_shape
def test_affine(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    x, onto = image(shape, layout, dtype), image(shape, layout, dtype, 1)
    for samples, has in itertools.product({1, shape[0]} - {0}, itertools.product([False, True], repeat=3)):
        scale, *rest = (numbers(x, samples, shape[1], seed) for seed in range(3))
        shift, mean, base = (t if given else None for t, given in zip((*rest, onto), has, strict=True))
        before = None if base is None else base.clone()
        found = affine(x, scale, shift, mean, base)
        wanted = x.double() * scale
        wanted = wanted if mean is None else wanted - mean.double() * scale
        wanted = wanted if shift is None else wanted + shift
        close(found, wanted if base is None else wanted + base, DTYPES[dtype])
        assert found.dtype == dtype and (before is None or torch.equal(base, before))  # type: ignore[arg-type]
        assert not found._is_view()
        if "last" in layout and len(shape) == 4 and found.numel():
            assert found.is_contiguous(memory_format=torch.channels_last)


@every_dtype
@every_layout
@every_shape
def test_sums(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    x, grad = image(shape, layout, dtype), image(shape, "contiguous", dtype, 1)
    for samples in {1, shape[0]} - {0}:
        mean = numbers(x, samples, shape[1], 3)
        total, along = sums(x, mean, grad)
        assert total.dtype == along.dtype == mean.dtype
        over = (0, *range(2, x.dim())) if samples == 1 else tuple(range(2, x.dim()))
        centred = grad.double() * (x.double() - mean)
        for found, wanted in ((total, grad.double()), (along, centred)):
            wanted = wanted.sum(over, keepdim=True) if over else wanted
            torch.testing.assert_close(found.double().sum_to_size(wanted.shape), wanted, rtol=1e-5, atol=1e-4)


def call_of(op: str, types: dict[str, Tensor], out: Tensor, **attrs: Any) -> Call:
    kinds = tuple(TensorType(tuple(t.shape), str(t.dtype)[6:]) for t in (*types.values(), out))
    node = Node("n", op, tuple(Input(name, name) for name in types), ("out",), attrs)
    return Call(node, kinds[:-1], kinds[-1:])


def place_of(x: Tensor) -> Place:
    return Place(Box.full(tuple(x.shape)), ())


GIVEN = list(itertools.product([False, True], repeat=2))
NEEDS = [(True, True, True, True), (True, False, False, False), (False, True, True, True), (False, False, True, True)]


@every_dtype
@every_layout
@every_shape
def test_normalize(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    for kind, given, needs in itertools.product(("batch", "instance", "group", "layer"), GIVEN, NEEDS):
        x = image(shape, layout, dtype)
        samples, groups = (1 if kind == "batch" else shape[0]), {"group": 2, "layer": 1}.get(kind, shape[1])
        stats = torch.stack([numbers(x, samples, groups, seed) for seed in range(2)])
        affine = {name: numbers(x, 1, shape[1], 4).flatten().to(dtype) for name in ("weight", "bias")}
        tensors = {"self": x, "stats": stats} | {n: affine[n] for n, has in zip(affine, given, strict=True) if has}
        asked = dict(zip(("self", "stats", "weight", "bias"), needs, strict=True))
        if not any(asked[name] for name in tensors):
            continue
        call, seed = call_of("normalize", tensors, x, eps=0.1), image(shape, layout, dtype, 5)
        tiles = [t.detach().requires_grad_(asked[name]) for name, t in tensors.items()]
        found = find(call.node).run(call, tiles, place_of(x))
        grads = torch.autograd.grad(found, [t for t in tiles if t.requires_grad], seed)
        leaves = {n: t.detach().double().requires_grad_(asked[n]) for n, t in tensors.items()}
        wanted = written_out(leaves, 0.1)
        truth = torch.autograd.grad(wanted, [t for t in leaves.values() if t.requires_grad], seed.double())
        close(found, wanted.detach(), DTYPES[dtype])
        for mine, true, name in zip(grads, truth, (n for n in tensors if asked[n]), strict=True):
            assert mine.dtype == tensors[name].dtype
            close(mine, true, DTYPES[dtype])


def written_out(given: dict[str, Tensor], eps: float) -> Tensor:
    x = given["self"]
    mean, var = (t.repeat_interleave(x.shape[1] // t.shape[1], 1) for t in given["stats"])
    found = (x - mean) / (var + eps).sqrt()
    for name in ("weight", "bias"):
        if name in given:
            row = given[name].view(1, -1, *(1 for _ in x.shape[2:]))
            found = found * row if name == "weight" else found + row
    return found


@every_dtype
@every_layout
@pytest.mark.parametrize("shape", [s for s in SHAPES if 0 not in s], ids=str)
def test_moments(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    x = image(shape, layout, dtype)
    ways = {
        ((0, *range(2, x.dim())), 1),
        (tuple(range(2, x.dim())), 1),
        (tuple(range(1, x.dim())), 2),
        ((x.dim() - 1,), 1),
    }
    for over, groups in ways:
        if not over:
            continue
        leaf = x.detach().double().requires_grad_()
        split = leaf.unflatten(1, (groups, -1)) if groups > 1 else leaf
        dims = tuple(range(2, split.dim())) if groups > 1 else over
        var, mean = torch.var_mean(split, dims, correction=0, keepdim=True)
        wanted = torch.stack([mean, var]).squeeze(3) if groups > 1 else torch.stack([mean, var])
        call = call_of("moments", {"self": x}, wanted, dim=list(over), groups=groups)
        tile, seed = x.detach().requires_grad_(), torch.rand(wanted.shape, dtype=torch.float64)
        found = find(call.node).run(call, [tile], place_of(wanted))
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        close(found.detach(), wanted.detach(), max(1e-5, DTYPES[dtype] ** 2) if dtype != torch.float64 else 1e-12)
        (mine,) = torch.autograd.grad(found, tile, seed.to(found.dtype))
        close(mine, torch.autograd.grad(wanted, leaf, seed)[0], DTYPES[dtype])


def test_a_large_mean_costs_little() -> None:
    """Single precision, values around 300: about as near to the truth as the formula is when written out."""
    x = image((2, 4, 16, 16), "contiguous", torch.float32) + 300
    stats = torch.stack(torch.var_mean(x.double(), (0, 2, 3), correction=0, keepdim=True)[::-1])
    tensors = {"self": x, "stats": stats.float()}
    call = call_of("normalize", tensors, x, eps=1e-5)
    found = find(call.node).run(call, list(tensors.values()), place_of(x))
    truth, written = written_out({"self": x.double(), "stats": stats}, 1e-5), written_out(tensors, 1e-5)
    assert (found - truth).abs().max() <= 4 * (written - truth).abs().max()
