"""Load a graph or a profile from a file, whatever its format: the content tells, not the name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import FormatError
from ..ir import Graph, check_graph, parse_graph
from ..profile import Profile
from .chainer.dump import sniff_chainer
from .cuda_snapshot import sniff_cuda_snapshot, sniff_pickle
from .head import read_head
from .json_walk import Progress, read_text
from .megengine.dump import sniff_megengine
from .rects import Repair, sniff_drawing, sniff_rect_json
from .torch_trace import sniff_torch_trace

_LARGEST_TEXT = 1 << 28  # bytes of our own text form, which is read at once


class Format(NamedTuple):
    name: str
    sniff: Callable[[bytes], bool]  # does a file that begins like this have the format?
    gives: Literal["graph", "profile", "rects"]
    reader: str  # module and function, imported when it is needed: some need torch


def load(path: str | Path) -> Graph:
    """The graph in this file. Raises `FormatError` where it cannot be read."""
    format = find_format(path)
    if format.gives == "graph":
        return _reader(format)(Path(path))
    if format.gives == "rects":
        raise FormatError(f"a {format.name}", where=Path(path).name, hint="tilegrad.load_rects, or tilegrad analyze")
    profile: Profile = _reader(format)(Path(path))
    if profile.graph is None:
        what = f"a {format.name} that does not tell which operator reads what: there is no graph in it"
        raise FormatError(what, where=Path(path).name, hint="tilegrad analyze shows what is in it")
    return profile.graph


def load_profile(path: str | Path, progress: Progress | None = None) -> Profile:
    """The profile in this file. Raises `FormatError` where it cannot be read."""
    format = find_format(path)
    if format.gives != "profile":
        what = f"a {format.name}, without times or addresses"
        raise FormatError(what, where=Path(path).name, hint="tilegrad analyze, which simulates it")
    found: Profile = _reader(format)(Path(path), progress)
    return found


def load_rects(path: str | Path) -> tuple[Graph, tuple[Repair, ...]]:
    """The training step in this file, whose arrays are split in rects, and what had to be repaired to read it."""
    format = find_format(path)
    if format.gives != "rects":
        raise FormatError(f"a {format.name}, not a graph of rects", where=Path(path).name, hint="tilegrad analyze")
    found = _reader(format)(Path(path))
    return found if isinstance(found, tuple) else (found, ())


def find_format(path: str | Path) -> Format:
    """The format of a file."""
    path = Path(path)
    head = read_head(path)
    for format in FORMATS:
        if format.sniff(head):
            return format
    if sniff_pickle(head):
        raise FormatError(
            "a pickle, which could run any code when it is loaded, and so is not",
            where=path.name,
            hint="json.dump(torch.cuda.memory._snapshot(), open('snapshot.json', 'w')) where it was made",
        )
    names = ", ".join(format.name for format in FORMATS)
    what = "the file is empty" if not head else "the file has no format that is known here"
    raise FormatError(what, where=path.name, hint=f"one of: {names}")


def _reader(format: Format) -> Callable[..., Any]:
    module, function = format.reader.split(":")
    found: Callable[..., Any] = getattr(import_module(module, __package__), function)
    return found


def load_text(path: Path) -> Graph:
    """A graph in our own text form."""
    text = read_text(path, _LARGEST_TEXT)
    try:
        graph = parse_graph(text)
        check_graph(graph)
    except FormatError as error:
        number = (error.where or "").removeprefix("line ")
        where = f"{path.name}:{number}" if number.isdigit() else f"{path.name}: {error.where}"
        raise FormatError(error.what, where=where, hint=error.hint) from None
    return graph


FORMATS = (
    Format("tilegrad text", lambda head: head.startswith((b"graph ", b"value ")), "graph", ".formats:load_text"),
    Format("chainer dump", sniff_chainer, "graph", ".chainer.graph:load_chainer"),
    Format("megengine profile", sniff_megengine, "profile", ".megengine:load_megengine"),
    Format("torch trace", sniff_torch_trace, "profile", ".torch_trace:load_torch_trace"),
    Format("rect graph", sniff_rect_json, "rects", ".rects.repaired:load_rect_json"),
    Format("rect drawing", sniff_drawing, "rects", ".rects.drawing:load_drawing"),
    Format("cuda memory snapshot", sniff_cuda_snapshot, "profile", ".cuda_snapshot:load_cuda_snapshot"),
)
