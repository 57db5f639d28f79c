"""`tilegrad train`: a network learns from images on disk, as a TOML file or flags of the same names say."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import InputError
from ..training import Stopped, Trainer, TrainingConfig, keys, load_config, make_config, parse_value
from ..training.checkpoint import LAST, seed_all
from ..units import is_decimal, units_like
from .console import say
from .model import load_model

FORMER = ("input", "tile", "steps", "lr", "json", "html")  # of what `tilegrad record` is now


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", metavar="CONFIG.toml", help="the keys below; a flag goes before the file")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint, as if never stopped")
    for key in keys():
        parser.add_argument(f"--{key.name.replace('_', '-')}", metavar="…", help=key.metadata["help"])
    for name in FORMER:
        parser.add_argument(f"--{name}", nargs="*", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    file = Path(args.config) if args.config else None
    if any(getattr(args, name) is not None for name in FORMER) or (
        file and file.suffix != ".toml" and not file.is_file()
    ):
        what = f"steps on random images are another command now: tilegrad record {args.config or 'MODEL'} …"
        raise InputError(what)
    given = load_config(file) if file else {}
    flags = {key.name: getattr(args, key.name) for key in keys() if getattr(args, key.name) is not None}
    config = make_config(given | {name: parse_value(text) for name, text in flags.items()}, args.config or "the flags")
    with units_like(is_decimal(config.budget)):  # which the file may have given
        return _train(config, resume=args.resume)


def _train(config: TrainingConfig, *, resume: bool) -> int:
    seed_all(config.seed)
    trainer = Trainer(config, load_model(str(config.model), train=True), say)
    try:
        at = trainer.run(resume=resume)
    except Stopped as stopped:
        where = trainer.folder / LAST
        print(f"interrupted; step {trainer.at.step} is in {where}; go on with --resume", file=sys.stderr)
        return 128 + stopped.signal
    best = "" if at.best is None else f"; best {config.best} {at.best:.4g}"
    trainer.say(f"{at.step} steps; {trainer.folder / LAST}{best}")
    return 0
