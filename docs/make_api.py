"""The API reference: what a user may import, as pages made by pdoc of signatures and docstrings.

    python docs/make_api.py [FOLDER]        build/api, if no folder is named

Private names and the insides of packages are left out: what is not on these pages may change without notice.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pdoc

import tilegrad
from tilegrad import distributed, errors, images, nn, ops, testing, training

ROOT = Path(__file__).parents[1]
SCRIPT = re.compile(r"<script.*?</script>", re.DOTALL)
PUBLIC = (tilegrad, ops, nn, images, distributed, training, testing, errors)


def main(folder: Path) -> None:
    for module in PUBLIC:
        name_members(module)
    pdoc.render.configure(docformat="markdown", show_source=False, footer_text=f"tilegrad {tilegrad.__version__}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Error parsing type annotation")  # a method called `tuple` hides the type
        pdoc.pdoc(*(module.__name__ for module in PUBLIC), output_directory=folder)
    if lost := list(dead_links(folder)):
        sys.exit("\n".join(lost))


def dead_links(folder: Path) -> list[str]:
    """Links between these pages that lead nowhere."""
    pages = {page.resolve(): SCRIPT.sub("", page.read_text()) for page in folder.rglob("*.html")}
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    lost = []
    for page, text in pages.items():
        for link in re.findall(r'\bhref="([^"]+)"', text):
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            if not place.startswith(("http", "mailto")) and (
                not target.exists() or anchor not in {"", *anchors[target]}
            ):
                lost.append(f"{page.relative_to(folder.resolve())}: {link}")
    return lost


def name_members(module: ModuleType) -> None:
    """Names that are imported when they are used (src/tilegrad/lazy.py) are not found by looking."""
    listed = [name for name in dir(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in listed}
    homes = {name: getattr(item, "__module__", "") for name, item in found.items()}
    here = ("tilegrad",) if module is errors else ("tilegrad", errors.__name__)  # errors have a page of their own
    ours = {n: found[n] for n, home in homes.items() if home.startswith(here[0]) and home not in here[1:]}
    module.__dict__.update(ours)
    module.__all__ = sorted(ours)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "api")
