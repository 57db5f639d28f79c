"""Windows against torch itself: which inputs does an output really read?

`Case.deps` is found by poison: NaN in one input at a time, one row of a batch each. Everything is compared with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from thorough import often
from tilegrad.region import (
    POINT,
    Adaptive,
    Chain,
    Crop,
    Interval,
    Mirror,
    Repeat,
    Replicate,
    Resize,
    Slide,
    Spread,
    Whole,
    Window,
)

Draw = st.DrawFn
WIDE = torch.float64


@dataclass
class Case:
    """A window, and the torch function it describes, on rows of `n` numbers: (batch, 1, n) -> (batch, 1, count)."""

    window: Window
    n: int
    function: Callable[[Tensor], Tensor]
    exact: bool = True  # the ends of `reads` are really read; False: a hull
    exact_by: bool = True  # the same of `read_by`
    dtype: torch.dtype = WIDE

    def image(self) -> Tensor:
        return torch.arange(1, self.n + 1, dtype=self.dtype).view(1, 1, -1) ** 2 % 17 + 1

    def whole(self) -> Tensor:
        return self.function(self.image())

    def deps(self) -> list[set[int]]:
        """For every output, the inputs whose poison reaches it."""
        rows = self.image().repeat(self.n, 1, 1)
        rows[range(self.n), 0, range(self.n)] = float("nan")
        hit = self.function(rows)[:, 0].isnan()
        return [set(hit[:, o].nonzero().flatten().tolist()) for o in range(hit.shape[1])]


def weights(k: int) -> Tensor:
    return torch.arange(1, k + 1, dtype=WIDE).view(1, 1, k)  # none is zero


@st.composite
def conv_cases(draw: Draw) -> Case:
    k, s, p, d = (draw(st.integers(*r)) for r in ((1, 5), (1, 4), (0, 4), (1, 3)))
    n = draw(st.integers(1, 16))
    assume(n + 2 * p >= d * (k - 1) + 1)
    window = Slide(k, s, p, p, d)
    return Case(
        window, n, lambda x: F.conv1d(x, weights(k), stride=s, padding=p, dilation=d), exact_by=d == 1 or s == 1
    )


@st.composite
def same_conv_cases(draw: Draw) -> Case:
    k, d, n = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 16))
    before = d * (k - 1) // 2
    window = Slide(k, 1, before, d * (k - 1) - before, d)
    # torch warns that an even kernel makes a copy; padding by hand says the same
    return Case(window, n, lambda x: F.conv1d(F.pad(x, (window.before, window.after)), weights(k), dilation=d))


@st.composite
def max_pool_cases(draw: Draw) -> Case:
    k, s, d, n = (draw(st.integers(*r)) for r in ((1, 5), (1, 4), (1, 3), (1, 16)))
    p, ceil = draw(st.integers(0, k // 2)), draw(st.booleans())
    assume(n + 2 * p >= d * (k - 1) + 1)
    window = Slide(k, s, p, p, d, ceil)
    return Case(window, n, lambda x: F.max_pool1d(x, k, s, p, d, ceil_mode=ceil), exact_by=d == 1 or s == 1)


@st.composite
def avg_pool_cases(draw: Draw) -> Case:
    k, s, n = (draw(st.integers(*r)) for r in ((1, 5), (1, 4), (1, 16)))
    p, ceil = draw(st.integers(0, k // 2)), draw(st.booleans())
    assume(n + 2 * p >= k)
    return Case(Slide(k, s, p, p, 1, ceil), n, lambda x: F.avg_pool1d(x, k, s, p, ceil_mode=ceil))


@st.composite
def transposed_cases(draw: Draw) -> Case:
    k, s, p, d, n = (draw(st.integers(*r)) for r in ((1, 5), (1, 5), (0, 3), (1, 3), (1, 9)))
    extra = draw(st.integers(0, max(s, d) - 1))
    window = Spread(k, s, p, extra, d)
    assume(window.count(n) >= 1)
    return Case(window, n, lambda x: F.conv_transpose1d(x, weights(k), None, s, p, extra, 1, d), exact=d == 1 or k == 1)


def interpolate(x: Tensor, mode: str, size: int | None, scale: float | None, align: bool) -> Tensor:
    """Along one axis; cubic exists for images only."""
    corners = align if mode in ("linear", "cubic") else None
    if mode != "cubic":
        return F.interpolate(x, size, scale, mode, corners)
    sizes, scales = size and (size, 1), scale and (scale, 1.0)
    return F.interpolate(x.unsqueeze(-1), sizes, scales, "bicubic", corners).squeeze(-1)


@st.composite
def resize_cases(draw: Draw) -> Case:
    mode = draw(st.sampled_from(["nearest", "nearest-exact", "linear", "cubic"]))
    align, n = mode in ("linear", "cubic") and draw(st.booleans()), draw(st.integers(1, 40))
    dtype = draw(st.sampled_from([torch.float32, WIDE]))
    if draw(st.booleans()):
        size, scale = draw(st.integers(1, 60)), None
        count = size
    else:
        size, scale = None, draw(st.sampled_from([2.0, 0.5, 3.0, 1.5, 1.05, 1 / 3, 0.7, 2.05]) | st.floats(0.2, 4))
        count = int(n * scale)
    assume(count >= 1)
    window = Resize(n, count, mode, align, 1 / scale if scale else None)
    return Case(window, n, lambda x: interpolate(x, mode, size, scale, align), exact=False, dtype=dtype)


@st.composite
def crop_cases(draw: Draw) -> Case:
    n = draw(st.integers(1, 20))
    start, step = draw(st.integers(0, n - 1)), draw(st.integers(1, 4))
    stop = draw(st.integers(start + 1, n))
    return Case(Crop(start, len(range(start, stop, step)), step), n, lambda x: x[..., start:stop:step])


@st.composite
def pad_cases(draw: Draw) -> Case:
    mode = draw(st.sampled_from(["constant", "reflect", "replicate"]))
    n = draw(st.integers(1, 12))
    most = {"constant": 5, "reflect": n - 1, "replicate": 5}[mode]
    before, after = (draw(st.integers(-2, most)) for _ in range(2))
    out = n + before + after
    assume(out >= 1 and min(before, 0) + min(after, 0) > -n)
    windows: dict[str, Window] = {
        "constant": Crop(-before, out),
        "reflect": Mirror(n, before, after, out),
        "replicate": Replicate(n, before, after, out),
    }
    return Case(windows[mode], n, lambda x: F.pad(x, (before, after), mode=mode), exact=mode != "reflect")


@st.composite
def shuffle_cases(draw: Draw) -> Case:
    times, n = draw(st.integers(1, 4)), draw(st.integers(1, 8))

    def shuffle(x: Tensor) -> Tensor:
        channels = x.unsqueeze(-1).expand(-1, times * times, -1, -1)  # an image one pixel wide
        return F.pixel_shuffle(channels, times)[..., 0]

    return Case(Repeat(times), n, shuffle)


@st.composite
def adaptive_cases(draw: Draw) -> Case:
    n, m = draw(st.integers(1, 20)), draw(st.integers(1, 24))
    return Case(Adaptive(n, m), n, lambda x: F.adaptive_avg_pool1d(x, m))


@st.composite
def other_cases(draw: Draw) -> Case:
    n = draw(st.integers(1, 9))
    softmax = Case(Whole(n, n), n, lambda x: x.softmax(-1))
    return draw(st.sampled_from([softmax, Case(POINT, n, torch.relu)]))


SIMPLE = {
    "conv": conv_cases(),
    "same": same_conv_cases(),
    "max_pool": max_pool_cases(),
    "avg_pool": avg_pool_cases(),
    "transposed": transposed_cases(),
    "resize": resize_cases(),
    "crop": crop_cases(),
    "pad": pad_cases(),
    "shuffle": shuffle_cases(),
    "adaptive": adaptive_cases(),
    "other": other_cases(),
}


@st.composite
def chain_cases(draw: Draw) -> Case:
    """Two local operators, one after the other (those whose windows do not depend on the length)."""
    inner = draw(conv_cases() | max_pool_cases() | transposed_cases() | shuffle_cases())
    outer = draw(conv_cases() | avg_pool_cases() | transposed_cases() | shuffle_cases())
    middle = inner.window.count(inner.n)
    assume(outer.window.count(middle) >= 1 and middle >= getattr(outer.window, "kernel", 1))
    return Case(Chain(outer.window, inner.window), inner.n, lambda x: outer.function(inner.function(x)), exact=False)


CASES = SIMPLE | {"chain": chain_cases()}
every_kind = pytest.mark.parametrize("kind", CASES)
few = settings(max_examples=often(20, 40))


def spans(n: int) -> list[Interval]:
    return [Interval(lo, hi) for lo in range(n) for hi in range(lo + 1, n + 1)]


def union(sets: list[set[int]]) -> set[int]:
    return set().union(*sets)


@every_kind
@few
@given(data=st.data())
def test_count_is_torchs_length(kind: str, data: st.DataObject) -> None:
    case = data.draw(CASES[kind])
    assert case.window.count(case.n) == case.whole().shape[-1]


@every_kind
@few
@given(data=st.data())
def test_outputs_survive_poison_outside_what_they_read(kind: str, data: st.DataObject) -> None:
    case = data.draw(CASES[kind])
    clean = case.whole()
    out = data.draw(st.sampled_from(spans(clean.shape[-1])))
    kept = case.window.reads(*out).clip(case.n)
    dirty = torch.full_like(case.image(), float("nan"))
    dirty[..., kept.lo : kept.hi] = case.image()[..., kept.lo : kept.hi]
    assert torch.equal(case.function(dirty)[..., out.lo : out.hi], clean[..., out.lo : out.hi])


@every_kind
@few
@given(data=st.data())
def test_every_span_reads_no_more_and_no_less(kind: str, data: st.DataObject) -> None:
    case = data.draw(CASES[kind])
    deps = case.deps()
    for out in spans(len(deps)):
        read, truth = case.window.reads(*out), union(deps[out.lo : out.hi])
        assert truth <= set(range(*read.clip(case.n))), (out, read)
        if case.exact and not read.empty:
            assert read.lo in truth or not 0 <= read.lo < case.n, (out, read)
            assert read.hi - 1 in truth or not 0 < read.hi <= case.n, (out, read)


@every_kind
@few
@given(data=st.data())
def test_read_by_is_the_other_way_round(kind: str, data: st.DataObject) -> None:
    case = data.draw(CASES[kind])
    deps = case.deps()
    for into in spans(case.n):
        found = case.window.read_by(*into)
        truth = {o for o, read in enumerate(deps) if not read.isdisjoint(range(*into))}
        assert truth <= set(range(*found.clip(len(deps)))), (into, found)
        if case.exact and case.exact_by and not found.empty:
            assert found.lo in truth or not 0 <= found.lo < len(deps), (into, found)
            assert found.hi - 1 in truth or not 0 < found.hi <= len(deps), (into, found)


@every_kind
@few
@given(data=st.data())
def test_both_ends_are_monotone(kind: str, data: st.DataObject) -> None:
    case = data.draw(CASES[kind])
    for rule, n in ((case.window.reads, case.window.count(case.n)), (case.window.read_by, case.n)):
        ends = {span: found for span in spans(n) if not (found := rule(*span)).empty}
        for span, found in ends.items():
            for moved in (Interval(span.lo + 1, span.hi), Interval(span.lo, span.hi + 1)):
                assert moved not in ends or (ends[moved].lo >= found.lo and ends[moved].hi >= found.hi), (span, moved)


@given(st.sampled_from(list(SIMPLE)), st.data(), st.integers(-3, 9), st.integers(0, 3))
def test_nothing_reads_nothing(kind: str, data: st.DataObject, lo: int, less: int) -> None:
    window = data.draw(SIMPLE[kind]).window
    assert window.reads(lo, lo - less).empty
    assert window.read_by(lo, lo - less).empty


@given(chain_cases())
def test_a_chain_composes(case: Case) -> None:
    chain = case.window
    assert isinstance(chain, Chain)
    for out in spans(chain.count(case.n)):
        assert chain.reads(*out) == chain.inner.reads(*chain.outer.reads(*out))
    for into in spans(case.n):
        assert chain.read_by(*into) == chain.outer.read_by(*chain.inner.read_by(*into))


@few
@given(resize_cases())
def test_resize_reads_at_most_one_more(case: Case) -> None:
    """Roundings differ between kernels, so one more than this kernel reads is allowed, and no more."""
    assume(isinstance(case.window, Resize) and case.window.scale in (None, 0.5, 2.0))
    for o, truth in enumerate(case.deps()):
        assert case.window.reads(o, o + 1).size <= max(truth) - min(truth) + 2


@settings(max_examples=150)
@example(54, 98, "nearest", True)  # double precision, but rounded to single before floor
@example(1652, 2298, "nearest-exact", True)
@example(26, 2847, "nearest-exact", False)  # fused multiply and subtract
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from(["nearest", "nearest-exact"]), st.booleans())
def test_nearest_on_long_axes(n: int, m: int, mode: str, double: bool) -> None:
    """The value of a picked element is its index, so long axes are cheap to check."""
    picked = F.interpolate(torch.arange(n, dtype=WIDE if double else torch.float32).view(1, 1, n), size=m, mode=mode)
    window = Resize(n, m, mode)
    for o, i in enumerate(picked.flatten().long().tolist()):
        assert window.reads(o, o + 1).holds(Interval(i, i + 1)), (o, i)
        assert window.reads(o, o + 1).size <= 2
