"""`tilegrad record SCRIPT.py`: the user's own program, run as it is, and where its time and memory went."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..analysis import Analysis, analyze
from ..analysis.groups import group_operators, operator_seconds
from ..errors import InputError, ModelError
from ..files import near_file
from ..recording.record import record
from ..report.html import save_page
from ..report.profile_page import profile_page
from ..report.profile_tables import print_groups, print_memory, print_operators, print_summary
from .console import make_console
from .model import place_of, reason_of

TOP = 10  # rows of the table of operators


def run_script(args: argparse.Namespace) -> int:
    path = Path(args.model)
    if not path.is_file():
        raise ModelError(f"there is no script '{path}'", hint=near_file(path) or "file.py:factory, or a network's name")
    with record(path.name) as recorder, _as_main(path, args.script):
        code = _run(path)
    profile = recorder.profile
    if not profile.operators:
        raise InputError(
            "the script ran no operator of torch", where=str(path), hint="a script that trains or predicts"
        )
    analysis = analyze(profile)
    if args.html:
        save_page(profile_page(analysis), args.html)
    if args.json:
        print(json.dumps(analysis.to_json(), allow_nan=False))
    else:
        _print(analysis)
    return code


@contextmanager
def _as_main(path: Path, words: list[str]) -> Iterator[None]:
    """What a program finds when it is started: its own arguments, its own folder first among the places of modules."""
    argv, places = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = [str(path), *words], [str(path.parent.resolve()), *places]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, places


def _run(path: Path) -> int:
    """Its exit code."""
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:  # the user's own code
        raise ModelError(f"'{path}' failed: {reason_of(error)}", where=place_of(error), hint="--debug") from error
    return 0


def _print(analysis: Analysis) -> None:
    console = make_console()
    print_summary(analysis, console)
    groups = group_operators(analysis.operators, "type", analysis.machine)
    print_groups(analysis, groups, "type", "kernel", console)
    taken = [operator_seconds(op, "kernel") for op in analysis.operators]
    slowest = sorted(range(len(taken)), key=lambda at: -taken[at])[:TOP]
    print_operators(analysis, slowest, f"top {len(slowest)} by time", "kernel", console)
    for device in analysis.memory:
        print_memory(analysis, device, console)
