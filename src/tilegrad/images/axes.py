"""Which axis of what is stored is which dimension of an image: (n, c, h, w) or (n, c, d, h, w)."""

from __future__ import annotations

from ..errors import FormatError, InputError
from ..region import Interval
from .opened import Opened
from .source import ImageSide

LETTERS = {"n": "n", "b": "n", "c": "c", "s": "c", "d": "d", "z": "d", "h": "h", "y": "h", "w": "w", "x": "w"}
FEW = 4  # channels of an array whose axes have no names


def sides_of(opened: Opened, given: str | None) -> tuple[ImageSide, ...]:
    """`given`: a letter for each axis, as the caller has them."""
    shape = opened.shape
    if 0 in shape:
        raise FormatError(f"it is empty: {shape}", where=opened.name)
    letters = (given or opened.reader.axes or _usual(shape, opened.name)).lower()
    if len(letters) != len(shape):
        raise InputError(f"the axes '{letters}' are not the {len(shape)} of {shape}", where=opened.name)
    found: dict[str, int] = {}
    for axis, letter in enumerate(letters):
        dim = LETTERS.get(letter)
        if dim is not None and dim in found and shape[axis] == 1:
            continue
        if dim is not None and dim in found and shape[found[dim]] > 1:
            dim = None
        if dim is not None:
            found[dim] = axis
        elif shape[axis] > 1:
            what = f"axis '{letter}' has {shape[axis]} entries, in '{letters}' of {shape}"
            raise InputError(what, where=opened.name, hint='axes="czyx": n, c, d or z, h or y, w or x, each once')
    if missing := [dim for dim in "hw" if dim not in found]:
        raise InputError(f"the axes '{letters}' have no {' and no '.join(missing)}", where=opened.name)
    flat = given is None and "d" in found and shape[found["d"]] == 1
    dims = "nchw" if "d" not in found or flat else "ncdhw"
    places = [(found.get(dim), shape[found[dim]] if dim in found else 1) for dim in dims]
    return tuple(ImageSide(axis, Interval(0, count)) for axis, count in places)


def _usual(shape: tuple[int, ...], name: str) -> str:
    """Of an array whose axes have no names."""
    if len(shape) == 3:
        last, first = shape[-1] <= FEW, shape[0] <= FEW
        if last != first:
            return "hwc" if last else "chw"
    elif len(shape) in (2, 4, 5):
        return {2: "hw", 4: "nchw", 5: "ncdhw"}[len(shape)]
    raise InputError(f"which axis is which in {shape}?", where=name, hint='axes="chw", "hwc", "dhw", …')
