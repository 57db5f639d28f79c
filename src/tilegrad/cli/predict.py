"""`tilegrad predict`: an image on disk through a model, inside a memory budget, to a file."""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import FormatError, InputError, ModelError
from ..files import near_file
from ..images import ImageSource
from ..images import open as open_image
from ..modules.predicted import predict
from ..modules.tiled import tile
from ..torch_private import pytree
from ..units import format_seconds
from .console import say
from .model import MODEL_HELP, load_model, tile_sizes

DTYPES = ("uint8", "int16", "int32", "int64", "float16", "float32", "float64")


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("image", metavar="IMAGE", help="zarr, TIFF, slide, .npy or NIfTI")
    parser.add_argument("--out", action="append", required=True, metavar="out.zarr", help=".zarr, .tif or .npy; repeat")
    parser.add_argument("--checkpoint", metavar="PATH", help="the model's weights: a state dict, or one under 'model'")
    parser.add_argument("--argmax", action="store_true", help="write the number of the largest channel")
    parser.add_argument("--dtype", choices=DTYPES, help="of what is written")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    add_image_arguments(parser)
    parser.add_argument("--budget", metavar="2GiB", help="memory for all of it")
    parser.add_argument("--tile", metavar="512", help="elements of the input per tile, instead of a budget")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: cpu)")
    parser.set_defaults(run=run)


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """How an image is to be read."""
    parser.add_argument("--level", type=int, default=0, help="of a pyramid, 0 is the largest (default: 0)")
    parser.add_argument("--axes", metavar="yxc", help="a letter for each axis, where the file does not say")
    parser.add_argument("--scale", type=_number, metavar="1/255", help="what pixels are multiplied by")
    parser.add_argument("--mean", type=_numbers, metavar="0.5,0.5,0.5", help="what is taken from them then")
    parser.add_argument("--std", type=_numbers, metavar="0.2,0.2,0.2", help="what they are divided by then")


def open_as_told(path: str, args: argparse.Namespace, dtype: torch.dtype) -> ImageSource:
    about = {"level": args.level, "axes": args.axes, "scale": args.scale, "mean": args.mean, "std": args.std}
    return open_image(path, dtype=dtype, **about)


def run(args: argparse.Namespace) -> int:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here", hint="--device cpu")
    if args.tile is not None and args.budget is not None:
        raise InputError("give --tile or --budget, not both", hint="--budget 2GiB")
    module = load_model(args.model)
    if args.checkpoint is not None:
        load_weights(module, args.checkpoint)
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point()}
    source = open_as_told(args.image, args, next(iter(kinds), torch.float32))
    tiled = tile(module.to(args.device), budget=args.budget, tile=tile_sizes(args.tile))
    begin = time.perf_counter()
    dtype = getattr(torch, args.dtype) if args.dtype else None
    out = args.out[0] if len(args.out) == 1 else args.out
    predict(tiled, source, out, argmax=args.argmax, dtype=dtype, overwrite=args.overwrite)
    say(f"{', '.join(args.out)}: {'x'.join(map(str, source.shape))} in {format_seconds(time.perf_counter() - begin)}")
    return 0


def load_weights(module: nn.Module, path: str) -> None:
    """A state dict, or what holds one under "model", as checkpoints do. Nothing in the file is run."""
    if not Path(path).is_file():
        raise FormatError("there is no such checkpoint", where=path, hint=near_file(path))
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, ValueError, OSError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FormatError(f"the checkpoint cannot be read: {reason}", where=path) from error
    found = found.get("model", found) if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping) or not all(isinstance(t, torch.Tensor) for t in pytree.tree_leaves(dict(found))):
        raise FormatError("the checkpoint holds no state dict", where=path, hint="torch.save(model.state_dict(), path)")
    try:
        module.load_state_dict(dict(found))
    except RuntimeError as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise ModelError(f"the checkpoint is for another model: {reason}", where=path) from error


def _number(text: str) -> float:
    return float(Fraction(text))


def _numbers(text: str) -> float | Sequence[float]:
    found = [_number(part) for part in text.split(",")]
    return found[0] if len(found) == 1 else found
