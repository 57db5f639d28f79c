"""Which images there are, and what is to be learned of each: a CSV, or a folder.

A CSV has the columns `image` and `label` or `mask`, with paths from its own folder. A folder has one folder of images
for each label, or `images` and `masks` with the same names. A zarr is a folder too, and an image.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import FormatError, InputError

TARGETS = {"classification": "label", "segmentation": "mask"}
IMAGES, MASKS = "images", "masks"


@dataclass(frozen=True)
class Labelled:
    """An image, its label or the path of its mask, and where that was said."""

    image: Path
    target: str
    where: str


def read_samples(place: str, task: str) -> list[Labelled]:
    path = Path(place)
    if not path.exists():
        raise InputError(f"there is no file or folder '{path}'", hint="a CSV with image and label, or a folder")
    if path.is_dir():
        found = list(_of_masks(path) if task == "segmentation" else _of_labels(path))
    else:
        found = list(_of_csv(path, TARGETS[task]))
    if not found:
        raise InputError("there are no images", where=str(path))
    return found


def _of_csv(path: Path, target: str) -> Iterator[Labelled]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            missing = {"image", target} - set(rows.fieldnames or ())
            if missing:
                hint = f"a first line 'image,{target}'; found '{','.join(rows.fieldnames or ())}'"
                raise FormatError(f"there is no column '{min(missing)}'", where=f"{path}:1", hint=hint)
            for row in rows:
                image, said = (row["image"] or "").strip(), (row[target] or "").strip()
                where = f"{path}:{rows.line_num}"
                if not image or not said:
                    raise FormatError(f"the {'image' if not image else target} is missing", where=where)
                yield Labelled(path.parent / image, str(path.parent / said) if target == "mask" else said, where)
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"this is not a CSV: {error}", where=str(path)) from None


def _of_labels(folder: Path) -> Iterator[Labelled]:
    labels = [place for place in _inside(folder) if place.is_dir() and not _is_image(place)]
    if not labels:
        raise InputError(
            "there are no folders with the names of labels", where=str(folder), hint=f"{folder}/tumour/1.tif"
        )
    for place in labels:
        for image in _inside(place):
            yield Labelled(image, place.name, str(image))


def _of_masks(folder: Path) -> Iterator[Labelled]:
    for name in (IMAGES, MASKS):
        if not (folder / name).is_dir():
            raise InputError(f"there is no folder '{name}'", where=str(folder), hint=f"{folder}/{IMAGES} and /{MASKS}")
    masks = {_stem(mask): mask for mask in _inside(folder / MASKS)}
    for image in _inside(folder / IMAGES):
        if _stem(image) not in masks:
            raise InputError(
                "there is no mask of this name", where=str(image), hint=f"{folder / MASKS / _stem(image)}.*"
            )
        yield Labelled(image, str(masks[_stem(image)]), str(image))


def _inside(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if not place.name.startswith("."))


def _is_image(folder: Path) -> bool:
    return any((folder / name).exists() for name in (".zarray", ".zgroup", "zarr.json"))


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def class_names(samples: Sequence[Labelled]) -> dict[str, int]:
    """All labels in order, of numbers or of letters, with their indices."""
    labels = {sample.target for sample in samples}
    by_number = all(label.lstrip("-").isdigit() for label in labels)
    return {label: index for index, label in enumerate(sorted(labels, key=int if by_number else None))}


def check_labels(samples: Sequence[Labelled], classes: dict[str, int]) -> None:
    for sample in samples:
        if sample.target not in classes:
            raise InputError(
                f"'{sample.target}' is not a class", where=sample.where, hint=f"one of {', '.join(classes)}"
            )


def split(samples: Sequence[Labelled], share: float, seed: int) -> tuple[list[Labelled], list[Labelled]]:
    """Some for training, a share held back."""
    back = round(share * len(samples))
    if not 0 < back < len(samples):
        raise InputError(
            f"{share} of {len(samples)} images is {back}",
            where="key 'validate'",
            hint="another share, or a CSV of its own",
        )
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed)).tolist()
    return [samples[i] for i in sorted(order[back:])], [samples[i] for i in sorted(order[:back])]


def fingerprint(samples: Sequence[Labelled]) -> str:
    """The same for the same images with the same targets in the same order."""
    text = "\n".join(f"{sample.image.name}\t{Path(sample.target).name}" for sample in samples)
    return hashlib.sha256(text.encode()).hexdigest()
