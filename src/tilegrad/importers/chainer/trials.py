"""What does not follow is tried: kernels, what a stride was given, square images, batches.

A trial counts only if it is the only one that contradicts nothing. Where all possible sizes are tried and none fits,
the file is wrong; where only the likely ones are (square images, usual batches), nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import gcd, isqrt

from .shapes import Contradiction, Product, Sizes, Sliding

_LARGEST_BATCH, _LARGEST_STRIDE, _LARGEST_SIDE = 256, 64, 32  # of kernels; beyond, nothing is tried
_MOST_TAPS = 1 << 14  # channels and taps of a kernel up to which all its factors are tried
_MOST_STEPS = 200_000  # rules that may run while trying: seconds, whatever the file

Trial = tuple[int, Sequence[Mapping[int, int]]]  # a tensor, and the sizes that some dimensions may have


class Trials:
    """First what must be one of a few sizes, then what is only likely. Tried are those of `data`, tensors with a batch,
    and of `kernels`."""

    def __init__(self, sizes: Sizes, data: Sequence[Product], kernels: Sequence[Product]):
        self.sizes, self.data, self.kernels = sizes, data, kernels
        self.guessed = False  # from the first guess on, it may be the guess that nothing fits to

    def solve(self) -> None:
        """Find the sizes that follow from the rules, or are the only ones that fit. `Contradiction` if there can be
        none."""
        self.sizes.settle()
        self.sizes.steps = 0
        while self.sizes.steps < _MOST_STEPS and self._sweep():
            pass

    def _sweep(self) -> bool:
        """Whether anything was found."""
        self.sizes.steps += (len(self.sizes.rules) + len(self.data) + len(self.kernels)) // 8
        if any([self._keep(self._factors()), self._keep(self._before_strides())]):
            return True
        self.guessed = True
        if self._oblong():
            return self._keep(self._square_kernels())
        return any(self._keep(trials) for trials in (self._square_kernels(), self._square_images(), self._batches()))

    def _oblong(self) -> bool:
        """Is an image known not to be square?"""
        sides = ([self.sizes.get(dim) for dim in rule.dims[2:]] for rule in self.data if len(rule.dims) == 4)
        return any(h != w for h, w in sides if h and w)

    def _keep(self, trials: Iterable[Trial]) -> bool:
        """Of each trial keep what fits, if it is the only one. Whether there was any."""
        found = False
        for tensor, choice in trials:
            if self.sizes.steps >= _MOST_STEPS:
                break
            fitting = list(islice((sizes for sizes in choice if self._fits(sizes)), 2))  # two are too many already
            if not fitting and not self.guessed:
                raise Contradiction(tensor, "no size of its open dimensions agrees with the functions around it")
            if len(fitting) == 1:
                self._put(fitting[0])
                found = True
        return found

    def _put(self, sizes: Mapping[int, int]) -> None:
        for dim, size in sizes.items():
            self.sizes.put(dim, size, -1)
        self.sizes.settle()

    def _fits(self, sizes: Mapping[int, int]) -> bool:
        try:
            with self.sizes.trial():
                self._put(sizes)
        except Contradiction:
            return False
        return True

    def _factors(self) -> Iterator[Trial]:
        """Kernels of which only the sides are open, and maybe the channels of one end: all their factors."""
        for rule in self.kernels:
            rest, open_ = rule.rest(self.sizes)
            *_, h, w = rule.dims
            if {h, w} <= open_.keys() and len(open_) <= 3 and rest <= _MOST_TAPS:
                pairs = [(a, b) for a in _divisors(rest) for b in _divisors(rest // a)]
                self.sizes.steps += len(pairs)
                yield rule.tensor, [{h: a, w: b} for a, b in pairs if a * b == rest or len(open_) == 3]

    def _before_strides(self) -> Iterator[Trial]:
        """What a window with a stride was given, where it is known what it made."""
        for rule in self.sizes.rules:
            if isinstance(rule, Sliding) and self.sizes.get(rule.large) is None and rule.stride <= _LARGEST_STRIDE:
                small, kernel = self.sizes.get(rule.small), self.sizes.get(rule.kernel)
                if small is not None and kernel is not None:
                    yield rule.tensor, [{rule.large: n} for n in rule.larges(small, kernel)]

    def _square_kernels(self) -> Iterator[Trial]:
        """If channels are open too, an image must become square with it."""
        for rule in self.kernels:
            rest, open_ = rule.rest(self.sizes)
            *_, h, w = rule.dims
            if open_.keys() == {h, w} and (side := isqrt(rest)) ** 2 == rest:
                yield rule.tensor, [{h: side, w: side}]
            elif {h, w} <= open_.keys() and len(open_) == 3:
                sides = [n for n in range(1, _LARGEST_SIDE + 1) if rest % n**2 == 0]
                yield rule.tensor, [sizes for n in sides if self._squares(sizes := {h: n, w: n}, self.data) > 0]

    def _square_images(self) -> Iterator[Trial]:
        for rule in self.data:
            if (area := self._area(rule)) is not None and (side := isqrt(area)) ** 2 == area:
                yield rule.tensor, [{rule.dims[2]: side, rule.dims[3]: side}]

    def _area(self, rule: Product) -> int | None:
        """Height times width, if that is all that is open."""
        rest, open_ = rule.rest(self.sizes)
        roots = [self.sizes.root(dim) for dim in rule.dims[2:]]
        return rest if len(roots) == 2 and open_.keys() == set(roots) else None

    def _batches(self) -> Iterator[Trial]:
        """Batches that make all images square. One that is known from elsewhere in the network goes first."""
        known = {size for rule in self.data if (size := self.sizes.get(rule.dims[0])) is not None}
        groups: dict[int, list[Product]] = {}
        for rule in self.data:
            if self.sizes.get(rule.dims[0]) is None:
                groups.setdefault(self.sizes.root(rule.dims[0]), []).append(rule)
        for dim, rules in groups.items():
            common = gcd(*(rule.rest(self.sizes)[0] for rule in rules))
            self.sizes.steps += _LARGEST_BATCH // 8
            choice = [n for n in range(1, _LARGEST_BATCH + 1) if common % n == 0]
            fitting = {n for n in choice if self._squares({dim: n}, rules) > 0}
            if len(fitting & known) == 1:
                yield rules[0].tensor, [{dim: n} for n in fitting & known]
            elif len({rule.rest(self.sizes)[0] for rule in rules}) > 1:  # one image is no evidence
                yield rules[0].tensor, [{dim: n} for n in sorted(fitting)]

    def _squares(self, sizes: Mapping[int, int], rules: Sequence[Product]) -> int:
        """How many images become known and square with these sizes; -1 if one cannot be square, or nothing fits."""
        self.sizes.steps += len(rules) // 8
        if self.sizes.steps >= _MOST_STEPS:
            return -1  # then no trial counts any more
        found = 0
        try:
            with self.sizes.trial():
                self._put(sizes)
                for rule in rules:
                    if (area := self._area(rule)) is not None:
                        if (side := isqrt(area)) ** 2 != area:
                            return -1
                        self._put({rule.dims[2]: side, rule.dims[3]: side})
                        found += 1
        except Contradiction:
            return -1
        return found


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
