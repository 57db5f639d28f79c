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

STYLE = "report.css"
SCRIPTS = (  # in this order: each uses what those before it define
    "report_base.js",
    "report_table.js",
    "report_profile.js",
    "report_chart.js",
    "report_memory.js",
    "report_map.js",
    "report_timeline.js",
    "report.js",
)

# The policy's attribute is in capitals: who looks for addresses in the file finds none.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta HTTP-EQUIV="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="tilegrad">
<title>tilegrad report</title>
<style>{style}</style>
</head>
<body>
<noscript><p>This report draws itself with JavaScript, which is off here. The command that wrote it prints the same
figures.</p></noscript>
<header>
<h1 id="title"></h1>
<p id="summary"></p>
<dl id="facts"></dl>
<ul id="notes" hidden></ul>
</header>
<main>
<div id="tables"></div>
<div id="charts" hidden>
<div id="bar" role="toolbar" aria-label="what the charts show">
<label id="device-label" hidden>memory of <select id="device"></select></label>
<span id="range" role="status"></span>
<button type="button" id="reset" hidden>Show all (Esc)</button>
</div>
<section id="memory" aria-labelledby="memory-title" hidden>
<h2 id="memory-title">Memory over time</h2>
<p id="memory-caption"></p>
<ul class="legend" id="memory-legend"></ul>
<div class="chart" id="memory-chart" aria-labelledby="memory-title" aria-describedby="memory-keys"></div>
<p class="keys" id="memory-keys">Point at the curve; drag to zoom, double click to see all again. Keys:
<kbd>←</kbd> <kbd>→</kbd> step, <kbd>Page Up</kbd> <kbd>Page Down</kbd> ten steps, <kbd>Home</kbd> <kbd>End</kbd>,
<kbd>P</kbd> peak, <kbd>+</kbd> <kbd>−</kbd> zoom, <kbd>Shift</kbd> <kbd>←</kbd> <kbd>→</kbd> move,
<kbd>Esc</kbd> all.</p>
</section>
<section id="map" aria-labelledby="map-title" hidden>
<h2 id="map-title">Address map</h2>
<p id="map-caption"></p>
<ul class="legend" id="map-legend"></ul>
<div class="chart" id="map-chart" aria-labelledby="map-title" aria-describedby="map-keys"></div>
<p class="keys" id="map-keys">Keys: <kbd>←</kbd> <kbd>→</kbd> in order of birth, <kbd>↑</kbd> <kbd>↓</kbd> to the
neighbour in address. What is too small to see is drawn together: zoom in.</p>
</section>
<section id="timeline" aria-labelledby="timeline-title" hidden>
<h2 id="timeline-title">Timeline</h2>
<p id="timeline-caption"></p>
<label id="colour-label" hidden>colour by <select id="colour"></select></label>
<ul class="legend" id="timeline-legend"></ul>
<div class="chart" id="timeline-chart" aria-labelledby="timeline-title" aria-describedby="timeline-keys"></div>
<p class="keys" id="timeline-keys">Keys: <kbd>←</kbd> <kbd>→</kbd> along a lane, <kbd>↑</kbd> <kbd>↓</kbd> to what
runs above and below.</p>
</section>
</div>
<section id="peak" aria-labelledby="peak-title" hidden>
<h2 id="peak-title">Alive at the peak</h2>
<p id="peak-caption"></p>
<div id="peak-table"></div>
</section>
<section id="operators" aria-labelledby="operators-title" hidden>
<h2 id="operators-title">Operators</h2>
<p id="operators-caption"></p>
<div id="operators-table"></div>
</section>
</main>
<script type="application/json" id="page-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def save_page(page: Page, path: str | Path) -> None:
    """Write the report, whole or not at all (rule H3)."""
    save_text(format_page(page), path, "the report", "another --html OUT.html")


def format_page(page: Page) -> str:
    """The page as text."""
    files = resources.files(__package__)
    style = files.joinpath(STYLE).read_text(encoding="utf-8")
    script = "".join(files.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    return _PAGE.format(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_escape(page_data(page)),
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _escape(data: dict[str, Any]) -> str:
    """JSON in which no text means anything to HTML or to a script (rule H1). All of it is ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
