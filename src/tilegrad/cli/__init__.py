"""The command `tilegrad`: one file per subcommand, imported when it is called.

Exit codes: 0 done, 1 the answer is no (a verification that differs), 2 bad input, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from .. import __version__
from ..errors import TilegradError

COMMANDS = {
    "tiles": "show a network's tiles: boxes, halos and redundancy",
    "plan": "plan a training step inside a memory budget",
    "verify": "compare a tiled training step with plain PyTorch",
    "train": "train a network on images on disk, inside a memory budget",
    "record": "some steps on random images inside a memory budget: where time and memory go",
    "predict": "run a model on an image on disk, and write what it gives to a file",
    "analyze": "where time and memory go: profiles, traces and memory snapshots",
    "compare": "two profiles or two plans, side by side",
    "bench": "measure this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
    try:
        return int(args.run(args))
    except TilegradError as error:
        if args.debug:
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 0


def _parser(wanted: str) -> argparse.ArgumentParser:
    """The parser; of the subcommands only the wanted one is complete, for most need torch, which takes a second."""
    parser = argparse.ArgumentParser(
        prog="tilegrad",
        description="Train convolutional networks on images that do not fit: same gradients, memory you choose.",
    )
    parser.add_argument("--version", action="version", version=f"tilegrad {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--debug", action="store_true", help="show the Python traceback of an error")
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, parents=[shared], help=what, description=f"{what[0].upper()}{what[1:]}.")
        if name == wanted:
            import_module(f".{name}", __package__).register(command)
    return parser
