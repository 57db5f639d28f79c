"""MODEL on the command line: a reference network, `file.py:factory` or `package.module:factory`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ModelError, one_of
from ..extras import install_hint
from ..files import near_file
from ..models import NETWORKS
from ..recipe import parse_recipe
from ..units import parse_sizes

MODEL_HELP = f"file.py:factory, package.module:factory, or one of: {', '.join(NETWORKS)}"


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_input(parser)
    parser.add_argument("--train", action="store_true", help="train mode (default: eval)")


def add_input(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    what = "shape of an input; repeat for several"
    parser.add_argument("--input", action="append", required=required, metavar="1x3x512x512", help=what)


def input_shapes(args: argparse.Namespace) -> list[tuple[int, ...]]:
    return [parse_sizes(text, "shape") for text in args.input]


def tile_sizes(text: str | None) -> int | tuple[int, ...] | None:
    """`128`, or `128x256`."""
    sizes = parse_sizes(text, "tile size") if text is not None else None
    return sizes[0] if sizes is not None and len(sizes) == 1 else sizes


def load_model(text: str, *, train: bool = False, weights: bool = True) -> nn.Module:
    """Build the model. Without `weights` it is made on the meta device, so that its size costs nothing."""
    recipe = parse_recipe(text)
    factory = partial(_find_factory(recipe.name), **recipe.options)
    try:
        module = factory() if weights else _without_weights(factory)
    except Exception as error:  # the user's own code
        raise ModelError(f"the factory of '{text}' failed: {reason_of(error)}", where=place_of(error)) from error
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"'{text}' gave a {type(module).__name__}, not a torch.nn.Module",
            hint="name a function without arguments that returns the model",
        )
    return module.train(train)


def model_hint(text: str) -> str:
    """What to try instead of a name that is no network."""
    near = one_of(text, NETWORKS)
    return near if near.startswith("did") else f"file.py:factory, package.module:factory, or {near}"


def _without_weights(factory: Callable[[], Any]) -> Any:
    try:
        with torch.device("meta"):
            return factory()
    except Exception:  # a factory that computes with its weights: give it real ones
        return factory()


def _find_factory(text: str) -> Callable[[], Any]:
    if text in NETWORKS:
        return NETWORKS[text]
    place, colon, name = text.rpartition(":")
    if not colon:
        raise ModelError(f"'{text}' is not a model", hint=model_hint(text))
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    factory = getattr(module, name, None)
    if factory is None:
        offers = [key for key, item in vars(module).items() if inspect.isroutine(item) or inspect.isclass(item)]
        hint = one_of(name, offers) if offers else "a file with a function that returns the model"
        raise ModelError(f"'{place}' has no '{name}'", hint=hint)
    if not callable(factory):
        raise ModelError(f"'{text}' cannot be called", hint="name a function that returns the model")
    return factory


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"there is no file '{path}'", hint=near_file(path))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))  # so that the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _not_imported(f"'{path}'", error) from error
    return module


def _import_module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _not_imported(f"module '{name}'", error) from error


def _not_imported(what: str, error: BaseException) -> ModelError:
    hint = install_hint(error) if isinstance(error, ImportError) else None
    return ModelError(f"{what} does not import: {reason_of(error)}", where=place_of(error), hint=hint)


def reason_of(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


def place_of(error: BaseException) -> str | None:
    """The innermost line of code that is not ours, torch's or the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<frozen")
    theirs = [f for f in frames if not f.filename.startswith(own)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}: {theirs[-1].line}" if theirs else None
