"""A report as one HTML file: figures, tables, memory over time, addresses, and who ran when.

Rule H1  Names and figures go into the page as JSON only, escaped so that no text can end the element it stands in; the
         page puts them into text and canvases, never into markup.
Rule H2  The page loads nothing and runs its own script alone: a policy in it names that script by its hash.
Rule H3  The file is written whole or not at all.

Limits: the page needs JavaScript.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from ..files import save_text
from .html_data import page_data
from .page import Page

# In the page the policy's attribute is in capitals: who looks for addresses in the file finds none.
PAGE, STYLE = "report.html", "report.css"
SCRIPTS = (  # in this order: each uses what those before it define
    "report_base.js",
    "report_table.js",
    "report_profile.js",
    "report_chart.js",
    "report_scatter.js",
    "report_tiles.js",
    "report_bars.js",
    "report_memory.js",
    "report_map.js",
    "report_timeline.js",
    "report.js",
)


def save_page(page: Page, path: str | Path) -> None:
    """Write the report, whole or not at all (rule H3)."""
    save_text(format_page(page), path, "the report", "another --html OUT.html")


def format_page(page: Page) -> str:
    """The page as text."""
    files = resources.files(__package__)
    style = files.joinpath(STYLE).read_text(encoding="utf-8")
    script = "".join(files.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    return (
        files.joinpath(PAGE)
        .read_text(encoding="utf-8")
        .format(
            style=style,
            style_hash=_hash(style),
            script=script,
            script_hash=_hash(script),
            data=_escape(page_data(page)),
        )
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _escape(data: dict[str, Any]) -> str:
    """JSON in which no text means anything to HTML or to a script (rule H1). All of it is ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
