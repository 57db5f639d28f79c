"""The command `tilegrad`: one file per subcommand, imported when it is called.

Exit codes: 0 done, 1 the answer is no (a verification that differs), 2 bad input, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from .. import __version__
from ..errors import TilegradError
from ..units import is_decimal, units_like
from .console import set_quiet
from .parser import Parser, add_shared, parse

COMMANDS = {
    "tiles": "show a network's tiles: boxes, halos and redundancy",
    "plan": "plan a training step inside a memory budget",
    "verify": "compare a tiled training step with plain PyTorch",
    "train": "train a network on images on disk, inside a memory budget",
    "record": "where time and memory go: some steps of a network on random images, or a script of yours",
    "predict": "run a model on an image on disk, and write what it gives to a file",
    "analyze": "where time and memory go: profiles, traces and memory snapshots",
    "compare": "two profiles or two plans, side by side",
    "bench": "measure this machine",
    "completion": "a script that completes commands, options and networks in your shell",
}
SHARED = {"--quiet", "--debug"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # what a terminal cannot show is no error
    try:
        code = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a reader that has gone can be told from an error
        return code
    except TilegradError as error:
        if debug:
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    at = next((at for at, word in enumerate(words) if not word.startswith("-")), len(words))
    if {*words[:at]} <= SHARED:  # before the command or behind it
        words = [*words[at : at + 1], *words[:at], *words[at + 1 :]]
    args = parse(_parser(words[0] if words else ""), words)
    with _logging("error" if args.quiet else args.log_level), set_quiet(args.quiet), units_like(_decimal(args)):
        return int(args.run(args))


def _decimal(args: argparse.Namespace) -> bool:
    """Were bytes given in powers of 1000?"""
    given = getattr(args, "budget", None) or ()
    return any(map(is_decimal, [given] if isinstance(given, str) else given))


@contextmanager
def _logging(level: str) -> Iterator[None]:
    """Our log on standard error."""
    log, handler = logging.getLogger("tilegrad"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(level.upper())
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _parser(wanted: str) -> Parser:
    """The parser; of the subcommands only the wanted one is complete, for most need torch, which takes a second."""
    parser = Parser(
        prog="tilegrad",
        description="Train convolutional networks on images that do not fit: same gradients, memory you choose.",
    )
    parser.add_argument("--version", action="version", version=f"tilegrad {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    shared = Parser(add_help=False)
    add_shared(shared)
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, parents=[shared], help=what, description=f"{what[0].upper()}{what[1:]}.")
        if name == wanted:
            import_module(f".{name}", __package__).register(command)
            parser.command = command
    return parser
