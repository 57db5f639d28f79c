"""Read a scanned drawing of a training step, as damaged as it is, and say what was repaired.

The text of such a drawing names arrays and operators, often several on a line, each followed by its dims and rects;
between them are rows of port labels. Scanning has put letters for digits, lost spaces and whole words, and split names.

    1. Names tell how many layers there are, and so which nodes and ports there must be (`drawing_names`).
    2. Every dim and rect is printed several times over: the copies vote (`drawing_slots`).
    3. Labels tell which ports were seen, which are counted and which can only be inferred (`drawing_edges`).
    4. The graph must keep all the rules of `check_rects`.

Whatever was not taken as it stands is a `Repair`. What contradicts itself, or cannot be read, is a `FormatError`.
A source prints a `dist_result` that is its array's write_rect; the graph has it once, there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ...errors import FormatError
from ...ir import Graph, Held, TensorType
from ...rects import check_rects
from ...rects.step import is_rect, listed, with_evidence
from ..json_walk import read_text
from .drawing_edges import find_gain, weigh_edges
from .drawing_names import FoundName, count_layers, match_names, split_run
from .drawing_slots import Ballot, Band, Slot, copies, names_of, place_fields, template
from .drawing_text import Label, TextLine, fold, parse_lines

LARGEST_FILE = 1 << 22
MOST_ODD = 2  # words that are no names as they stand, per node: looking for what they are like takes time
_NAME_LIKE = 12  # letters of words that cannot just be passed over when they read like a name


class Repair(NamedTuple):
    """What was read at a line ("" for nothing), what it was taken for, and why."""

    line: int
    read: str
    taken: str
    why: str


def sniff_drawing(head: bytes) -> bool:
    """Rects as numpy prints them, in text that is no JSON."""
    return b"Rect(array([" in head and b"dtype=int32" in head and not head.lstrip().startswith((b"{", b"["))


def load_drawing(path: str | Path) -> tuple[Graph, tuple[Repair, ...]]:
    """The graph of a drawing, and every repair. Raises `FormatError` where it cannot be read."""
    path = Path(path)
    return _Drawing(read_text(path, LARGEST_FILE), path.name).graph()


@dataclass
class _Drawing:
    text: str
    file: str
    repairs: list[Repair] = field(default_factory=list)

    def note(self, line: int, read: str, taken: str, why: str) -> None:
        self.repairs.append(Repair(line, read[:200], taken, why))

    def graph(self) -> tuple[Graph, tuple[Repair, ...]]:
        lines = list(parse_lines(self.text, self.file))
        layers = count_layers(lines, self.file)
        shape = template(layers)
        names = names_of(shape)
        bands, rows, tokens = self.read_bands(lines, names)
        nodes, odd = match_names(tokens, names, self.file)
        for token, name, why in odd:
            self.note(token.line, token.raw, "nothing" if name is None else name, why)
        shape = template(layers, find_gain(rows, layers, self.file))
        self.check_found(shape, nodes)
        for name, token in sorted(nodes.items(), key=lambda pair: pair[1].order):
            bands[token.band].nodes.append(name)
        kinds = copies(layers)
        placed = place_fields(bands, shape, kinds, self.file)
        where = {name: token.line for name, token in nodes.items()}
        values = Ballot(placed, shape, kinds, where, self.file).resolve(self.note)
        found = self.fill(shape, values)
        found = self.with_edges(found, nodes, rows)
        try:
            check_rects(found)
        except FormatError as error:
            name = error.where
            place = f"{self.file}:{where[name]} ({name})" if name in where else self.file
            raise FormatError(error.what, where=place, hint="scan it again") from None
        return found, tuple(sorted(self.repairs, key=lambda repair: repair.line))

    def read_bands(
        self, lines: Sequence[TextLine], names: tuple[str, ...]
    ) -> tuple[list[Band], list[list[Label]], list[FoundName]]:
        """Nodes and fields between rows of labels, and these rows."""
        bands, rows, tokens = [Band()], list[list[Label]](), list[FoundName]()
        below = False  # is the last thing a row?
        known, odd = {fold(name) for name in names}, 0
        for line in lines:
            found: list[str] = []
            rest: list[str] = []
            for run in line.runs:
                odd += sum(fold(word) not in known for word in run)
                if odd > MOST_ODD * len(names):
                    what = f"more than {MOST_ODD * len(names)} words that are no names"
                    raise FormatError(what, where=f"{self.file}:{line.number}", hint="scan it again")
                some, others = split_run(run, names)
                found += some
                rest += others
            if line.labels and not line.fields and not found:
                if not below:
                    rows.append([])
                    bands.append(Band())
                below = True
                rows[-1] += line.labels
            elif found or line.fields:
                below = False
            here = len(bands) - 1
            tokens += [FoundName(line.number, here, len(tokens) + at, raw) for at, raw in enumerate(found)]
            bands[here].fields += line.fields
            self.note_rest(line, rest)
        return bands, rows, tokens

    def note_rest(self, line: TextLine, rest: list[str]) -> None:
        for label in line.labels:
            if label.port and label.raw != label.shown:
                self.note(line.number, label.raw, label.shown, "the most alike of the ports")
        if rest:
            text = " ".join(rest)
            if "." in text.strip(". ") and len(fold(text)) >= _NAME_LIKE:
                what = f"'{text[:60]}' cannot be read"
                raise FormatError(what, where=f"{self.file}:{line.number}", hint="scan it again")
            self.note(line.number, text, "nothing", "stray marks")

    def check_found(self, shape: Graph, nodes: dict[str, FoundName]) -> None:
        for name in names_of(shape):
            if name in nodes:
                continue
            if not name.endswith(".set_zero"):
                raise FormatError(f"no '{name}' is found", where=self.file, hint="scan it again")
            line = nodes[name.removesuffix(".set_zero")].line if name.removesuffix(".set_zero") in nodes else 0
            self.note(line, "", name, "inferred: what is added to must be set to zero first")

    def fill(self, shape: Graph, found: dict[Slot, Any]) -> Graph:
        """The nodes of a net with so many layers, with the dims and rects of this one."""
        values = []
        for value in shape.values:
            dim, read, write = (found[value.alias or value.name, key] for key in ("dim", "read_rect", "write_rect"))
            values.append(replace(value, type=TensorType(dim), held=Held(read, write)))
        nodes = []
        for node in shape.nodes:
            rects = {key: listed(found[node.name, key]) for key in node.attrs if is_rect(key)}
            nodes.append(replace(node, attrs=MappingProxyType({**node.attrs, **rects})))
        return replace(shape, values=tuple(values), nodes=tuple(nodes), name=Path(self.file).stem)

    def with_edges(self, graph: Graph, nodes: dict[str, FoundName], rows: list[list[Label]]) -> Graph:
        bands = {name: token.band for name, token in nodes.items()}
        evidence, left = weigh_edges(graph, bands, rows)
        for label in left:
            self.note(label.line, label.raw, "nothing", "a label more than there are ports")
        for (src, dst, port), how in evidence.items():
            if how != "seen":
                ends = (src, dst) if src in graph.node else (dst, src)
                token = nodes.get(ends[0]) or nodes[ends[1]]
                why = "counted: there are labels enough, but not beside it"
                if how == "inferred":
                    why = "inferred: no label, but the operator must have this port"
                self.note(token.line, "", f"{src} {port} {dst}", why)
        return with_evidence(graph, evidence)
