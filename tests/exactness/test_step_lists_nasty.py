"""What breaks executors of plans: shared parameters, views of views, gradients in one memory, hidden writes.

Each module runs under plans that keep everything, forget at random and move at random; on integers every number must be
equal to plain torch's, elsewhere they agree to 1e-10. What a step allocates is what was predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from step_plans import assert_plans
from torch import Tensor, nn

from tilegrad.testing import integer_module, integer_tensor


class Model(nn.Module):
    """A function of parts and inputs: `c`, `d` and `e` are convolutions, others are given."""

    def __init__(self, function: Callable[..., Any], parts: dict[str, Callable[[], Any]]):
        super().__init__()
        self.function = function
        for name, make in {"c": conv, "d": conv, "e": conv, **parts}.items():
            setattr(self, name, make())

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def conv(inputs: int = 4) -> nn.Module:
    return nn.Conv2d(inputs, 4, 3, padding=1)


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(integer_tensor(shape))


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    parts: dict[str, Callable[[], Any]] = field(default_factory=dict)
    inputs: Sequence[Tensor] = (integer_tensor((2, 4, 6, 6)),)
    exact: bool = True
    constant: Sequence[int] = ()
    peak: bool = True
    train: bool = True


IMAGE = integer_tensor((2, 4, 6, 6))
LAST = (IMAGE.to(memory_format=torch.channels_last),)


def residual(m: Model, x: Tensor) -> Tensor:
    h = m.c(x)
    for part in (m.d, m.e):
        h = h + part(h.relu())
    return h


def inside(m: Model, x: Tensor) -> Any:
    y = m.c(x)
    z = m.d(y).relu()
    return y, z, m.e(z) + y


def views(m: Model, x: Tensor) -> Any:
    y = m.c(x)
    return y, y.view(2, -1), y[:, :2], y.permute(0, 2, 3, 1)


def pieces(m: Model, x: Tensor) -> Any:
    a, b = m.c(x).chunk(2, 1)
    c, d = torch.split(m.d(x), [1, 3], 1)
    return a * b + c * d[:, 1:], (a[:, :, 1:] * b[:, :, :-1]).permute(0, 2, 3, 1).reshape(2, -1)


def views_of_views(m: Model, x: Tensor) -> Tensor:
    v = m.c(x).view(2, 2, 2, 36).transpose(1, 2)
    w = v[:, :, 0]
    u = w.unsqueeze(1).expand(2, 3, 2, 36)
    return (u * u).sum(1) + v[:, 0] * w


def in_place(m: Model, x: Tensor) -> Tensor:
    y = m.c(x).relu_()
    z = m.d(y)
    z[:, 0] = y[:, 1]
    z.mul_(2)
    z.add_(y)
    return z


def dense(m: Model, x: Tensor) -> Any:
    h = m.c(x)
    k = torch.cat([h, m.d(h)], 1)
    k = torch.cat([k, h, m.wide(k)], 1)
    return k.sum(1), k[:, ::2]


def written_twice(m: Model, x: Tensor) -> Tensor:
    y = m.c(x)
    return torch.where(y > 0, y, x * y) * y.masked_fill(y > 1, 3.0)


def twice(m: Model, x: Tensor) -> Tensor:
    y = m.c(x)
    return y * y + y + y


def standardised(m: Model, x: Tensor) -> Tensor:
    weight = m.weight / m.weight.square().sum((1, 2, 3), keepdim=True).sqrt()
    return F.conv2d(m.c(x), weight, padding=1)


CASES: dict[str, Case] = {
    "a layer twice": Case(lambda m, x: m.c(m.c(x).relu())),
    "x + x": Case(lambda m, x: m.c(x) + m.c(x) + x + x),
    "x * x": Case(twice),
    "residual": Case(residual),
    "tied by transposition": Case(
        lambda m, x: F.linear(F.linear(x.flatten(1), m.w), m.w.t()), {"w": parameter(5, 144)}
    ),
    "an input handed out": Case(lambda m, x: (x, m.c(x))),
    # Its gradient is the caller's own, which torch copies.
    "only an input handed out": Case(lambda m, x: (x, m.c(x.detach())), peak=False),
    "a parameter handed out": Case(lambda m, x: (m.c.weight, m.c(x))),
    "views of one output": Case(views),
    "an output used inside": Case(inside),
    "an output twice": Case(lambda m, x: (lambda y: (y, y, {"a": y * 2}))(m.c(x))),
    "tuples and dicts": Case(lambda m, x: {"a": (m.c(x), [m.d(x), 3]), "n": None}),
    "numbers that need no gradient": Case(lambda m, x: (m.c(x).argmax(1), m.d(x))),
    "a scalar": Case(lambda m, x: m.c(x).sum()),
    "pieces": Case(pieces),
    "views of views": Case(views_of_views),
    "windows as views": Case(lambda m, x: m.c(x).unfold(2, 3, 1) * 2),
    "a diagonal": Case(lambda m, x: (lambda y: y.diagonal(0, 2, 3) * y[..., 0])(m.c(x))),
    "strides by hand": Case(lambda m, x: m.c(x).as_strided((2, 3, 3), (4, 2, 1), 5) * 2),
    "one index": Case(lambda m, x: (lambda y: y[:, 0] * y[:, 1, 1:2] + y[0, 2])(m.c(x))),
    "an index list": Case(lambda m, x: m.c(x)[:, torch.tensor([0, 2, 2])] * m.c(x)[:, 1:]),
    "unbound and stacked": Case(
        lambda m, x: torch.stack([a * b for a, b in zip(m.c(x).unbind(1), x.unbind(1), strict=True)], 1)
    ),
    "copies of permuted memory": Case(
        lambda m, x: m.d(m.c(x).permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1).contiguous())
    ),
    "in place": Case(in_place),
    "concatenated": Case(dense, {"wide": lambda: conv(8)}),
    "chosen": Case(written_twice),
    "broadcast": Case(
        lambda m, x: (m.c(x) + m.p) * m.q + m.r,
        {"p": parameter(4, 1, 1), "q": parameter(6), "r": parameter(1, 4, 6, 6)},
    ),
    "a parameter per pixel": Case(lambda m, x: x + m.r, {"r": parameter(2, 4, 6, 6)}),
    "sizes from a value that gets no gradient": Case(
        lambda m, x: (lambda y: m.d(x)[:1].expand_as(y) * y + m.e(x).type_as(y).view_as(y))(m.c(x))
    ),
    "integers in": Case(
        lambda m, i: m.c(m.table(i).permute(0, 3, 1, 2)),
        {"table": lambda: nn.Embedding(5, 4)},
        (integer_tensor((2, 6, 6), 0, 4).long(),),
        peak=False,  # autograd lays the weight's gradient out like the weight: a copy, of a gradient in channels_last
    ),
    "labels": Case(
        lambda m, x, y: F.cross_entropy(m.c(x), y), {}, (IMAGE, integer_tensor((2, 6, 6), 0, 3).long()), exact=False
    ),
    "detached": Case(lambda m, x: m.d(m.c(x).detach()) * m.c(x)),
    "frozen": Case(lambda m, x: m.d(m.f(x)), {"f": lambda: conv().requires_grad_(False)}),
    "frozen, and no gradient of the image": Case(
        lambda m, x: m.d(m.f(x)), {"f": lambda: conv().requires_grad_(False)}, constant=(0,)
    ),
    "a fourier transform": Case(lambda m, x: torch.fft.irfft2(torch.fft.rfft2(m.c(x)) * 2), exact=False),
    "complex numbers": Case(lambda m, x: torch.view_as_real(torch.complex(m.c(x), x) * 1j)),
    "batch norm": Case(lambda m, x: m.d(m.b(m.c(x)).relu()), {"b": lambda: nn.BatchNorm2d(4)}, exact=False),
    "one batch norm twice": Case(
        lambda m, x: m.d(m.b(m.c(m.b(x))).relu()), {"b": lambda: nn.BatchNorm2d(4)}, exact=False
    ),
    "batch norm without statistics": Case(
        lambda m, x: m.b(m.c(x)), {"b": lambda: nn.BatchNorm2d(4, track_running_stats=False)}, exact=False
    ),
    "batch norm, eval": Case(lambda m, x: m.d(m.b(m.c(x))), {"b": lambda: nn.BatchNorm2d(4)}, exact=False, train=False),
    "group norm": Case(lambda m, x: m.d(m.g(m.c(x))), {"g": lambda: nn.GroupNorm(2, 4)}, exact=False),
    "instance norm": Case(
        lambda m, x: m.d(m.i(m.c(x))),
        {"i": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True)},
        exact=False,
    ),
    "layer norm over channels": Case(
        lambda m, x: m.n(m.c(x).movedim(1, -1)).movedim(-1, 1), {"n": lambda: nn.LayerNorm(4)}, exact=False
    ),
    "weights made on the way": Case(standardised, {"weight": parameter(4, 4, 3, 3)}, exact=False),
    "resized": Case(
        lambda m, x: F.interpolate(m.c(F.interpolate(m.c(x), scale_factor=2, mode="bilinear")), size=(5, 7))
    ),
    "adaptive pools": Case(lambda m, x: F.adaptive_avg_pool2d(m.c(F.adaptive_max_pool2d(m.c(x), 4)), 2)),
    "max pool": Case(lambda m, x: m.d(F.max_pool2d(m.c(x), 2))),
    "one of several results": Case(lambda m, x: m.c(x).max(1)[0] * m.c(x).sort(2)[0][:, 0]),
    "running sums and products": Case(lambda m, x: m.c(x).cumsum(2) + m.c(x).clamp(-1, 1).prod(1, keepdim=True)),
    "a loss in memory for all it reduces": Case(
        lambda m, x: F.mse_loss(m.c(x), x, reduction="sum") + F.smooth_l1_loss(m.d(x), x), exact=False, peak=False
    ),
    "attention": Case(
        lambda m, x: (lambda q: (q.transpose(1, 2) @ q).softmax(-1) @ q.transpose(1, 2))(m.c(x).flatten(2)),
        exact=False,
    ),
    # On tensors without data attention is made of other kernels: bytes are not to be known.
    "fused attention": Case(
        lambda m, x: m.a(*[m.c(x).flatten(2)] * 3, need_weights=False)[0],
        {"a": lambda: nn.MultiheadAttention(36, 4, batch_first=True)},
        exact=False,
        peak=False,
    ),
    "einsum": Case(lambda m, x: torch.einsum("nchw,dc->ndhw", m.c(x), m.w), {"w": parameter(3, 4)}),
    # A plan does not know how images lie in memory, so a reshape may copy what was to be a view.
    "channels last": Case(lambda m, x: m.d(F.max_pool2d(m.c(x).relu(), 2)).flatten(1), {}, LAST, peak=False),
    "channels last, reshaped": Case(
        lambda m, x: (lambda y: y.reshape(2, -1) * y.permute(0, 2, 3, 1).reshape(2, -1))(m.c(x * 2) * m.d(x)),
        {},
        LAST,
        peak=False,
    ),
    "channels last, normalised": Case(
        lambda m, x: m.b(m.c((m.c(x) * x).relu())), {"b": lambda: nn.BatchNorm2d(4)}, LAST, exact=False, peak=False
    ),
    "another precision on the way": Case(lambda m, x: m.d(m.c(x).float().double())),
    "no samples": Case(lambda m, x: m.d(m.c(x).relu()), {}, (IMAGE[:0],)),
    "constants": Case(lambda m, x: m.c(x) + torch.ones(4, 1, 1).double() * torch.arange(6)),
}


@pytest.mark.parametrize("name", CASES)
def test_any_plan_gives_plains_numbers(name: str) -> None:
    case = CASES[name]
    model = integer_module(Model(case.function, case.parts)).train(case.train)
    assert_plans(model, case.inputs, exact=case.exact, constant=case.constant, peak=case.peak)


@pytest.mark.parametrize("name", ["residual", "pieces", "channels last", "in place", "concatenated", "views of views"])
def test_channels_last_weights(name: str) -> None:
    case = CASES[name]
    model = integer_module(Model(case.function, case.parts)).to(memory_format=torch.channels_last)
    assert_plans(model, LAST, exact=True, peak=False)


def test_parameters_shared_between_layers() -> None:
    model = Model(lambda m, x: m.d(m.c(x).relu()) + m.e(x), {})
    model.d.weight = model.e.weight = model.c.weight
    assert_plans(integer_module(model), [IMAGE])
