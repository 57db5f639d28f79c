"""JSON walked member by member: values, places in errors, windows over long files, files that are none."""

from __future__ import annotations

import gc
import gzip
import json
import os
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from tilegrad.errors import FormatError
from tilegrad.importers import json_walk
from tilegrad.importers.json_walk import JsonWalk, open_json

DATA = {
    "a": [1, 2.5, 'x,]}\\"é\U0001f600'],
    "b": {"c": None, "d": [True, [], {}]},
    "long": "y" * 300,
    "n": -12345678901,
}


@pytest.fixture(params=[1, 2, 3, 7, 64, 1 << 20])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of a file read at once: windows end everywhere."""
    monkeypatch.setattr(json_walk, "_PIECE", request.param)
    return request.param


def walk_all(walk: JsonWalk) -> object:
    """The value, taken as piecemeal as can be."""
    if walk.starts("{"):
        return {key: walk_all(walk) for key in walk.members()}
    if walk.starts("["):
        return [walk_all(walk) for _ in walk.items()]
    return walk.value()


def error_of(call: Callable[[], object]) -> FormatError:
    with pytest.raises(FormatError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("indent", [None, 2])
def test_what_is_walked_is_what_is_there(piece: int, indent: int | None, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(" \n" + json.dumps(DATA, indent=indent, ensure_ascii=False) + "\n ", encoding="utf-8")
    walk = open_json(path)
    assert walk_all(walk) == DATA
    walk.end()
    assert open_json(path).value() == DATA


@pytest.mark.parametrize("number", ["1234567890123", "-0.5", "1.25e-7", "12E3", "0"])
def test_numbers_are_not_cut(piece: int, number: str, tmp_path: Path) -> None:
    for text in (number, f"[{number}, {number}]", f"[{number}]  "):
        path = tmp_path / "x.json"
        path.write_text(text)
        assert open_json(path).value() == json.loads(text)
        walk = open_json(path)
        assert walk_all(walk) == json.loads(text)


def test_values_are_items(piece: int, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    items = [1, "two", [3], {"four": 4}, None] * 5
    path.write_text(json.dumps({"skip": items, "take": items, "none": []}))
    walk = open_json(path)
    found = {}
    for key in walk.members():
        if key == "skip":
            walk.skip()
        else:
            found[key] = list(walk.values())
    walk.end()
    assert found == {"take": items, "none": []}


BROKEN = {
    "": "ends too early",
    "{": "no key",
    '{"a"': "ends too early",
    '{"a":': "expecting value",
    '{"a": 1': "ends too early",
    '{"a": 1,}': "no key",
    '{"a": 1 "b": 2}': "a comma",
    '{"a": 1, "a": 2}': "stands twice",
    '{"a": [1 2]}': "a comma",
    '{"a": [1,]}': "expecting value",
    '{"a": "x\ny"}': "control character",
    '{"a": "\\q"}': "escape",
    '{"a": "open': "unterminated",
    '{"a": NaN}': "NaN is not a number",
    '{"a": -Infinity}': "-Infinity is not a number",
    '{"a": tru': "expecting value",
    '{"a": ' + "9" * 5000 + "}": "cannot be read",
    '{"a": 1} x': "more text",
    "{" + '"a":{' * 5: "no key",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:12] or "empty")
def test_what_is_no_json_is_an_error_with_its_place(piece: int, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)

    def read() -> None:
        walk = open_json(path)
        for _ in walk.members():
            walk_all(walk)
        walk.end()

    error = error_of(read)
    assert BROKEN[text] in error.what
    assert error.where is not None and error.where.startswith("x.json:1:" if "\n" not in text else "x.json:")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_without_end(opening: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(opening * 100_000)
    assert "too deep" in error_of(open_json(path).value).what


def test_the_place_is_that_of_the_value(piece: int, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{\n "skip": [1,\n2],\n "events": [\n  {"ts": 1},\n  {"ts": "é", "x": 2}]\n}')
    walk = open_json(path)

    def read() -> None:
        for key in walk.members():
            if key != "events":
                walk.skip()
                continue
            for event in walk.values():
                if event["ts"] != 1:
                    walk.fail("bad", "a hint", inside=("ts",))

    error = error_of(read)
    assert (error.what, error.where, error.hint) == ("bad", "x.json:6:3 (events.1.ts)", "a hint")


def test_long_keys_are_cut() -> None:
    walk = JsonWalk(json.dumps({"k" * 500: 1}), "x")
    for _ in walk.members():
        where = error_of(lambda: walk.fail("bad")).where
        walk.skip()
    assert where is not None and len(where) < 100


def test_a_value_must_be_taken() -> None:
    walk = JsonWalk('{"a": 1}', "x")
    with pytest.raises(AssertionError, match="J1"):
        list(walk.members())
    with pytest.raises(AssertionError, match="J1"):
        list(JsonWalk("[1]", "x").items())


@pytest.mark.parametrize("packed", [False, True])
def test_files_may_be_packed(packed: bool, tmp_path: Path) -> None:
    path, text = tmp_path / "x", '\ufeff{"a": "é"}'
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert open_json(path).value() == {"a": "é"}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(10_000))
    files = {
        "cut.gz": whole[:5000],
        "bad.gz": whole[:20] + bytes(40) + whole[60:],
        "latin": b'{"a": "\xe9"}',
        "half": b'{"a": "\xc3',
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for name, what in {"latin": "byte 7 is 0xe9", "half": "byte 7 is 0xc3", "cut.gz": "", "bad.gz": ""}.items():
        error = error_of(lambda: open_json(tmp_path / name).value())
        assert what in error.what and error.where
    for path in (tmp_path, tmp_path / "none", tmp_path / "nul\0"):
        assert error_of(lambda: open_json(path)).where


def test_the_place_of_a_bad_byte_counts_from_the_beginning(piece: int, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'{"a": "\xc3\xa9\xc3\xa9' + b"\xe2\x82" + b'"}')
    assert "byte 11 is 0xe2" in error_of(lambda: open_json(path).value()).what


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 3_000_000 + b"]"))
    monkeypatch.setattr(json_walk, "LARGEST_FILE", 2_000_000)
    assert "MiB of text" in error_of(lambda: open_json(path).value()).what
    monkeypatch.setattr(json_walk, "LARGEST_FILE", 2**32)
    monkeypatch.setattr(json_walk, "LARGEST_VALUE", 100_000)
    path.write_text('["' + "x" * 3_000_000 + '"]')
    assert "a value of more than" in error_of(lambda: open_json(path).value()).what


def test_long_files_are_not_held(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"events": [' + ",".join(['{"a": "' + "x" * 1000 + '"}'] * 20_000) + "]}")
    tracemalloc.start()
    walk = open_json(path)
    count = sum(1 for _ in walk.members() for _ in walk.values())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 8_000_000  # of 20 MB


def test_files_are_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a walk is given up its file is closed with it, and not when garbage is looked for: there is no cycle."""
    monkeypatch.setattr(json_walk, "_PIECE", 4)
    path = tmp_path / "x.json"
    path.write_text('{"a": [1, 2, 3], "b": [4, 5, 6]}')
    gc.disable()
    try:
        walk = open_json(path)
        for _ in walk.members():
            break
        gone = weakref.ref(walk)
        del walk
        assert gone() is None
    finally:
        gc.enable()


def test_progress_is_of_the_file(tmp_path: Path) -> None:
    path, told = tmp_path / "x.json", list[tuple[int, int]]()
    path.write_text(json.dumps(["x" * 1000] * 3000))
    walk = open_json(path, lambda done, total: told.append((done, total)))
    assert len(list(walk.values())) == 3000
    size = path.stat().st_size
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (size, size) and len(told) >= 3
