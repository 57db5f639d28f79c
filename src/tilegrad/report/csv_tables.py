"""Operators and groups as CSV: one row each, seconds and bytes as plain numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from ..analysis import Analysis
from ..analysis.groups import OperatorGroup, format_shapes

_OPERATOR = (
    "seq", "id", "type", "name", "module", "phase", "thread", "stream", "kernel_s", "total_s", "flops", "bytes",
    "flops_per_s", "bytes_per_s", "roof_share", "bound", "gap_before_s", "lag_s",
)  # fmt: skip
_GROUP = (
    "count",
    "total_s",
    "kernel_s",
    "share",
    "flops",
    "bytes",
    "flops_per_s",
    "bytes_per_s",
    "roof_share",
    "bound",
)


def operators_csv(analysis: Analysis, places: Iterable[int]) -> str:
    rows = []
    for at in places:
        row, op = analysis.row(at), analysis.operators[at]
        spans = [getattr(span, key, None) for span in (op.host, op.device) for key in ("start_s", "kern_s", "end_s")]
        rows.append(
            [*(row[key] for key in _OPERATOR), *spans, format_shapes(op.in_shapes), format_shapes(op.out_shapes)]
        )
    moments = [f"{side}_{key}" for side in ("host", "device") for key in ("start_s", "kern_s", "end_s")]
    return _write((*_OPERATOR, *moments, "in_shapes", "out_shapes"), rows)


def groups_csv(groups: Iterable[OperatorGroup], by: str) -> str:
    return _write((by, *_GROUP), [[group.key, *(group.to_json()[key] for key in _GROUP)] for group in groups])


def _write(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(head)
    writer.writerows([_safe(cell) for cell in row] for row in rows)
    return file.getvalue()


def _safe(cell: Any) -> Any:
    """A text that a spreadsheet would take for a formula is marked as text; what UTF-8 has not becomes a "?"."""
    if not isinstance(cell, str):
        return cell
    text = cell.encode(errors="replace").decode()
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
