"""A mesh of ranks, by the axes of the graph it cuts: "n" (batch), "d", "h", "w". Integers only: no process group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ..errors import GridError, InputError
from ..region import cuts_of_count

NAMES = {"batch": "n", "n": "n", "d": "d", "h": "h", "w": "w"}  # what a mesh may call its axes
Coords = tuple[int, ...]  # a place in the mesh, one index per axis


@dataclass(frozen=True)
class Mesh:
    """`axes` and `sizes` are parallel; `ranks` are those of the process group, in raster order of coordinates.

    `shares`: by axis, where it is cut, as (cuts, length) of what was cut by hand; other axes are cut evenly.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    shares: Mapping[str, tuple[tuple[int, ...], int]] | None = None

    def __post_init__(self) -> None:
        unknown = [axis for axis in self.axes if axis not in NAMES.values()]
        if unknown or len(set(self.axes)) != len(self.axes) or len(self.axes) != len(self.sizes):
            raise InputError(
                f"a mesh cannot have the axes {', '.join(self.axes)}", hint="among batch, d, h and w, once"
            )

    def size(self, axis: str) -> int:
        return self.sizes[self.axes.index(axis)]

    @property
    def count(self) -> int:
        return len(self.ranks)

    def coords(self) -> Iterator[Coords]:
        return product(*map(range, self.sizes))

    def rank(self, coords: Coords) -> int:
        at = 0
        for size, index in zip(self.sizes, coords, strict=True):
            at = at * size + index
        return self.ranks[at]

    def coords_of(self, rank: int) -> Coords:
        at, found = self.ranks.index(rank), list[int]()
        for size in reversed(self.sizes):
            at, index = divmod(at, size)
            found.append(index)
        return tuple(reversed(found))

    def index(self, coords: Coords, axis: str) -> int:
        return coords[self.axes.index(axis)]

    def alike(self, coords: Coords, axes: frozenset[str]) -> list[Coords]:
        """All places that differ from this one along `axes` only, itself among them, in order."""
        return [c for c in self.coords() if all(c[k] == coords[k] or a in axes for k, a in enumerate(self.axes))]

    def cuts(self, axis: str, length: int) -> tuple[int, ...]:
        """Where a value of that length is cut along an axis."""
        given = (self.shares or {}).get(axis)
        if given is None:
            return cuts_of_count(length, self.size(axis))
        marks, whole = given
        return tuple(length * mark // whole for mark in marks)


def name_axes(names: Sequence[str] | None) -> tuple[str, ...]:
    """The graph's names for a mesh's axes."""
    if not names:
        raise InputError(
            "the mesh has no named axes", hint='init_device_mesh("cpu", (2, 2), mesh_dim_names=("h", "w"))'
        )
    known = ", ".join(f'"{name}"' for name in names if name in NAMES)
    for name in names:
        if name not in NAMES:
            of_it = f"; of this mesh mesh[{known}]" if known else ""
            raise InputError(f"a mesh axis called '{name}'", hint=f"among batch, d, h and w{of_it}")
    return tuple(NAMES[name] for name in names)


def check_fits(mesh: Mesh, axis: str, length: int, what: str) -> None:
    """A mesh must not be larger than the image it cuts."""
    if mesh.size(axis) > length:
        raise GridError(
            f"{mesh.size(axis)} ranks along {axis}, but {what} has only {length} elements there",
            hint=f"at most {length} ranks along {axis}",
        )
