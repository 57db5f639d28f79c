"""Broken files of every profile format: a profile that passes its check, or one error with a place. Nothing else.

Thousands of changes to good files: bits, cuts, spans twice or gone, numbers beyond all, nesting without end, other keys
and types. Each must be read, or refused, in bounded time and memory.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profile_samples import cuda_trace, sample_profile, save_cpu_trace, snapshot
from thorough import often
from tilegrad.errors import FormatError
from tilegrad.importers.cuda_snapshot import load_cuda_snapshot
from tilegrad.importers.torch_trace import load_torch_trace
from tilegrad.profile import Profile, check_profile
from tilegrad.report.chrome_trace import save_chrome_trace

MOST_S = 2.0
MOST_MORE_BYTES = 400 * 2**20
MEGENGINE = Path(__file__).parent.parent / "data" / "resnet50_megengine.json"
ODD_NUMBERS = ("9223372036854775808", "9223372036854775807", "NaN", "-1", "1e999", "-1e999", "-0.0", "1e-400", "1e17")
ODD_NUMBERS += ("Infinity", "18446744073709551616", "1" * 400, "1" * 5000, "0.5", "true", "null", '""', "[]", "{}")
ODD_VALUES: tuple[Any, ...] = (None, True, -1, 2**63, 2**63 - 1, 1e300, 0.5, "", "x" * 1000, "\0", "\ud800", [], {})
ODD_VALUES += ([[]], [None], {"": None}, {"tilegrad": {}}, [1, "a"], "nn.Module: ", "[memory]", 0)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_KEY = re.compile(rb'"([^"\\]*)"\s*:')

Loader = Callable[[Path], Profile]


def _load_megengine(path: Path) -> Profile:
    return importlib.import_module("tilegrad.importers.megengine.profile").load_megengine(path)


# name -> how it is loaded, how a good file is made, how many changes
SOURCES: dict[str, tuple[Loader, Callable[[Path], None], int]] = {
    "torch_cpu": (load_torch_trace, lambda path: _shrink_trace(save_cpu_trace(path, **FULL)), often(300, 900)),
    "torch_cuda": (load_torch_trace, lambda path: _write(path, cuda_trace()), often(700, 2000)),
    "snapshot": (load_cuda_snapshot, lambda path: _write(path, snapshot()), often(700, 2000)),
    "own": (load_torch_trace, lambda path: save_chrome_trace(sample_profile(), path), often(700, 2000)),
}
FULL = {"record_shapes": True, "profile_memory": True, "with_stack": True}
if MEGENGINE.exists() and importlib.util.find_spec("tilegrad.importers.megengine.profile"):
    SOURCES["megengine"] = (_load_megengine, lambda path: _copy_megengine(path), often(100, 300))


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1))


def _shrink_trace(path: Path) -> None:
    """Without most calls of Python, which no one reads."""
    data = json.loads(path.read_text())
    kept = [e for e in data["traceEvents"] if e.get("cat") != "python_function" or e["name"].startswith("nn.Module")]
    _write(path, data | {"traceEvents": kept})


def _copy_megengine(path: Path) -> None:
    path.write_bytes(MEGENGINE.read_bytes())


# ------------------------------------------------------------------------------------------------- changes


def _flip(raw: bytes, dice: random.Random) -> bytes:
    found = bytearray(raw)
    for _ in range(dice.choice((1, 1, 2, 8))):
        found[dice.randrange(len(found))] ^= 1 << dice.randrange(8)
    return bytes(found)


def _cut(raw: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(raw))
    return raw[:at] if dice.random() < 0.7 else raw[at:]


def _span(raw: bytes, dice: random.Random) -> tuple[int, int]:
    start = dice.randrange(len(raw))
    return start, start + dice.choice((1, 3, 20, 300, 5000))


def _repeat(raw: bytes, dice: random.Random) -> bytes:
    start, end = _span(raw, dice)
    return raw[:end] + raw[start:]


def _remove(raw: bytes, dice: random.Random) -> bytes:
    start, end = _span(raw, dice)
    return raw[:start] + raw[end:]


def _move(raw: bytes, dice: random.Random) -> bytes:
    start, end = _span(raw, dice)
    at = dice.randrange(len(raw))
    return raw[:at] + raw[start:end] + raw[at:]


def _one(pattern: re.Pattern[bytes], raw: bytes, dice: random.Random) -> re.Match[bytes]:
    """A match after a place by chance, or the first."""
    found = pattern.search(raw, dice.randrange(len(raw))) or pattern.search(raw)
    assert found
    return found


def _number(raw: bytes, dice: random.Random) -> bytes:
    found = _one(_NUMBER, raw, dice)
    return raw[: found.start()] + dice.choice(ODD_NUMBERS).encode() + raw[found.end() :]


def _nest(raw: bytes, dice: random.Random) -> bytes:
    found = _one(_NUMBER, raw, dice)
    opening, closing = dice.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"[", b""), (b'[{"args":', b"")))
    deep = dice.choice((50, 2000, 100_000))
    return raw[: found.start()] + opening * deep + b"1" + closing * deep + raw[found.end() :]


def _rename(raw: bytes, dice: random.Random) -> bytes:
    found = _one(_KEY, raw, dice)
    other = _one(_KEY, raw, dice)[1] if dice.random() < 0.6 else dice.choice((b"", b"x", b"\\ud800", b"tilegrad"))
    return raw[: found.start(1)] + other + raw[found.end(1) :]


def _structure(raw: bytes, dice: random.Random) -> bytes:
    """Another value, another type, a member less, an item twice, at a place by chance."""
    data = json.loads(raw)
    for _ in range(dice.choice((1, 1, 3))):
        holder, key = _place(data, dice)
        match dice.randrange(5):
            case 0 | 1:
                holder[key] = dice.choice(ODD_VALUES)
            case 2:
                del holder[key]
            case 3 if isinstance(holder, list):
                holder.insert(dice.randrange(len(holder) + 1), holder[key])
            case _:
                other, place = _place(data, dice)
                holder[key], other[place] = other[place], holder[key]
        if not data:
            break
    try:
        return json.dumps(data).encode()
    except ValueError:  # swapping put a thing inside itself
        return raw


def _place(data: Any, dice: random.Random) -> tuple[Any, Any]:
    """A container and a key in it; deeper ones more often."""
    while True:
        key = dice.choice(list(data)) if isinstance(data, dict) else dice.randrange(len(data))
        inner = data[key]
        if not isinstance(inner, dict | list) or not inner or dice.random() < 0.1:
            return data, key
        data = inner


CHANGES = (_flip, _cut, _repeat, _remove, _move, _number, _number, _nest, _rename, _structure, _structure, _structure)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    made: dict[str, bytes] = {}

    def get(source: str) -> bytes:
        if source not in made:
            path = tmp_path_factory.mktemp("good") / f"{source}.json"
            SOURCES[source][1](path)
            made[source] = path.read_bytes()
        return made[source]

    return get


def _try(load: Loader, path: Path, case: str) -> bool:
    """Is it read? Fails where something other than a FormatError comes, or it takes too long."""
    began = time.process_time()
    try:
        profile = load(path)
    except FormatError as error:
        assert error.where, case
        assert len(str(error)) < 2000, case
        return False
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    finally:
        assert time.process_time() - began < MOST_S, case
    assert isinstance(profile, Profile)
    check_profile(profile)
    return True


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("source", SOURCES)
def test_broken_files(source: str, part: int, good: Callable[[str], bytes], tmp_path: Path) -> None:
    load, _, count = SOURCES[source]
    raw, path = good(source), tmp_path / "fuzz.json"
    path.write_bytes(raw)
    assert _try(load, path, "unchanged")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read = 0
    for seed in range(part * count // 2, (part + 1) * count // 2):
        dice = random.Random(f"{source} {seed}")
        change = CHANGES[seed % len(CHANGES)]
        path.write_bytes(change(raw, dice))
        read += _try(load, path, f"{source}, seed {seed}, {change.__name__}")
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert more < MOST_MORE_BYTES
    assert 0 < read < count / 2  # some are harmless, most of these are not


def test_enough_is_tried() -> None:
    assert sum(count for _, _, count in SOURCES.values()) >= 2000


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("text", ["", " ", "{", "[", "{}", "[]", "null", "3", '""', "[" * 100_000, '{"a":' * 100_000])
def test_files_of_nothing(source: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert not _try(SOURCES[source][0], path, text[:10])


@pytest.mark.parametrize("source", SOURCES)
def test_bytes_of_nothing(source: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for raw in (b"\x80\x04]", b"\x1f\x8b", b"\x1f\x8b" + bytes(100), b"\xff\xfe{}", bytes(1000), b"\xef\xbb\xbf"):
        path.write_bytes(raw)
        assert not _try(SOURCES[source][0], path, repr(raw[:10]))
