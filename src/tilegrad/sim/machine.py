"""A machine: how fast it computes and moves bytes, and how much it holds. Known ones by name, others from TOML files.

    version = 1
    name = "my card"
    flops_per_s = 15.7e12       # dense arithmetic in float32
    bytes_per_s = 900e9         # device memory, bytes read plus bytes written
    to_host_per_s = 12e9        # link, device to host
    from_host_per_s = 12e9      # link, host to device
    device_bytes = 16000000000  # optional: not known where absent
    host_bytes = 64000000000    # optional
    launch_s = 5e-6             # optional: overhead of one operator, 0 where absent
    kernel_s = 2e-6             # optional: the least that a kernel takes, on a device that the host runs ahead of
    peer_bytes_per_s = 5e10     # optional: link to another rank
    message_s = 3e-5            # optional: until a message to another rank has come, besides its bytes
    fresh_bytes_per_s = 1.8e9   # optional: large blocks are new each time, and the system fills them with zeros
    serial_per_s = 6e8          # optional: elements that are looked at one after another, as max pools do on a CPU

    [rates]                     # optional: dense arithmetic in other types
    bfloat16 = 125e12

Rule M1: what `format_machine` writes, `parse_machine` reads as an equal machine.
Rule M2: no file makes a machine with a figure that is not finite, not positive, or off by a unit (15.7 for TFLOP/s).
"""

from __future__ import annotations

import contextlib
import difflib
import os
import secrets
import stat
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from ..errors import FormatError, InputError

VERSION = 1
FILE_BYTES = 64 * 1024  # no machine file is longer; a wrong path may be anything
LINE_LENGTH = 1000  # tomllib takes many seconds over a key of thousands of dots
NAME_LENGTH = 200

# Types of arithmetic with a rate of their own; float32's is `flops_per_s`. "tfloat32" is float32 tensors in TF32 units.
RATES = ("float64", "float16", "bfloat16", "tfloat32", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class _Key:
    """What a number in a machine file may be: its range, and how to write it."""

    low: float
    high: float
    hint: str


# Wide enough for every machine there is; narrow enough that a figure in tera, giga or micro is found out.
_LINK = _Key(1e6, 1e18, "bytes per second: 12e9 for 12 GB/s")
_SIZE = _Key(2**20, 2**50, "a whole number of bytes: 17179869184 for 16 GiB; without this key it is not known")
_NUMBERS: Mapping[str, _Key] = MappingProxyType(
    {
        "flops_per_s": _Key(1e6, 1e18, "operations per second: 15.7e12 for 15.7 TFLOP/s"),
        "bytes_per_s": _Key(1e6, 1e18, "bytes per second: 900e9 for 900 GB/s"),
        "to_host_per_s": _LINK,
        "from_host_per_s": _LINK,
        "device_bytes": _SIZE,
        "host_bytes": _SIZE,
        "launch_s": _Key(0.0, 1.0, "seconds: 5e-6 for 5 microseconds"),
        "kernel_s": _Key(0.0, 1.0, "seconds: 2e-6 for 2 microseconds; without this key the host waits for each"),
        "peer_bytes_per_s": _LINK,
        "message_s": _Key(0.0, 1.0, "seconds: 3e-5 for 30 microseconds"),
        "fresh_bytes_per_s": _LINK,
        "serial_per_s": _Key(1e6, 1e18, "elements per second: 6e8; without this key they are as fast as memory"),
    }
)
_REQUIRED = ("version", "name", "flops_per_s", "bytes_per_s", "to_host_per_s", "from_host_per_s")
_KEYS = ("version", "name", *_NUMBERS, "rates")


@dataclass(frozen=True)
class Machine:
    """One device, the host it hangs on, and the link between them. On a CPU the host is the device."""

    name: str
    flops_per_s: float  # dense arithmetic (convolution, matrix product) in float32
    bytes_per_s: float  # device memory, bytes read plus bytes written
    to_host_per_s: float  # link, device to host, bytes that arrive
    from_host_per_s: float  # link, host to device
    device_bytes: int | None
    host_bytes: int | None
    launch_s: float = 0.0  # overhead of one operator
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)  # dense arithmetic in other types: see RATES
    peer_bytes_per_s: float | None = None  # link to another rank
    message_s: float | None = None  # until a message to another rank has come, besides its bytes
    kernel_s: float | None = None  # the least that a kernel takes; None: host and device are one
    fresh_bytes_per_s: float | None = None  # large blocks that are new each time; None: they are not
    serial_per_s: float | None = None  # elements that are looked at one after another; None: as fast as memory

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", dict(self.rates))  # our own copy: a later change of theirs is not ours
        for key, value in _entries(self):
            if flaw := _flaw(key, value, plausible=False):
                raise InputError(f"a machine's {key} {flaw}", hint=_hint(key))

    @property
    def recorded(self) -> Machine:
        """Where a step's kernels are launched all at once: the host takes no time over them."""
        return replace(self, launch_s=0.0)

    def elapsed(self, host: float, device: float) -> float:
        """Seconds of work that host and device have to do for a step."""
        return host + device if self.kernel_s is None else max(host, device)

    def extra_s(self, fresh: float, serial: float = 0.0) -> float:
        """Time of an operator besides arithmetic and traffic: bytes of new memory, and elements one after another."""
        pages = fresh / self.fresh_bytes_per_s if self.fresh_bytes_per_s is not None else 0.0
        return pages + (serial / self.serial_per_s if self.serial_per_s is not None else 0.0)

    @property
    def link_per_s(self) -> float:
        """Bytes per second to where values wait and back. For a CPU that is a file: its pages are new, too."""
        return min(self.to_host_per_s, self.from_host_per_s, self.fresh_bytes_per_s or inf)

    def seconds(self, flops: float, bytes: float, dtype: str = "float32") -> float:
        """Time of one operator: its overhead, and the longer of arithmetic and memory traffic, which overlap.

        A dtype without a rate of its own counts as float32.
        """
        rate = self.rates.get(dtype, self.flops_per_s)
        return self.launch_s + max(flops / rate, bytes / self.bytes_per_s)


def find_machine(text: str, this: Callable[[], Machine] | None = None) -> Machine:
    """A machine by what a user says: `"this"`, a preset, or the path of a .toml file.

    this: how to find out about the machine we run on, `tilegrad.sim.measure.this_machine` for one. It needs torch,
    which this package does not know.
    """
    if text == "this" and this is not None:
        return this()
    if text in PRESETS:
        return PRESETS[text]
    if text.endswith(".toml"):
        return load_machine(text)
    offers = (*(["this"] if this is not None else []), *PRESETS)
    raise InputError(f"{_show(text)} is not a machine", hint=f"{', '.join(offers)}, or the path of a .toml file")


def load_machine(path: str | Path) -> Machine:
    """Read a machine file."""
    place = str(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would make us wait, a folder cannot be read
            raise FormatError("a machine is read from a plain file, which this is not", where=place)
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES + 1)
    except FormatError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        hint = f"tilegrad bench machine --out FILE.toml, or one of {', '.join(PRESETS)}"
        raise FormatError(f"the machine file cannot be read: {reason}", where=place, hint=hint) from error
    if len(data) > FILE_BYTES:
        raise FormatError(f"a machine file of more than {FILE_BYTES} bytes", where=place, hint="is it another file?")
    try:
        text = data.decode("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as error:
        what = f"the machine file is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
        raise FormatError(what, where=place, hint="save it as UTF-8, or is it another file?") from error
    return parse_machine(text, place)


def parse_machine(text: str, source: str = "the text") -> Machine:
    """Read the text of a machine file; `source` is what errors call it."""
    if any(len(line) > LINE_LENGTH for line in text.splitlines()):
        raise FormatError(f"a machine file with a line of more than {LINE_LENGTH} characters", where=source)
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of more digits than Python reads
        raise FormatError(f"the machine file is not TOML: {error}", where=source) from error
    _check_keys(found, source)
    rates = found.get("rates", {})
    if not isinstance(rates, dict):
        _refuse("rates", f"must be a table, not {_show(rates)}", source)
    values: dict[str, Any] = {key: found[key] for key in found if key not in ("version", "rates")}
    for key, value in (*values.items(), *((f"rates.{dtype}", rate) for dtype, rate in rates.items())):
        if flaw := _flaw(key, value, plausible=True):
            _refuse(key, flaw, source)
    values |= {key: float(value) for key, value in values.items() if key.endswith("_s")}  # 900 is a float, too
    unknown = {"device_bytes": None, "host_bytes": None}
    return Machine(**{**unknown, **values}, rates={dtype: float(rate) for dtype, rate in rates.items()})


def format_machine(machine: Machine) -> str:
    """The text of a machine file."""
    lines = ["# A machine, as tilegrad sees it. All figures are per second or in bytes.", f"version = {VERSION}"]
    for key, value in _entries(machine):
        if flaw := _flaw(key, value, plausible=True):
            raise InputError(f"a machine's {key} {flaw}", where=f"machine {_show(machine.name)}", hint=_hint(key))
        if key.startswith("rates."):
            continue
        lines.append(f"{key} = {_quote(value) if isinstance(value, str) else _number(key, value)}")
    if machine.rates:
        lines += ["", "[rates]", *(f"{dtype} = {float(rate)!r}" for dtype, rate in machine.rates.items())]
    return "\n".join(lines) + "\n"


def save_machine(machine: Machine, path: str | Path) -> None:
    """Write a machine file, whole or not at all."""
    text, path = format_machine(machine), Path(path)
    if path.suffix != ".toml":
        raise InputError(f"a machine file is called something.toml, not {_show(path.name)}", where=str(path))
    draft = path.with_name(f"{path.stem[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with open(draft, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(draft, path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the machine file cannot be written: {getattr(error, 'strerror', None) or error}", where=str(path)
        ) from error
    finally:
        with contextlib.suppress(OSError, ValueError):
            draft.unlink()  # gone already where all went well


def _check_keys(found: Mapping[str, Any], source: str) -> None:
    """The version first: another one may have other keys."""
    version = found.get("version", VERSION)
    if version != VERSION or not isinstance(version, int) or isinstance(version, bool):
        what = f"must be {VERSION}, not {_show(version)}"
        _refuse("version", what, source, "a newer tilegrad, or the keys of docs/machine.md")
    for key in found:
        if key not in _KEYS:
            near = difflib.get_close_matches(key[:NAME_LENGTH], _KEYS, n=1)
            _refuse(key, "is not known", source, near[0] if near else f"one of {', '.join(_KEYS)}")
    for key in _REQUIRED:
        if key not in found:
            _refuse(key, "is missing", source, f"version = {VERSION}" if key == "version" else _hint(key))


def _refuse(key: str, flaw: str, source: str, hint: str | None = None) -> NoReturn:
    raise FormatError(f"machine file: key {_show(key)} {flaw}", where=source, hint=hint or _hint(key))


def _entries(machine: Machine) -> list[tuple[str, Any]]:
    """What a machine says, key by key, in the order of the file; without what is not known."""
    found = [(key, getattr(machine, key)) for key in ("name", *_NUMBERS)]
    found += [(f"rates.{dtype}", rate) for dtype, rate in machine.rates.items()]
    return [(key, value) for key, value in found if value is not None]


def _flaw(key: str, value: Any, *, plausible: bool) -> str | None:
    """What is wrong with a value, as the end of a sentence. plausible: also doubt figures that no machine has."""
    if key == "name":
        fine = isinstance(value, str) and 0 < len(value) <= NAME_LENGTH and value.isprintable() and value.strip()
        return None if fine else f"must be a text of 1 to {NAME_LENGTH} printable characters, not {_show(value)}"
    table, _, dtype = key.partition(".")
    if table == "rates" and dtype not in RATES:
        return "is not a type of arithmetic with a rate"
    limits = _limits(key)
    whole = table.endswith("_bytes")
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return f"must be a {'whole number' if whole else 'number'}, not {_show(value)}"
    if not abs(value) <= sys.float_info.max:
        return f"must be finite, not {_show(value)}"
    if value < 0 or (value == 0 and limits.low > 0):
        return f"must be {'more than 0' if limits.low > 0 else '0 or more'}, not {_show(value)}"
    if plausible and not limits.low <= value <= limits.high:
        return f"must lie between {limits.low:g} and {limits.high:g}, not be {_show(value)}"
    return None


def _limits(key: str) -> _Key:
    return _NUMBERS["flops_per_s" if key.startswith("rates.") else key]


def _hint(key: str) -> str:
    if key == "name":
        return 'name = "my card"'
    if key == "rates" or (key.startswith("rates.") and key.removeprefix("rates.") not in RATES):
        return f"a table [rates] with {', '.join(RATES)}; float32 is flops_per_s"
    return _limits(key).hint


def _show(value: Any) -> str:
    """A value in a message: short, and never an error of its own (a table may be deep, a number long)."""
    if not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _quote(text: str) -> str:
    """A TOML string. Names are printable, so only these two need escapes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(key: str, value: float) -> str:
    return str(value) if key.endswith("_bytes") else repr(float(value))


# Last in the file, since a machine checks itself.
#
# Datasheets: dense arithmetic (no sparsity), memory in units of 10**9. Links: what a pinned copy over 16 lanes of PCIe
# 3 (v100), 4 (a100) and 5 (h200, measured) reaches in practice. No datasheet tells the overhead of an operator: it is
# torch's, as measured with an H200. v100's is 0 and must stay so: golden results were computed with its figures.
PRESETS: Mapping[str, Machine] = MappingProxyType(
    {
        "v100": Machine(
            "v100", 15.7e12, 900e9, 12e9, 12e9, 16 * 10**9, None, 0.0, {"float64": 7.8e12, "float16": 125e12}
        ),
        "a100": Machine(
            "a100", 19.5e12, 2039e9, 25e9, 25e9, 80 * 10**9, None, 9e-6,
            {"float64": 19.5e12, "tfloat32": 156e12, "bfloat16": 312e12, "float16": 312e12}, kernel_s=2e-6,
        ),
        "h200": Machine(
            "h200", 67e12, 4.8e12, 55e9, 55e9, 141 * 10**9, None, 9e-6,
            {"float64": 67e12, "tfloat32": 494e12, "bfloat16": 989e12, "float16": 989e12}, 5e10, 3e-5, 2e-6,
        ),
    }
)  # fmt: skip


# What is assumed where nothing is measured: enough to rank plans by.
PEER = (2e9, 2e-4)  # the link to another rank: bytes per second, seconds for a message
CPU = Machine(
    "a CPU", 1e11, 2e10, 1e10, 1e10, None, None, launch_s=3e-6, fresh_bytes_per_s=1.8e9, serial_per_s=6e8
)  # fmt: skip
