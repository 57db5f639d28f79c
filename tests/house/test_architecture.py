"""The drawing in docs/architecture.md is the import graph of the package, made anew and compared.

A box is a folder or a file of src/tilegrad, an arrow says that one imports the other. `modules` is drawn file by file:
one of its files imports `distributed`, which imports others of them. An arrow that follows from others is left out, and
so is what everybody may import. To print the drawing for the page:

    python tests/house/test_architecture.py
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tilegrad"
PAGE = ROOT / "docs" / "architecture.md"
GROUND = {
    "errors",
    "units",
    "files",
    "garbage",
    "lazy",
    "progress",
    "recipe",
    "torch_private",
    "extras",
    "__init__",
    "__main__",
    "__version__",
}  # anybody may import these
OPENED = "modules"  # drawn file by file

Edges = dict[str, set[str]]


def imports(path: Path) -> Iterator[str]:
    """Boxes that a file imports when it is used; imports for type checkers alone do not count."""
    tree, here = ast.parse(path.read_text()), path.relative_to(SOURCE).parts[:-1]
    checks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    hidden = {id(inner) for check in checks for inner in ast.walk(check)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in hidden:
            continue
        names = tuple((node.module or "").split(".")) if node.module else ()
        if node.level:
            names = here[: len(here) - node.level + 1] + names
        elif names[:1] == ("tilegrad",):
            names = names[1:]
        else:
            continue
        names = names[1:] if names[:1] == (OPENED,) else names
        yield from names[:1] or (alias.name for alias in node.names)


def box_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[1] if parts[0] == OPENED else parts[0]


def package_edges() -> Edges:
    """Box -> the boxes it imports."""
    found: Edges = {}
    for path in sorted(SOURCE.rglob("*.py")):
        box = box_of(path)
        if box not in GROUND:
            found.setdefault(box, set()).update(set(imports(path)) - GROUND - {box})
    return found


def reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """All that a box imports, itself or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for box in edges[waiting.pop()] - found:
            found.add(box)
            waiting.append(box)
    return found


def reduced(edges: Edges) -> Edges:
    """Without the arrows that follow from others."""
    below = {box: reachable(edges, box) for box in edges}
    return {box: {t for t in to if not any(t in below[other] for other in to)} for box, to in edges.items()}


def drawing() -> str:
    """The graph in mermaid's words."""
    opened = sorted({box_of(path) for path in (SOURCE / OPENED).glob("*.py")} - GROUND)
    lines = ["graph TD", f"    subgraph {OPENED}", *(f"        {box}" for box in opened), "    end"]
    for box, to in sorted(reduced(package_edges()).items()):
        lines += [f"    {box} --> {target}" for target in sorted(to)]
    return "\n".join(lines) + "\n"


def test_arrows_point_one_way() -> None:
    edges = package_edges()
    assert not [box for box in edges if box in reachable(edges, box)]


def test_the_drawing_is_the_import_graph() -> None:
    found = re.search(r"^```mermaid\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    assert found[1] == drawing(), "python tests/house/test_architecture.py prints what belongs there"


def test_every_box_is_explained() -> None:
    """In the table of packages."""
    named = set(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE.read_text(), re.MULTILINE))
    told = {name for row in named for name in re.findall(r"`(\w+)`", row)}
    assert set(package_edges()) <= told


if __name__ == "__main__":
    print(drawing(), end="")
