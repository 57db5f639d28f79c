"""The command `tilegrad`: one file per subcommand.

Exit codes: 0 done, 1 the answer is no (a verification that differs), 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import TilegradError
from . import bench, plan, tiles, verify

COMMANDS = (tiles, plan, verify, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = _parser().parse_args(argv)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tilegrad",
        description="Train convolutional networks on images that do not fit: same gradients, memory you choose.",
    )
    parser.add_argument("--version", action="version", version=f"tilegrad {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--debug", action="store_true", help="show the Python traceback of an error")
    for command in COMMANDS:
        command.register(commands, shared)
    return parser
