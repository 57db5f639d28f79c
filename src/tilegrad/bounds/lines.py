"""Tiles along one axis. Boxes are products of intervals, so every axis is solved by itself, on a `Line`:
the local operators as windows between values that have one length each.

Rule L1  Every interval is clipped to its value here, and nowhere else.
Rule L2  `own` is what a tile computes, `held` what it can read (its own and, in stream mode, the halo handed on from
         the tile before), `share` the part of a value for which no other tile answers: shares cover a value once.
Rule L3  In stream mode shares and own intervals are the same: nothing is computed twice. Where only a part of the
         sinks is made (one rank's), what lies before the part is computed as far as it is needed, and is no share.
Rule L4  In stream mode either what is made is cut, and a tile computes as much as its part of that needs: the first one
         runs ahead of all others by as much as the network looks around. Or what is read is cut, and a tile computes
         all that it can. The last one does what is left; cuts may go on behind the end, so that it is no more than
         others do.
Rule L5  A value that one other alone reads, element by element, is made where its reader is: both have the same
         intervals, carried or not. So such values are solved as one (`Line.folded`): a network of a hundred values has
         a dozen of them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import GridError
from ..ir import Graph, Node
from ..ops import find
from ..region import EMPTY, POINT, Ends, Interval, Track, Window, cuts_of_count, made_from, read_all
from .axes import Axes, call_of

MODES = ("gather", "scatter", "stream")
Cuts = Mapping[str, Sequence[int]]  # per value: c0 <= c1 <= …, from 0 to n or over a part of it


@dataclass(frozen=True)
class Line:
    """One axis of a graph. `steps` are (output, ((input, window), …)) in an order in which they can run."""

    axis: str
    sizes: Mapping[str, int]
    steps: tuple[tuple[str, tuple[tuple[str, Window], ...]], ...]
    sources: tuple[str, ...]  # stored values, read by box
    sinks: tuple[str, ...]  # values that must be made whole: outputs, and what folds and whole nodes read

    @cached_property
    def shape(self) -> Hashable:
        """All but names: equal for lines that are solved alike."""
        place = {name: at for at, name in enumerate(self.sizes)}
        steps = tuple((place[out], tuple((place[name], window) for name, window in reads)) for out, reads in self.steps)
        ends = (tuple(place[name] for name in names) for names in (self.sources, self.sinks))
        return (tuple(self.sizes.values()), steps, *ends)

    def starts(self, mode: str) -> tuple[str, ...]:
        """The values whose cuts decide all others: what is read in gather mode, else what is made."""
        if mode != "gather":
            return self.sinks
        return (*self.sources, *(out for out, reads in self.steps if not reads))

    def readers(self) -> dict[str, list[tuple[str, Window]]]:
        found: dict[str, list[tuple[str, Window]]] = {name: [] for name in self.sizes}
        for out, reads in self.steps:
            for name, window in reads:
                found[name].append((out, window))
        return found

    @cached_property
    def folded(self) -> Folded:
        """Rule L5; sources that are read alike are one, too."""
        readers, made = self.readers(), [out for out, _ in self.steps]
        one = {name: name for name in self.sizes}
        for name in reversed(made):
            found = {(one[out], window) for out, window in readers[name]}
            if len(found) == 1 and name not in self.sinks:
                ((reader, window),) = found
                if window == POINT and self.sizes[reader] == self.sizes[name]:
                    one[name] = reader
        reads: dict[str, dict[tuple[str, Window], None]] = {name: {} for name in made if one[name] == name}
        alike: dict[Hashable, str] = {}
        for name in self.sources:
            key = self.sizes[name], frozenset((one[out], window) for out, window in readers[name])
            one[name] = alike.setdefault(key, name)
        for out, pairs in self.steps:
            inside = ((one[name], window) for name, window in pairs if one[name] != one[out])
            reads[one[out]].update(dict.fromkeys(inside))
        short = tuple((out, tuple(pairs)) for out, pairs in reads.items())
        sizes = {name: self.sizes[name] for name in self.sizes if one[name] == name}
        return Folded(Line(self.axis, sizes, short, tuple(alike.values()), self.sinks), one)


@dataclass(frozen=True)
class Folded:
    """A line on which values that have the same intervals are one, and which that is for each value."""

    line: Line
    one: Mapping[str, str]

    def fits(self, cuts: Cuts, carried: Collection[str] | None) -> bool:
        """Are values treated alike that are one here?"""
        if carried is not None and any(name in carried and one not in carried for name, one in self.one.items()):
            return False
        return all(cuts[name] == cuts[self.one[name]] for name in cuts if self.one[name] in cuts)

    def unfold(self, spans: Spans) -> Spans:
        """The same for all values of the longer line: what is made where its reader is has no halo."""
        apart = {*self.line.sources, *(name for name, one in self.one.items() if name == one)}
        own = spans.own
        tracks = [
            {
                name: each[one] if name in apart or one in self.line.sources else own[one]
                for name, one in self.one.items()
            }
            for each in (own, spans.held, spans.share, spans.complete)
        ]
        return Spans(spans.mode, spans.count, *tracks)


@dataclass(frozen=True)
class Spans:
    """For every value of a line, an interval per tile."""

    mode: str
    count: int
    own: Mapping[str, Track]
    held: Mapping[str, Track]
    share: Mapping[str, Track]
    complete: Mapping[str, Track]  # where the gradient is complete (gather); the own interval otherwise


def line_of(
    graph: Graph,
    axes: Axes,
    nodes: Sequence[Node],
    axis: str,
    sinks: Collection[str],
    whole: Collection[tuple[str, int]] = (),
) -> Line:
    """The local operators `nodes` along `axis`; of what they make, `sinks` must be made whole. `whole`: (node, input)
    that are read whole from where they are stored."""
    made = {n.outputs[0] for n in nodes}
    sizes: dict[str, int] = {}
    steps = []
    for node in nodes:
        rule = find(node).reads(call_of(graph, node))
        assert rule is not None
        reads = []
        for i, dims in enumerate(rule):
            value = node.inputs[i].value
            dim = axes.dims[value].get(axis)
            if dim is not None and dims[dim].dim is not None and (node.name, i) not in whole:
                sizes.setdefault(value, graph.shape(value)[dim])
                reads.append((value, dims[dim].window))
        out = node.outputs[0]
        sizes[out] = graph.shape(out)[axes.dims[out][axis]]
        steps.append((out, tuple(reads)))
    sources = tuple(v for v in sizes if v not in made)
    return Line(axis, sizes, tuple(steps), sources, tuple(v for v in sizes if v in sinks and v in made))


def sinks_of(graph: Graph, nodes: Sequence[Node]) -> set[str]:
    """Values that `nodes` make and that must be made whole: outputs, and what nodes outside read."""
    inside = {n.name for n in nodes}
    kept = {*graph.outputs, *(new for _, new in graph.updates)}
    made = [n.outputs[0] for n in nodes]
    return {
        v for v in made if v in kept or not graph.consumers[v] or any(n.name not in inside for n in graph.consumers[v])
    }


def tile_line(line: Line, mode: str, cuts: Cuts, carried: Collection[str] | None = None) -> Spans:
    """Solve one axis. `cuts` are given for the sinks (scatter, stream) or for the sources (gather, stream). In scatter
    and stream mode they may cover a part of each sink, from the first cut to the last: then only that part is made.
    `carried`: in stream mode the values whose halos are handed on, by default all; the others overlap."""
    folded = line.folded
    if mode != "gather" and folded.fits(cuts, carried):
        return folded.unfold(_tile_line(folded.line, mode, cuts, carried))
    return _tile_line(line, mode, cuts, carried)


def _tile_line(line: Line, mode: str, cuts: Cuts, carried: Collection[str] | None) -> Spans:
    match mode:
        case "scatter":
            return _scatter(line, cuts)
        case "stream":
            return _stream(line, cuts, carried)
        case "gather":
            return _gather(line, cuts)
    raise GridError(f"'{mode}' is not a way to tile", hint=f"one of {', '.join(MODES)}")


class SolvedLines:
    """What `tile_line` gives, found once for lines that differ in names alone: networks are made of blocks."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, int] = {}
        self._lines: dict[int, tuple[Line, int]] = {}  # a line must not go while it is known by where it lies
        self._known: dict[Hashable, tuple[Line, Spans]] = {}

    def __call__(self, line: Line, mode: str, cuts: Cuts, carried: Collection[str] | None = None) -> Spans:
        folded = line.folded
        if mode != "gather" and folded.fits(cuts, carried):
            return folded.unfold(self._solved(folded.line, mode, cuts, carried))
        return self._solved(line, mode, cuts, carried)

    def _solved(self, line: Line, mode: str, cuts: Cuts, carried: Collection[str] | None) -> Spans:
        if id(line) not in self._lines:
            self._lines[id(line)] = line, self._shapes.setdefault(line.shape, len(self._shapes))
        kept = None if carried is None else tuple(name in carried for name in line.sizes)
        ends = tuple(tuple(cuts.get(name, ())) for name in (*line.sources, *line.starts(mode)))
        key = self._lines[id(line)][1], mode, ends, kept
        if key not in self._known:
            self._known[key] = line, _tile_line(line, mode, cuts, carried)
        first, found = self._known[key]
        return found if first is line else _renamed(found, dict(zip(first.sizes, line.sizes, strict=True)))


def _renamed(spans: Spans, names: Mapping[str, str]) -> Spans:
    tracks = (spans.own, spans.held, spans.share, spans.complete)
    return Spans(spans.mode, spans.count, *({names[old]: track for old, track in each.items()} for each in tracks))


def _pull(line: Line, start: Mapping[str, Track], count: int) -> dict[str, Track]:
    """From what must be made, back to everything that makes it."""
    need = {name: start.get(name, Track.nothing(count)) for name in line.sizes}
    for out, reads in reversed(line.steps):
        for name, window in reads:
            need[name] = need[name].hull(read_all(window, need[out]).clip(line.sizes[name]))
    return need


def _scatter(line: Line, cuts: Cuts) -> Spans:
    share = {name: Track.between(cuts[name]) for name in line.sinks}
    count = len(next(iter(share.values()), ()))
    own = _pull(line, share, count)
    return Spans("scatter", count, own, own, {**own, **share}, own)


def _gather(line: Line, cuts: Cuts) -> Spans:
    """Forward: which outputs read a tile's own inputs (their gradient is complete). Back: what those need."""
    complete = {name: Track.between(cuts[name]) for name in line.starts("gather")}
    share = dict(complete)
    count = len(next(iter(complete.values()), ()))
    for out, reads in line.steps:
        if reads:
            read_by = _joined(line, complete, out, reads, count)
            share[out] = _shares(read_by, line.sizes[out])
            complete[out] = read_by.hull(share[out])
    own = _pull(line, complete, count)
    return Spans("gather", count, own, own, share, complete)


def _joined(line: Line, found: Mapping[str, Track], out: str, reads: Sequence[tuple[str, Window]], count: int) -> Track:
    track = []
    for t in range(count):
        span = EMPTY
        for name, window in reads:
            span = span.hull(window.read_by(*found[name][t]).clip(line.sizes[out]))
        track.append(span)
    return Track.of(track)


def _shares(track: Track, n: int) -> Track:
    """Cut a value once, inside the intervals of `track` and as evenly as they allow. Outputs that read nothing
    lie in no interval: they go to a neighbour."""
    even, ends, latest = cuts_of_count(n, len(track)), [0], 0
    for t in range(1, len(track)):
        before, after = track[t - 1], track[t]
        low = latest if after.empty else max(latest, after.lo)
        high = latest if before.empty else max(low, before.hi)
        latest = min(max(even[t], low), high)
        ends.append(latest)
    last = max((t for t, span in enumerate(track) if not span.empty), default=0)
    return Track.between((*ends[: last + 1], *(n for _ in range(last + 1, len(track) + 1))))


def _stream(line: Line, cuts: Cuts, carried: Collection[str] | None) -> Spans:
    count = len(next(iter(cuts.values()))) - 1
    ahead = {} if all(name in cuts for name in line.sinks) else _ahead(line, cuts, count)
    if ahead:
        cuts = {name: (0, *ahead[name].tolist()) for name in line.sinks}
    readers, first, active = line.readers(), *_window(line, cuts)
    own: dict[str, Track] = {}
    held: dict[str, Track] = {}
    share: dict[str, Track] = {}
    for name in (*reversed([out for out, _ in line.steps]), *line.sources):
        read = _needed(line, own, [r for r in readers[name] if r[0] in active], name, count)
        made = Track.between(cuts[name]) if name in line.sinks else Track.nothing(count)
        need = read.hull(made)
        if name not in active:
            own[name] = held[name] = Track.nothing(count)
        elif carried is None or name in carried or name in line.sources:
            own[name], held[name] = _carry(need, read, first[name], ahead.get(name))
        else:
            own[name] = held[name] = need
        share[name] = own[name]
        if name in line.sinks:
            share[name] = _sink_share(own[name], made, first[name] < cuts[name][0], own[name] is held[name])
    return Spans("stream", count, own, held, share, own)


def _needed(
    line: Line, own: Mapping[str, Track], readers: Sequence[tuple[str, Window]], name: str, count: int
) -> Track:
    """What the readers in each tile read of a value."""
    tracks = [read_all(window, own[out]).clip(line.sizes[name]) for out, window in readers]
    if len(tracks) == 1 and not tracks[0].empty.any():  # as nearly all: there is nothing to join
        return tracks[0]
    found = Track.nothing(count)
    for track in tracks:
        found = found.hull(track)
    return found


def _ahead(line: Line, cuts: Cuts, count: int) -> dict[str, Ends]:
    """Rule L4: how far each value is made at the end of each tile, where the sources are cut. With the last tile
    everything is."""
    there = {name: np.array(cuts[name][1:], np.int64) for name in line.sources}
    for out, reads in line.steps:
        ends = [made_from(window, there[name], line.sizes[name], line.sizes[out]) for name, window in reads]
        there[out] = np.min(ends, axis=0) if ends else np.full(count, line.sizes[out])
    found = {out: np.minimum(there[out], line.sizes[out]) for out, reads in line.steps if reads or out in line.sinks}
    for out, ends_of in found.items():
        ends_of[-1] = line.sizes[out]
    return found


def _carry(need: Track, read: Track, first: int, ahead: Ends | None) -> tuple[Track, Track]:
    """What each tile makes itself, from where the one before ended, and what it holds: all that it or a later one still
    reads."""
    ends = np.maximum(np.maximum.accumulate(np.where(need.empty, first, need.hi)), first)
    ends = ends if ahead is None else np.maximum(ends, np.minimum(ahead, ends[-1]))
    starts = np.concatenate(([first], ends[:-1]))
    lows = np.minimum.accumulate(np.where(read.empty, ends[-1], read.lo)[::-1])[::-1]
    held = np.minimum(starts, lows)
    held[0] = first
    return Track(starts, ends), Track(held, ends)


def _sink_share(own: Track, made: Track, later: bool, overlaps: bool) -> Track:
    """The part of what a tile makes for which no other answers."""
    if overlaps:
        return made
    whole = Interval(made[0].lo, made[-1].hi)
    return own.meet(whole) if later or own[-1].hi > whole.hi else own


def _window(line: Line, cuts: Cuts) -> tuple[dict[str, int], set[str]]:
    """Where each value begins, and the values of which anything is made. Cuts that begin at 0 make everything."""
    if all(cuts[name][0] == 0 for name in line.sinks):
        return dict.fromkeys(line.sizes, 0), set(line.sizes)
    spans = _pull(line, {name: Track.between((cuts[name][0], cuts[name][-1])) for name in line.sinks}, 1)
    return {name: track[0].lo for name, track in spans.items()}, {n for n, track in spans.items() if not track[0].empty}


def kinds_along(line: Line, spans: Spans) -> list[int]:
    """A number for each tile: equal where all intervals are the same but for their place, what is read of each value
    against what is held of it (so far as it sticks out, it is padding), and what the next tile is given."""
    count = spans.count
    rows = [np.arange(count) == 0, np.arange(count) == count - 1]
    for name, size in line.sizes.items():
        own, held = spans.own[name], spans.held[name]
        rows += [own.hi - own.lo, held.lo - own.lo, held.hi - own.lo, own.lo <= 0, own.hi >= size]
        for track in (spans.share.get(name, own), spans.complete.get(name, own)):
            rows += [np.where(track.empty, -1, end - own.lo) for end in (track.lo, track.hi)]
        given = np.append(own.lo[1:] - held.lo[1:], 0)
        rows += [given, np.where(given > 0, np.append(own.lo[1:], 0) - own.lo, 0)]
    for out, reads in line.steps:
        made = spans.own[out]
        for name, window in reads:
            read, held = read_all(window, made), spans.held[name]
            rows += [np.where(made.empty, 0, end) for end in (read.lo - held.lo, read.hi - held.hi)]
    known: dict[bytes, int] = {}
    return [known.setdefault(column.tobytes(), len(known)) for column in np.array(rows, np.int64).T.copy()]
