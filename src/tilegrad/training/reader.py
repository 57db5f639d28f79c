"""An image and its target, opened: boxes are read when they are needed, and whatever is wrong names the file."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FormatError, InputError, TilegradError
from ..images import ImageSource, batch
from ..images import open as open_image
from .config import TrainingConfig
from .samples import Labelled

PIECE = 1 << 24  # pixels that are looked at in one go


@dataclass(frozen=True)
class Example:
    """What a step takes. weight: of the loss, summed over what counts."""

    sample: Labelled
    image: ImageSource
    target: ImageSource | Tensor
    weight: float


class Reader:
    """Opens examples for `net`. All images are of one stored type, that of the first that can be opened, and have as
    many channels."""

    def __init__(
        self, config: TrainingConfig, classes: Mapping[str, int], weights: Sequence[float] | None, net: nn.Module
    ):
        self.config, self.classes = config, classes
        counts = (getattr(module, "in_channels", None) for module in net.modules())
        self.channels = next((count for count in counts if isinstance(count, int)), None)
        self.dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
        self.weights = dict(zip(classes, weights or [1.0] * len(classes), strict=True))
        self.stored: torch.dtype | None = None
        self._counts: dict[str, dict[int, int]] = {}

    def expect_as(self, samples: Sequence[Labelled]) -> None:
        """Of which kind the images are: the first that can be opened tells."""
        for sample in samples:
            try:
                self._image(sample)
                return
            except FormatError as error:
                last = error
        raise last

    def open(self, sample: Labelled, draw: random.Random | None = None) -> Example:
        """draw: how the image is flipped and turned, where the run asks for that."""
        image = self._image(sample)
        if self.config.task == "classification":
            index = list(self.classes).index(sample.target)
            target: Any = torch.tensor([index])
            weight = self.weights[sample.target]
        else:
            target = self._mask(sample, image)
            weight = self._weight(sample.target, target)
        if draw is None:
            return Example(sample, image, target, weight)
        image, *moved = self._moved(draw, image, *([target] if isinstance(target, ImageSource) else []))
        return Example(sample, image, moved[0] if moved else target, weight)

    def _image(self, sample: Labelled) -> ImageSource:
        wanted, path = self.config, str(sample.image)
        colour = {"scale": wanted.scale, "mean": wanted.mean, "std": wanted.std}
        found = _opened(path, level=wanted.level, dtype=self.dtype, **colour)
        if self.channels is not None and found.shape[1] != self.channels:
            raise FormatError(f"it has {found.shape[1]} channels, the model takes {self.channels}", where=path)
        if self.stored is not None and found.stored != self.stored:
            kinds = [str(kind).removeprefix("torch.") for kind in (found.stored, self.stored)]
            raise FormatError(f"its pixels are {kinds[0]}, those of other images {kinds[1]}", where=path)
        try:
            found.check_scaled()
        except InputError as error:
            raise InputError(error.what, where=path, hint="scale = 0.00392156862745098, which is 1/255") from None
        self.channels, self.stored = found.shape[1], found.stored
        return found

    def _mask(self, sample: Labelled, image: ImageSource) -> ImageSource:
        found = _opened(sample.target, level=self.config.level, dtype=torch.int64)
        if found.shape[1] != 1:
            what = f"a mask with {found.shape[1]} channels, not one"
            raise FormatError(what, where=sample.target, hint="one number for each pixel: the class")
        if found.shape[2:] != image.shape[2:]:
            sizes = ["x".join(map(str, each.shape[2:])) for each in (found, image)]
            raise FormatError(f"the mask is {sizes[0]}, its image {sizes[1]}", where=sample.target)
        return found

    def _weight(self, path: str, mask: ImageSource) -> float:
        counts = self._counts.get(path) or self._counts.setdefault(path, count_values(mask))
        names, ignored = {value: name for name, value in self.classes.items()}, self.config.ignore_index
        strange = sorted(value for value in counts if value not in names and value != ignored)
        if strange:
            hint = f"classes = {{other = {strange[0]}, …}} or ignore_index = {strange[0]}"
            raise FormatError(f"the mask has {strange[:5]}, and no class has that value", where=path, hint=hint)
        found = sum(self.weights[names[value]] * count for value, count in counts.items() if value != ignored)
        if not found:
            raise FormatError("no pixel of the mask counts", where=path)
        return found

    def _moved(self, draw: random.Random, *sources: ImageSource) -> list[ImageSource]:
        flips = [dim for dim in (-2, -1) if draw.random() < 0.5 and self.config.flips]
        turns = draw.randrange(4) if self.config.turns else 0
        return [source.flip(flips).rot90(turns) for source in sources]


def together(examples: Sequence[Example]) -> tuple[ImageSource, ImageSource | Tensor]:
    """A batch. All images have the size of the first."""
    first = examples[0].image.shape
    for example in examples:
        if example.image.shape != first:
            sizes = ["x".join(map(str, shape[2:])) for shape in (example.image.shape, first)]
            hint = "batch = 1, and accumulate = 8 for as large a step"
            raise FormatError(f"{sizes[0]} in a batch of {sizes[1]}", where=str(example.sample.image), hint=hint)
    images = batch([example.image for example in examples])
    targets = [example.target for example in examples]
    if isinstance(targets[0], Tensor):
        return images, torch.cat([target for target in targets if isinstance(target, Tensor)])
    return images, batch([target for target in targets if isinstance(target, ImageSource)])


def unreadable(example: Example) -> FormatError | None:
    """Read all of it, piece by piece: what is wrong with the file, if anything is."""
    try:
        for source in (example.image, example.target):
            if isinstance(source, ImageSource):
                for _ in _pieces(source):
                    pass
    except TilegradError as error:
        return _of_file(error, str(example.sample.image))
    return None


def count_values(mask: ImageSource) -> dict[int, int]:
    found: dict[int, int] = {}
    for piece in _pieces(mask):
        values, counts = torch.unique(piece, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            found[value] = found.get(value, 0) + count
    return found


def _pieces(source: ImageSource) -> Iterator[Tensor]:
    rows = max(1, PIECE // prod(n for n in (*source.shape[:-2], source.shape[-1])))
    for at in range(0, source.shape[-2], rows):
        yield source[..., at : at + rows, :].read()


def _opened(path: str, **options: Any) -> ImageSource:
    try:
        return open_image(path, **options)
    except TilegradError as error:
        raise _of_file(error, path) from error


def _of_file(error: TilegradError, path: str) -> FormatError:
    return FormatError(error.what, where=error.where or path, hint=error.hint)
