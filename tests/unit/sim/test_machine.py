"""Machines: what they predict, their files, and one clear error for each kind of bad file (rules M1 and M2)."""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.errors import FormatError, InputError
from tilegrad.sim.machine import (
    FILE_BYTES,
    NAME_LENGTH,
    PRESETS,
    RATES,
    Machine,
    find_machine,
    format_machine,
    load_machine,
    parse_machine,
    save_machine,
)

TOY = Machine("toy", 10.0, 100.0, 4.0, 2.0, 1000, None, launch_s=0.5, rates={"bfloat16": 20.0})
GOOD = """version = 1
name = "card"
flops_per_s = 15.7e12
bytes_per_s = 900000000000
to_host_per_s = 12e9
from_host_per_s = 12e9
device_bytes = 16_000_000_000

[rates]
bfloat16 = 125e12
"""

rate = st.floats(1e6, 1e18)
size = st.none() | st.integers(2**20, 2**50)
name = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=NAME_LENGTH)
machines = st.builds(
    Machine,
    name=name.filter(lambda text: text.isprintable() and bool(text.strip())),
    flops_per_s=rate,
    bytes_per_s=rate,
    to_host_per_s=rate,
    from_host_per_s=rate,
    device_bytes=size,
    host_bytes=size,
    launch_s=st.floats(0.0, 1.0),
    fresh_bytes_per_s=st.none() | rate,
    serial_per_s=st.none() | rate,
    rates=st.dictionaries(st.sampled_from(RATES), rate),
)


@pytest.mark.parametrize(
    ("flops", "moved", "dtype", "expected"),
    [
        (100, 0, "float32", 10.5),
        (100, 0, "bfloat16", 5.5),
        (100, 0, "float64", 10.5),  # no rate of its own
        (100, 5000, "float32", 50.5),  # memory takes longer
        (0, 0, "float32", 0.5),
    ],
)
def test_the_longer_of_arithmetic_and_memory_counts(flops: int, moved: int, dtype: str, expected: float) -> None:
    assert TOY.seconds(flops, moved, dtype) == expected


def test_v100_is_the_one_of_the_golden_results() -> None:
    card = PRESETS["v100"]
    assert (card.flops_per_s, card.bytes_per_s, card.launch_s) == (15.7e12, 900e9, 0.0)
    assert (card.to_host_per_s, card.from_host_per_s, card.device_bytes) == (12e9, 12e9, 16 * 10**9)
    assert card.seconds(15.7e12, 0) == 1.0 and card.seconds(0, 900e9) == 1.0


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_found_by_name_and_make_files(preset: str) -> None:
    found = find_machine(preset)
    assert found.name == preset
    assert parse_machine(format_machine(found)) == found
    assert all(found.rates[dtype] > found.flops_per_s for dtype in ("float16", "bfloat16") if dtype in found.rates)


def test_a_machine_is_a_value() -> None:
    rates = {"bfloat16": 20.0}
    machine = dataclasses.replace(TOY, rates=rates)
    rates["bfloat16"] = 7.0
    assert machine == TOY and hash(machine) == hash(TOY)
    assert pickle.loads(pickle.dumps(TOY)) == TOY
    assert dataclasses.asdict(TOY)["rates"] == {"bfloat16": 20.0}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", "", "must be a text of 1 to 200 printable characters, not ''"),
        ("name", "two\nlines", "printable"),
        ("name", "\ud800", "printable"),
        ("name", "x" * 201, "printable"),
        ("flops_per_s", 0.0, "must be more than 0, not 0.0"),
        ("flops_per_s", -1.0, "must be more than 0, not -1.0"),
        ("bytes_per_s", math.nan, "must be finite, not nan"),
        ("bytes_per_s", math.inf, "must be finite, not inf"),
        ("bytes_per_s", -math.inf, "must be finite, not -inf"),
        ("to_host_per_s", 10**400, "must be finite"),
        ("from_host_per_s", True, "must be a number, not True"),
        ("launch_s", -1e-9, "must be 0 or more"),
        ("device_bytes", 1.5, "must be a whole number, not 1.5"),
        ("rates", {"float32": 1.0}, "is not a type of arithmetic with a rate"),
        ("rates", {"bfloat16": 0.0}, "rates.bfloat16 must be more than 0"),
    ],
)
def test_a_machine_that_cannot_be(key: str, value: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        dataclasses.replace(TOY, **{key: value})
    assert message in error.value.what and key in error.value.what
    assert error.value.hint


def test_a_number_that_python_does_not_write_out() -> None:
    with pytest.raises(InputError, match="must be finite, not a number of thousands of digits"):
        dataclasses.replace(TOY, flops_per_s=10**5000)


@given(machines)
def test_a_file_gives_the_machine_back(machine: Machine) -> None:
    """Rule M1."""
    assert parse_machine(format_machine(machine)) == machine


@given(machines)
def test_no_file_is_too_long_to_be_read(machine: Machine) -> None:
    assert len(format_machine(machine).encode()) <= FILE_BYTES


def test_a_toy_makes_no_file() -> None:
    """Rule M2 would refuse it."""
    with pytest.raises(InputError, match=r"flops_per_s must lie between 1e\+06 and 1e\+18, not be 10.0"):
        format_machine(TOY)


def test_a_file_by_hand() -> None:
    found = parse_machine(GOOD)
    assert found == Machine("card", 15.7e12, 9e11, 12e9, 12e9, 16 * 10**9, None, 0.0, {"bfloat16": 125e12})
    assert isinstance(found.bytes_per_s, float)


BAD = {
    "not TOML": ("name =", "name = =", "is not TOML: Invalid value (at line 2, column 8)"),
    "key twice": ("version = 1", "version = 1\nversion = 1", "is not TOML: Cannot overwrite a value"),
    "no version": ("version = 1\n", "", "key 'version' is missing"),
    "next version": ("version = 1", "version = 2", "key 'version' must be 1, not 2"),
    "version as text": ("version = 1", 'version = "1"', "key 'version' must be 1, not '1'"),
    "version true": ("version = 1", "version = true", "key 'version' must be 1, not True"),
    "no name": ('name = "card"\n', "", "key 'name' is missing"),
    "number as name": ('"card"', "7", "key 'name' must be a text of 1 to 200 printable characters, not 7"),
    "name of two lines": ('"card"', r'"a\nb"', r"not 'a\nb'"),
    "no rate": ("flops_per_s = 15.7e12\n", "", "key 'flops_per_s' is missing"),
    "unknown key": ("device_bytes", "device_byte", "key 'device_byte' is not known"),
    "unknown table": ("[rates]", "[speed]", "key 'speed' is not known"),
    "text": ("15.7e12", '"15.7e12"', "key 'flops_per_s' must be a number, not '15.7e12'"),
    "boolean": ("15.7e12", "true", "key 'flops_per_s' must be a number, not True"),
    "list": ("15.7e12", "[15.7e12]", "key 'flops_per_s' must be a number, not a list"),
    "date": ("15.7e12", "2020-01-01", "key 'flops_per_s' must be a number, not a date"),
    "nan": ("15.7e12", "nan", "key 'flops_per_s' must be finite, not nan"),
    "infinity": ("900000000000", "inf", "key 'bytes_per_s' must be finite, not inf"),
    "negative": ("to_host_per_s = 12e9", "to_host_per_s = -12e9", "key 'to_host_per_s' must be more than 0"),
    "zero": ("from_host_per_s = 12e9", "from_host_per_s = 0", "key 'from_host_per_s' must be more than 0, not 0"),
    "in tera": ("15.7e12", "15.7", "key 'flops_per_s' must lie between 1e+06 and 1e+18, not be 15.7"),
    "too fast": ("15.7e12", "1e19", "key 'flops_per_s' must lie between"),
    "very long number": ("15.7e12", "0x" + "f" * 900, "key 'flops_per_s' must be finite, not 5104"),
    "in gibi": ("16_000_000_000", "16", "key 'device_bytes' must lie between"),
    "half a byte": ("16_000_000_000", "16e9", "key 'device_bytes' must be a whole number, not 16000000000.0"),
    "unknown dtype": ("bfloat16", "bfloat61", "key 'rates.bfloat61' is not a type of arithmetic with a rate"),
    "float32 twice": ("bfloat16", "float32", "key 'rates.float32' is not a type of arithmetic with a rate"),
    "rate as text": ("125e12", "'fast'", "key 'rates.bfloat16' must be a number, not 'fast'"),
    "rates as number": ("[rates]\nbfloat16 = 125e12", "rates = 3", "key 'rates' must be a table, not 3"),
    "slow launch": ("device_bytes", "launch_s = 5\ndevice_bytes", "key 'launch_s' must lie between 0 and 1, not be 5"),
    "deep list": ("15.7e12", "[\n" * 20000, "is not TOML"),
    "deep table": ("flops_per_s = 15.7e12", "flops_per_s" + ".a" * 400 + " = 1", "must be a number, not a dict"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_clear_error(case: str, tmp_path: Path) -> None:
    """Rule M2. What, where and, but for broken TOML, what to try."""
    old, new, message = BAD[case]
    assert old in GOOD
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(FormatError) as error:
        find_machine(str(path))
    assert message in error.value.what
    assert error.value.where == str(path)
    assert error.value.hint or "not TOML" in message
    assert len(str(error.value)) < 1000


def test_a_line_that_takes_long_to_parse() -> None:
    with pytest.raises(FormatError, match="a line of more than 1000 characters"):
        parse_machine(GOOD + "a" + ".a" * 30000 + " = 1")


def test_a_mistyped_key_is_told_its_name() -> None:
    with pytest.raises(FormatError) as error:
        parse_machine(GOOD.replace("to_host_per_s", "to_hots_per_s", 1))
    assert error.value.hint == "to_host_per_s"


@given(st.text())
def test_any_text_is_a_machine_or_a_format_error(text: str) -> None:
    with pytest.raises(FormatError):
        parse_machine(text)


@given(st.integers(0, len(GOOD)), st.integers(0, 30), st.text(max_size=8))
def test_a_damaged_file_is_a_machine_or_a_format_error(start: int, count: int, text: str) -> None:
    try:
        found = parse_machine(GOOD[:start] + text + GOOD[start + count :])
    except FormatError:
        return
    assert parse_machine(format_machine(found)) == found


def test_files_that_are_not_machine_files(tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(FormatError) as error:
            load_machine(path)
        assert message in error.value.what and error.value.where == str(path)

    path = tmp_path / "m.toml"
    refused(path, "cannot be read: No such file")
    refused(tmp_path / "nul\0.toml", "cannot be read")
    refused(tmp_path / ("x" * 300 + ".toml"), "cannot be read: File name too long")
    path.write_bytes(GOOD.encode() + b"#" * FILE_BYTES)
    refused(path, "more than 65536 bytes")
    path.write_bytes(b'version = 1\nname = "\xff"\n')
    refused(path, "not UTF-8: byte 20 is 0xff")
    path.unlink()
    path.mkdir()
    refused(path, "from a plain file")
    os.mkfifo(tmp_path / "pipe.toml")
    refused(tmp_path / "pipe.toml", "from a plain file")


def test_a_file_of_another_editor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_machine(path) == parse_machine(GOOD)


def test_saved_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.toml"
    save_machine(PRESETS["v100"], path)
    save_machine(PRESETS["a100"], path)
    assert load_machine(path) == PRESETS["a100"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="cannot be written: No space left") as error:
        save_machine(PRESETS["h200"], path)
    assert error.value.where == str(path)
    assert os.listdir(tmp_path) == ["m.toml"]
    assert load_machine(path) == PRESETS["a100"]


def test_saved_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        save_machine(PRESETS["v100"], tmp_path / "no" / "m.toml")
    with pytest.raises(InputError, match=r"called something.toml, not 'm.txt'"):
        save_machine(PRESETS["v100"], tmp_path / "m.txt")
    assert os.listdir(tmp_path) == []


def test_this_machine_is_what_the_caller_says() -> None:
    assert find_machine("this", lambda: TOY) is TOY


@pytest.mark.parametrize("text", ["V100", "", "this ", "machine.json", "x" * 5000])
def test_what_is_not_a_machine(text: str) -> None:
    with pytest.raises(InputError, match="is not a machine") as error:
        find_machine(text, lambda: TOY)
    assert error.value.hint == "this, v100, a100, h200, or the path of a .toml file"


def test_this_is_not_offered_where_nobody_can_tell() -> None:
    with pytest.raises(InputError, match="'this' is not a machine") as error:
        find_machine("this")
    assert error.value.hint == "v100, a100, h200, or the path of a .toml file"


def test_no_torch_is_needed() -> None:
    """`import tilegrad` brings torch anyway, so the source is asked."""
    source = Path(sys.modules["tilegrad.sim.machine"].__file__ or "").read_text()
    assert not re.findall(r"^(?:import|from) .*torch", source, re.MULTILINE)
