"""A profile's operators and what they hand to each other, for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import InputError
from ..profile import Profile
from ..units import format_bytes, format_seconds, printable

LABEL = 80  # characters of a name


def format_dot(profile: Profile) -> str:
    """The text of a .dot file: a box for every operator, an arrow for every value that another reads."""
    if not any(op.reads or op.writes for op in profile.operators):
        what = "the profile does not tell which operator reads what: there is nothing to draw"
        raise InputError(what, where=profile.name, hint="a MegEngine profile, or tilegrad.record()")
    return "\n".join(_lines(profile)) + "\n"


def _lines(profile: Profile) -> Iterator[str]:
    maker = {name: at for at, op in enumerate(profile.operators) for name in op.writes}
    size = {block.name: block.bytes for block in profile.blocks}
    yield f"digraph {_quote(profile.name)} {{"
    yield '  node [shape=box, fontname="sans-serif"];'
    for at, op in enumerate(profile.operators):
        parts = [op.type, op.module or op.name, format_seconds(op.span.kernel_s) if op.span is not None else ""]
        label = "\\n".join(_escape(part[:LABEL]) for part in parts if part)
        yield f'  n{at} [label="{label}"];'
    for at, op in enumerate(profile.operators):
        for name in dict.fromkeys(op.reads):
            if name in maker and maker[name] != at:
                label = f" [label={_quote(format_bytes(size[name]))}]" if name in size else ""
                yield f"  n{maker[name]} -> n{at}{label};"
    yield "}"


def _escape(text: str) -> str:
    """Text inside double quotes; Graphviz ends lines at control characters and reads backslashes."""
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _quote(text: str) -> str:
    return f'"{_escape(text)}"'
