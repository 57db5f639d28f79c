"""What a run is told: a TOML file, flags of the same names, or both. Every key is a field of `TrainingConfig`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch

from ..errors import FormatError, InputError, one_of
from ..files import near_file
from ..recipe import Recipe, parse_recipe
from ..units import parse_budget

TASKS = ("classification", "segmentation")
METRICS = {"loss": min, "accuracy": max, "iou": max}  # which of two is better
AMP = ("bfloat16", "float16")


def _text(given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError("a text")
    return given


def _switch(given: Any) -> bool:
    if not isinstance(given, bool):
        raise ValueError("true or false")
    return given


def _count(least: int) -> Callable[[Any], int]:
    def parse(given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given < least:
            raise ValueError(f"a whole number from {least} on")
        return given

    return parse


def _any_of(*offers: str) -> Callable[[Any], str]:
    def parse(given: Any) -> str:
        if given not in offers:
            raise ValueError(one_of(str(given), offers))
        return str(given)

    return parse


def _budget(given: Any) -> str | int:
    parse_budget(given, device_bytes=1 << 40)  # whether it can be read; how large the device is, is asked later
    found: str | int = given
    return found


def _number(given: Any) -> float:
    return _numbers(given)[0] if not isinstance(given, list) else _numbers("one number")[0]


def _numbers(given: Any) -> tuple[float, ...]:
    given = given if isinstance(given, list | tuple) else [given]
    if not given or not all(isinstance(n, int | float) and not isinstance(n, bool) and isfinite(n) for n in given):
        raise ValueError("a number, or one for each channel")
    return tuple(map(float, given))


def _classes(given: Any) -> dict[str, int]:
    """Names in order, or for each the value it has in masks."""
    if isinstance(given, list) and given and len(set(map(str, given))) == len(given):
        return {str(name): index for index, name in enumerate(given)}
    values = list(given.values()) if isinstance(given, dict) else []
    if values and all(type(value) is int for value in values) and len(set(values)) == len(values):
        return dict(given)
    raise ValueError('names that differ, ["benign", "tumour"], or their values in masks, {benign = 0, tumour = 255}')


def _weights(given: Any) -> str | tuple[float, ...] | dict[str, float]:
    if given == "balanced":
        return "balanced"
    numbers = list(given.values()) if isinstance(given, dict) else given
    if isinstance(numbers, list) and numbers and all(type(n) in (int, float) and n >= 0 for n in numbers):
        return dict(given) if isinstance(given, dict) else tuple(map(float, given))
    raise ValueError('"balanced", a list of numbers, or {tumour = 3.0}')


def _validation(given: Any) -> str | float:
    if isinstance(given, float) and 0 < given < 1:
        return given
    if isinstance(given, str) and given.strip():
        return given
    raise ValueError("a CSV or folder, or a share of the training images such as 0.2")


def _mesh(given: Any) -> dict[str, int]:
    axes = {"batch", "d", "h", "w"}
    if isinstance(given, str):  # a flag: h=2,w=2
        given = {axis.strip(): parse_value(ranks) for axis, _, ranks in (w.partition("=") for w in given.split(","))}
    if (
        isinstance(given, dict)
        and given
        and set(given) <= axes
        and all(type(n) is int and n > 0 for n in given.values())
    ):
        return dict(given)
    raise ValueError("ranks along axes, such as {h = 2, w = 2}")


def _device(given: Any) -> str:
    try:
        kind = torch.device(given).type
    except (RuntimeError, TypeError):
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ValueError("cpu, cuda or cuda:1")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("cpu: there is no CUDA device here")
    return str(given)


def _key(parse: Callable[[Any], Any], what: str, default: Any = MISSING) -> Any:
    """A key of the file: how a value of it is understood, and what it means."""
    settings: dict[str, Any] = {"metadata": {"parse": parse, "help": what}}
    return field(**settings) if default is MISSING else field(**settings, default=default)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """All keys, with what they mean. Paths in a file are taken from its folder."""

    train: str = _key(_text, "CSV with the columns image and label or mask, or a folder of images")
    model: Recipe = _key(parse_recipe, 'factory and options: "resnet18(classes=2)", "package.module:function(…)"')
    task: str = _key(_any_of(*TASKS), "a label for each image, or a mask", "classification")
    validate: str | float | None = _key(_validation, "as train, or the share of it that is held back", None)
    out: str = _key(_text, "folder for checkpoints and metrics", "run")
    classes: dict[str, int] | None = _key(_classes, "names in order; for masks {name = value}", None)
    class_weights: Any = _key(_weights, "of the loss: numbers, {name = number}, or balanced", None)
    ignore_index: int = _key(_count(-(2**31)), "the value in masks that does not count", -100)
    epochs: int = _key(_count(1), "passes over the training images", 1)
    batch: int = _key(_count(1), "images in a call; they must have one size", 1)
    accumulate: int = _key(_count(1), "calls whose gradients make one step", 1)
    optimizer: Recipe = _key(parse_recipe, "one of torch.optim", Recipe("AdamW", {"lr": 1e-3}))
    schedule: Recipe | None = _key(parse_recipe, "one of torch.optim.lr_scheduler", None)
    schedule_each: str = _key(_any_of("step", "epoch"), "when the schedule moves on", "epoch")
    frozen_norms: bool = _key(_switch, "batch norms keep their running statistics", False)
    amp: str | None = _key(_any_of(*AMP), "autocast to this type", None)
    budget: str | int | None = _key(_budget, 'memory of a step, such as "2GiB"', None)
    halos: str = _key(_any_of("auto", "device", "host", "disk"), "where values wait for backward", "auto")
    device: str = _key(_device, "where to train", "cpu")
    mesh: dict[str, int] | None = _key(_mesh, "under torchrun: ranks along axes, {h = 2}", None)
    seed: int = _key(_count(0), "of weights, order and augmentation", 0)
    flips: bool = _key(_switch, "mirror images at random", False)
    turns: bool = _key(_switch, "turn images by quarters at random", False)
    level: int = _key(_count(0), "of a pyramid; 0 is the largest", 0)
    scale: float | None = _key(_number, "multiplies what is in the file: 0.00392157 for bytes", None)
    mean: tuple[float, ...] | None = _key(_numbers, "is subtracted then, for each channel", None)
    std: tuple[float, ...] | None = _key(_numbers, "divides then, for each channel", None)
    on_bad: str = _key(_any_of("stop", "skip"), "what an image that cannot be used does", "stop")
    checkpoint_steps: int = _key(_count(0), "steps between checkpoints; 0: after each epoch alone", 100)
    best: str = _key(_any_of(*METRICS), "what makes the best checkpoint", "loss")
    tensorboard: bool = _key(_switch, "metrics for TensorBoard too", False)

    def __post_init__(self) -> None:
        if self.task == "segmentation" and self.classes is None:
            raise _refused("classes", "masks need names for their classes", 'classes = ["background", "tumour"]')
        if self.task == "segmentation" and self.class_weights == "balanced":
            raise _refused("class_weights", "balanced weights are for labels", "class_weights = [1.0, 3.0]")
        if self.best == "iou" and self.task != "segmentation":
            raise _refused("best", "iou is for masks", 'best = "accuracy"')
        if self.mesh is not None and self.batch % self.mesh.get("batch", 1):
            raise _refused("batch", f"{self.batch} images are not cut evenly over the mesh", "a multiple")

    @property
    def ranks(self) -> int:
        return prod((self.mesh or {}).values())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# What has no effect in some company, and is refused there.
EFFECTS: tuple[tuple[str, str, Callable[[TrainingConfig], bool]], ...] = (
    ("schedule_each", "without a schedule", lambda config: config.schedule is not None),
    ("ignore_index", "on labels, only on masks", lambda config: config.task == "segmentation"),
    ("best", "without images to validate on", lambda config: config.validate is not None),
    ("halos", "without a budget", lambda config: config.budget is not None),
    ("halos", "on a mesh", lambda config: config.mesh is None),
)


def keys() -> tuple[Field[Any], ...]:
    return fields(TrainingConfig)


def load_config(path: Path) -> dict[str, Any]:
    """The keys of a file. Paths are taken from its folder."""
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        what = f"the configuration cannot be read: {error.strerror}"
        raise InputError(what, where=str(path), hint=near_file(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"this is not TOML: {error}", where=str(path)) from None
    for key in ("train", "validate", "out"):
        if isinstance(given.get(key), str):
            given[key] = str(path.parent / given[key])
    return given


def parse_value(text: str) -> Any:
    """What a flag says, in TOML's words; a word that is none of them is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def make_config(given: Mapping[str, Any], where: str) -> TrainingConfig:
    """Check every key and value. `where`: what errors call the place they came from."""
    known = {key.name: key for key in keys()}
    for name in given:
        if name not in known:
            raise InputError(f"there is no key '{name}'", where=where, hint=one_of(name, known))
    missing = [key.name for key in keys() if key.default is MISSING and key.name not in given]
    if missing:
        raise InputError(
            f"the key '{missing[0]}' is missing",
            where=where,
            hint=f"{missing[0]}: {known[missing[0]].metadata['help']}",
        )
    found = {}
    for name, value in given.items():
        try:
            found[name] = known[name].metadata["parse"](value)
        except ValueError as error:  # ours are ValueErrors too
            wanted = error.hint or error.what if isinstance(error, InputError) else str(error)
            raise InputError(f"'{value}' cannot be used", where=f"{where}, key '{name}'", hint=wanted) from None
    made = TrainingConfig(**found)
    for name, when, has_effect in EFFECTS:
        if getattr(made, name) != known[name].default and not has_effect(made):
            raise _refused(name, f"it has no effect {when}", f"no {name}")
    return made


def _refused(key: str, what: str, hint: str) -> InputError:
    return InputError(what, where=f"key '{key}'", hint=hint)


def make(recipe: Recipe, home: Any, kind: type, key: str, *given: Any) -> Any:
    """What the recipe names in `home` (a module of torch), a `kind` made from `given` and its options."""
    offers = [
        n for n, item in vars(home).items() if isinstance(item, type) and issubclass(item, kind) and item is not kind
    ]
    offers = [name for name in offers if not name.startswith("_")]
    if recipe.name not in offers:
        what = f"'{recipe.name}' is not in {home.__name__}"
        raise InputError(what, where=f"key '{key}'", hint=one_of(recipe.name, offers))
    try:
        return getattr(home, recipe.name)(*given, **recipe.options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{recipe} cannot be made: {error}", where=f"key '{key}'") from None
