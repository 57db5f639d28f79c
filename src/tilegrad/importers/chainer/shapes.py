"""Shapes from bytes: a dump says how large every tensor is, and the functions say how their dimensions hang together.

Every dimension is an unknown. A tensor's dimensions multiply to its size; functions make dimensions equal, add them
(concatenation), or pass them through a window (convolution, pooling). What follows is filled in until nothing changes;
a contradiction means that the file is wrong.

What is still open then is tried (`chainer_trials.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

Shape = tuple[int, ...]


class Contradiction(Exception):
    """No sizes satisfy the rules; `tensor` is where it shows."""

    def __init__(self, tensor: int, why: str):
        self.tensor, self.why = tensor, why
        super().__init__(why)


class Rule(Protocol):
    """A relation between dimensions. `apply` fills in what follows from the known ones."""

    @property
    def dims(self) -> tuple[int, ...]: ...

    @property
    def tensor(self) -> int: ...

    def apply(self, sizes: Sizes) -> None: ...


class Sizes:
    """The unknowns: dimensions by number, those that are equal joined, and the rules that watch them."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.known: list[int | None] = []
        self.watching: list[list[int]] = []  # by dimension: rules
        self.rules: list[Rule] = []
        self.queue: deque[int] = deque()
        self.queued: set[int] = set()
        self.trail: list[int] = []  # dimensions in the order in which they became known
        self.steps = 0

    def new(self, size: int | None = None) -> int:
        self.parent.append(len(self.parent))
        self.known.append(size)
        self.watching.append([])
        return len(self.parent) - 1

    def root(self, dim: int) -> int:
        while self.parent[dim] != dim:
            self.parent[dim] = dim = self.parent[self.parent[dim]]
        return dim

    def get(self, dim: int) -> int | None:
        return self.known[self.root(dim)]

    def put(self, dim: int, size: int, tensor: int) -> None:
        """`dim` is `size`: remember it, or find that it cannot be."""
        dim = self.root(dim)
        found = self.known[dim]
        if found is None and size >= 1:
            self.known[dim] = size
            self.trail.append(dim)
            for at in self.watching[dim]:
                self._push(at)
        elif found != size:
            rest = "there is nothing left" if size < 1 else f"and {found} by another"
            raise Contradiction(tensor, f"a dimension would be {size} by one function, {rest}")

    def join(self, a: int, b: int, tensor: int) -> None:
        """`a` and `b` are equal. To be said before `settle`: it wakes no rule, all still wait for their first turn."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return
        if (size := self.known[b]) is not None:
            self.put(a, size, tensor)
        if len(self.watching[a]) < len(self.watching[b]):
            self.known[b] = self.known[a]
            a, b = b, a
        self.parent[b] = a
        self.watching[a] += self.watching[b]

    def post(self, rule: Rule) -> None:
        self.rules.append(rule)
        for dim in rule.dims:
            self.watching[self.root(dim)].append(len(self.rules) - 1)
        self._push(len(self.rules) - 1)

    def settle(self) -> None:
        """Apply rules until nothing changes."""
        while self.queue:
            at = self.queue.popleft()
            self.queued.discard(at)
            self.steps += 1
            self.rules[at].apply(self)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Whatever becomes known inside is forgotten again."""
        mark = len(self.trail)
        try:
            yield
        finally:
            self.queue.clear()
            self.queued.clear()
            while len(self.trail) > mark:
                self.known[self.trail.pop()] = None

    def _push(self, at: int) -> None:
        if at not in self.queued:
            self.queued.add(at)
            self.queue.append(at)


@dataclass(frozen=True, slots=True)
class Product:
    """The dimensions of a tensor multiply to its number of elements."""

    dims: tuple[int, ...]
    total: int
    tensor: int

    def rest(self, sizes: Sizes) -> tuple[int, Counter[int]]:
        """What the open dimensions multiply to, and how often each of them is there."""
        known, open_ = 1, Counter[int]()
        for dim in self.dims:
            if (size := sizes.get(dim)) is not None:
                known *= size
            else:
                open_[sizes.root(dim)] += 1
        if self.total % known:
            raise Contradiction(self.tensor, f"{self.total} elements do not divide by {known}, its known dimensions")
        return self.total // known, open_

    def apply(self, sizes: Sizes) -> None:
        rest, open_ = self.rest(sizes)
        if not open_ and rest != 1:
            raise Contradiction(self.tensor, f"its dimensions make {self.total // rest} elements, not {self.total}")
        if len(open_) == 1:
            ((dim, times),) = open_.items()
            if (size := exact_root(rest, times)) is None:
                raise Contradiction(self.tensor, f"{rest} elements are no square")
            sizes.put(dim, size, self.tensor)


@dataclass(frozen=True, slots=True)
class SumOfSizes:
    """`total` is the sum of `parts`, each taken `times` times."""

    total: int
    parts: tuple[int, ...]
    tensor: int
    times: int = 1

    @property
    def dims(self) -> tuple[int, ...]:
        return (self.total, *self.parts)

    def apply(self, sizes: Sizes) -> None:
        weights = Counter[int]({})
        weights[sizes.root(self.total)] -= 1
        for part in self.parts:
            weights[sizes.root(part)] += self.times
        sums = [(weight, size) for dim, weight in weights.items() if (size := sizes.get(dim)) is not None]
        missing = -sum(weight * size for weight, size in sums)
        open_ = [(dim, weight) for dim, weight in weights.items() if weight and sizes.get(dim) is None]
        if not open_ and missing:
            raise Contradiction(self.tensor, "its parts do not add up")
        if len(open_) == 1:
            dim, weight = open_[0]
            if missing % weight:
                raise Contradiction(self.tensor, f"a dimension does not divide by {weight}")
            sizes.put(dim, missing // weight, self.tensor)


@dataclass(frozen=True, slots=True)
class Sliding:
    """A window with `kernel` taps slides over `large` and gives `small`; `cover` keeps a last, incomplete one."""

    large: int
    small: int
    kernel: int
    stride: int
    pad: int
    dilation: int
    cover: bool
    tensor: int

    @property
    def dims(self) -> tuple[int, ...]:
        return (self.large, self.small, self.kernel)

    def count(self, large: int, kernel: int) -> int:
        room = large + 2 * self.pad - self.dilation * (kernel - 1) - 1
        if self.cover:
            room += self.stride - 1
        return room // self.stride + 1 if room >= 0 else 0

    def larges(self, small: int, kernel: int) -> range:
        """All sizes that give `small`."""
        first = (small - 1) * self.stride - 2 * self.pad + self.dilation * (kernel - 1) + 1
        first -= self.stride - 1 if self.cover else 0
        return range(max(1, first), first + self.stride)

    def apply(self, sizes: Sizes) -> None:
        large, small, kernel = map(sizes.get, self.dims)
        if large is not None and kernel is not None:
            sizes.put(self.small, self.count(large, kernel), self.tensor)
        elif small is not None and kernel is not None:
            self._only(sizes, self.large, self.larges(small, kernel))
        elif large is not None and small is not None:
            spare = large + 2 * self.pad - 1 - (small - 1) * self.stride + (self.stride - 1 if self.cover else 0)
            # dilation * (kernel - 1) lies within one stride below what is to spare
            first = max(0, -((self.stride - 1 - spare) // self.dilation))
            self._only(sizes, self.kernel, range(first + 1, spare // self.dilation + 2))

    def _only(self, sizes: Sizes, dim: int, choice: range) -> None:
        if not choice:
            raise Contradiction(self.tensor, "no window makes this size")
        if len(choice) == 1:
            sizes.put(dim, choice[0], self.tensor)


@dataclass(frozen=True, slots=True)
class Cut:
    """`piece` is what `[start:stop]` leaves of `whole`."""

    whole: int
    piece: int
    start: int | None
    stop: int | None
    tensor: int

    @property
    def dims(self) -> tuple[int, ...]:
        return (self.whole, self.piece)

    def count(self, whole: int) -> int:
        start, stop, _ = slice(self.start, self.stop).indices(whole)
        return stop - start

    def apply(self, sizes: Sizes) -> None:
        whole, piece = sizes.get(self.whole), sizes.get(self.piece)
        if whole is not None:
            sizes.put(self.piece, self.count(whole), self.tensor)
        elif piece is not None:
            start, stop = self.start or 0, self.stop
            # Cut from the front, and behind from the back: the rest is the piece, unless an end lies outside.
            found = start + piece - stop if stop is not None and stop < 0 <= start else start + piece
            ends = stop is None or stop < 0 or piece < stop - start
            if start >= 0 and ends and self.count(found) == piece:
                sizes.put(self.whole, found, self.tensor)


def exact_root(number: int, times: int) -> int | None:
    """The whole number whose power is `number`, if there is one."""
    low, high = 1, 1 << (number.bit_length() // times + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**times < number else (low, middle)
    return low if low**times == number else None
