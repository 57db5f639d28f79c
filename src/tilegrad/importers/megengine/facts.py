"""What a MegEngine profile says of itself beyond times and memory: counts, flags, classes, chunks, inference tags."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ...region import overlapping_pairs
from .dump import MegEngineDump, VarRecord

_CITED = re.compile(r"\[(\d+)\]")


def find_facts(dump: MegEngineDump) -> dict[str, Any]:
    """Plain data for the JSON of `tilegrad analyze`."""
    return {
        "counts": _counts(dump),
        "agreement": _agreement(dump),
        "edges": _edges(dump),
        "comp_nodes": _tally(var.node for var in dump.vars.values()),
        "flags": _tally("|".join(sorted(var.flags)) or "(none)" for var in dump.vars.values()),
        "classes": _classes(dump),
        "shapes": _shapes(dump),
        "chunks": _chunks(dump),
        "cited_ids_not_in_file": _cited(dump),
    }


def _tally(items: Iterable[str]) -> dict[str, int]:
    return dict(Counter(items).most_common())


def _counts(dump: MegEngineDump) -> dict[str, int]:
    ids = [int(id) for id in (*dump.operators, *dump.vars) if id.isdecimal() and len(id) < 19]
    largest = max(ids, default=-1)
    return {
        "operators": len(dump.operators),
        "sequence": len(dump.sequence),
        "vars": len(dump.vars),
        "chunks": len(dump.chunks),
        "host": len(dump.host),
        "device": len(dump.device),
        "footprints": len(dump.footprints),
        "internal": dump.internal,
        "ids": len(dump.operators) + len(dump.vars),
        "largest_id": largest,
        "ids_of_both": len(dump.operators.keys() & dump.vars.keys()),
        "ids_missing": largest + 1 - len(set(ids)),
    }


def _agreement(dump: MegEngineDump) -> dict[str, bool]:
    """Do the parts of the file tell the same story?"""
    ran = set(dump.sequence)
    unmade = {name for id in dump.sequence for name in dump.operators[id].outputs}
    ordered = True
    for id in dump.sequence:
        op = dump.operators[id]
        ordered &= unmade.isdisjoint(op.inputs)
        unmade.difference_update(op.outputs)
    return {
        "host_is_sequence": set(dump.host) == ran,
        "device_is_sequence": set(dump.device) == ran,
        "footprints_are_sequence": set(dump.footprints) == ran,
        "host_in_order": _in_order(dump.sequence, dump.host),
        "device_in_order": _in_order(dump.sequence, dump.device),
        "topological": ordered,
    }


def _in_order(sequence: Sequence[str], times: dict[str, Any]) -> bool:
    starts = [min(s.start_s for s in times[id].values()) for id in sequence if times.get(id)]
    return all(a <= b for a, b in pairwise(starts))


def _edges(dump: MegEngineDump) -> dict[str, int]:
    read = {name for op in dump.operators.values() for name in op.inputs}
    return {
        "inputs": sum(len(op.inputs) for op in dump.operators.values()),
        "outputs": sum(len(op.outputs) for op in dump.operators.values()),
        "vars_never_read": len(dump.vars.keys() - read),
    }


def _classes(dump: MegEngineDump) -> dict[str, Any]:
    every = list(dump.vars.values())
    workspaces = [v for v in every if v.workspace]
    return {
        "with_chunk": sum(v.chunk is not None for v in every),
        "allocated": sum(v.chunk is None and v.address is not None for v in every),
        "without_memory": sum(v.address is None for v in every),
        "dynamic": sum("RT_FORCE_DYNAMIC_MEM_ALLOC" in v.flags for v in every),
        "workspaces": len(workspaces),
        "workspaces_with_bytes": sum(v.bytes > 0 for v in workspaces),
        "shape_unknown": [v.id for v in every if v.shape is None],
        "aliases": {v.id: v.source for v in every if v.source is not None},
    }


def _shapes(dump: MegEngineDump) -> dict[str, Any]:
    every = list(dump.vars.values())
    return {
        "inferred": sum(v.shape is not None for v in every),
        "dtype_recorded": sum(v.dtype is not None for v in every),
        "bytes_per_element": _tally(str(_element_bytes(v)) for v in every),
        "shape_tags": _tally(v.shape_tag for v in every),
        "value_tags": _tally(v.value_tag for v in every),
        "inferred_without_inputs": sum(v.shape_tag == "MISSING_INP" and v.shape is not None for v in every),
    }


def _element_bytes(var: VarRecord) -> float | None:
    """Bytes of one element, where both shape and bytes are known."""
    if var.shape is None or not var.bytes or not (count := math.prod(var.shape)):
        return None
    whole, rest = divmod(var.bytes, count)
    return whole if not rest else var.bytes / count


def _chunks(dump: MegEngineDump) -> dict[str, Any]:
    every = list(dump.chunks.values())
    placed = sorted((c.address, c.address + c.bytes) for c in every if c.address is not None)
    makers = {name: op.type for op in dump.operators.values() for name in op.outputs}
    last = [dump.vars[c.owner] for c in every]
    return {
        "count": len(every),
        "total_bytes": sum(c.bytes for c in every),
        "address_min": placed[0][0] if placed else None,
        "address_end": max((end for _, end in placed), default=None),
        "overlapping_pairs": overlapping_pairs(placed),
        "adjacent_pairs": sum(a[1] == b[0] for a, b in pairwise(placed)),
        "bytes_min": min((c.bytes for c in every), default=0),
        "bytes_max": max((c.bytes for c in every), default=0),
        "alignment": math.gcd(*(start for start, _ in placed)),
        "owners": _tally(makers.get(c.owner, "nobody") for c in every),
        "with_offset": sum(v.offset != 0 for v in dump.vars.values()),
        "bytes_agree": all(c.bytes == v.bytes for c, v in zip(every, last, strict=True)),
        "addresses_agree": all(c.address == v.pointer == v.address for c, v in zip(every, last, strict=True)),
    }


def _cited(dump: MegEngineDump) -> list[str]:
    """Ids in the names of operators that no operator has: names are labels, and may come from another graph."""
    found = {id for op in dump.operators.values() for id in _CITED.findall(op.name) if id not in dump.operators}
    return sorted(found, key=lambda id: (len(id), id))
