"""Any profile, saved as a Chrome trace, comes back as it was; and the trace is one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thorough import often
from tilegrad.importers.torch_trace import load_torch_trace
from tilegrad.ir import Phase
from tilegrad.profile import Block, BlockKind, Operator, Profile, Span, check_profile
from tilegrad.profile.model import MOST_BYTES
from tilegrad.report.chrome_trace import format_chrome_trace, save_chrome_trace
from trace_schema import check_trace

ODD = ('"', "\\", "\n", "\0", "\ud800", "\udfff", "\U0001f600", "</script>", "\u2028", "\x7f", "é", "::", " stream ")


def _joined(text: str) -> str:
    """Two halves of a surrogate pair are one character in JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


texts = st.lists(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=())), max_size=6).map(
    lambda parts: _joined("".join(parts))
)
moments = st.floats(allow_nan=False, allow_infinity=False)
shapes = st.lists(st.lists(st.integers(0, 2**40), max_size=3).map(tuple), max_size=2).map(tuple)
names = st.lists(texts, max_size=2).map(tuple)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), moments, texts),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
tables = st.dictionaries(texts, json_values, max_size=2)


@st.composite
def spans(draw: st.DrawFn) -> Span | None:
    times = sorted(draw(st.lists(moments, max_size=3)))
    if len(times) < 2:
        return None
    return Span(times[0], times[-1], times[1] if len(times) == 3 else None)


@st.composite
def operators(draw: st.DrawFn, id: str) -> Operator:
    counts = st.none() | st.integers(0, 2**80)
    return Operator(
        id=id,
        name=draw(texts),
        type=draw(texts),
        host=draw(spans()),
        thread=draw(texts),
        device=draw(spans()),
        stream=draw(texts | st.just("cuda 0 stream 7")),
        flops=draw(counts),
        bytes=draw(counts),
        in_shapes=draw(shapes),
        out_shapes=draw(shapes),
        reads=draw(names),
        writes=draw(names),
        attrs=draw(tables),
        module=draw(texts),
        phase=draw(st.none() | st.sampled_from(Phase)),
        kernel=draw(texts),
    )


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    ids = draw(st.lists(texts, unique=True, max_size=4))
    found = tuple(draw(operators(id)) for id in ids)
    running = draw(st.integers(0, len(found)))
    clock = tuple(sorted(draw(st.lists(moments, max_size=5))))

    def block() -> Block:
        start, stop = sorted(draw(st.tuples(st.integers(0, len(clock)), st.integers(0, len(clock)))))
        return Block(
            draw(texts),
            draw(st.integers(0, MOST_BYTES)),
            start,
            stop,
            draw(st.sampled_from(BlockKind)),
            draw(st.none() | st.integers(0, MOST_BYTES)),
            draw(texts | st.sampled_from(("cpu", "cuda 0"))),
            draw(st.none() | st.integers(0, running - 1)) if running else None,
            draw(st.booleans()),
        )

    return Profile(
        draw(texts),
        draw(texts),
        found[:running],
        tuple(block() for _ in range(draw(st.integers(0, 4)))),
        clock,
        found[running:],
        one_clock=draw(st.booleans()),
        facts=draw(tables),
        notes=draw(names),
    )


@settings(max_examples=often(80, 200), suppress_health_check=[HealthCheck.too_slow])
@given(profiles(), st.booleans())
def test_what_is_saved_comes_back(profile: Profile, packed: bool) -> None:
    check_profile(profile)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("t.json.gz" if packed else "t.json")
        save_chrome_trace(profile, path)
        again = load_torch_trace(path)
    assert again == profile
    assert _texts(again) == _texts(profile)  # 0.0 and -0.0 are equal, and 1 and True
    check_trace(json.loads("".join(format_chrome_trace(profile))))


def _texts(value: Any) -> str:
    return repr((value.operators, value.idle, value.blocks, value.clock, value.facts, value.notes))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(profiles())
def test_saving_again_makes_the_same_text(profile: Profile) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        save_chrome_trace(profile, path)
        assert "".join(format_chrome_trace(load_torch_trace(path))) == path.read_text()
