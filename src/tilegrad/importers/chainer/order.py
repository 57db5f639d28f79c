"""Which functions of a dump belong together, and in which order they run.

Forward functions run by rank, slices last among equals, then as in the file; that must be an order in which nothing is
read before it is written. Every forward function has one backward partner: same label, tensors and attributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from ...errors import FormatError
from .dump import ChainerDump, ChainerFunction


def writers_of(dump: ChainerDump) -> dict[int, ChainerFunction]:
    """The forward function that makes each tensor."""
    writers: dict[int, ChainerFunction] = {}
    for f in dump.forward:
        for id in f.outputs:
            if id in writers:
                raise f.error(f"it writes tensor {id}, as does the function at line {writers[id].line}")
            if dump.tensors[id].name != "_":
                raise f.error(f"it writes tensor {id}, which is '{dump.tensors[id].name}' from outside")
            writers[id] = f
    return writers


def sort_functions(dump: ChainerDump) -> list[ChainerFunction]:
    """Forward functions in the order in which they run."""
    for f in dump.forward:
        if f.integer("_output_count", 0, len(f.outputs)) != len(f.outputs):
            raise f.attr_error("_output_count", f"{len(f.outputs)}, the number of its outputs")
        f.retained("_input_indexes_to_retain", len(f.inputs))
        f.retained("_output_indexes_to_retain", len(f.outputs))
    order = sorted(dump.forward, key=lambda f: (f.integer("rank", 0), f.label == "GetItem"))
    writers, done = writers_of(dump), set[int]()
    for f in order:
        for id in f.inputs:
            if id in writers and id not in done:
                raise _out_of_order(dump, f, id, writers)
        done.update(f.outputs)
    return order


def _out_of_order(
    dump: ChainerDump, f: ChainerFunction, id: int, writers: Mapping[int, ChainerFunction]
) -> FormatError:
    graph = {g.line: {writers[i].line for i in g.inputs if i in writers} for g in dump.forward}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        lines = ", ".join(map(str, error.args[1][:8]))
        return f.error(f"it reads tensor {id}, which depends on it: a cycle of functions at lines {lines}")
    return f.error(
        f"it reads tensor {id} before the function at line {writers[id].line} writes it",
        "functions run by their attribute 'rank': it must grow from writer to reader",
    )


def pair_functions(dump: ChainerDump, order: Sequence[ChainerFunction]) -> dict[int, ChainerFunction]:
    """The backward function of each forward function, by the line of the latter."""
    writers, found = writers_of(dump), dict[int, ChainerFunction]()
    for f in dump.backward:
        partner = _partner(f, writers)
        if partner.line in found:
            first = found[partner.line].line
            raise f.error(f"a second backward function for the one at line {partner.line}, after line {first}")
        found[partner.line] = f
    for f in order:
        if f.line not in found:
            raise f.error("it has no backward function", "dump a whole training step: forward and backward")
    return found


def _partner(f: ChainerFunction, writers: Mapping[int, ChainerFunction]) -> ChainerFunction:
    gradients = [id for id, role in zip(f.inputs, f.roles, strict=True) if role == "gradient"]
    if not gradients or gradients[0] not in writers:
        what = f"no forward function writes tensor {gradients[0]}" if gradients else "it reads no gradient"
        raise f.error(f"backward without a forward function: {what}")
    partner = writers[gradients[0]]
    allowed = {"gradient": partner.outputs, "output": partner.outputs, "input": partner.inputs}
    for id, role in zip(f.inputs, f.roles, strict=True):
        if id not in allowed[role]:
            raise f.error(f"it reads tensor {id} as {role}, unlike its forward function at line {partner.line}")
    for id in f.outputs:
        if id not in partner.inputs:
            raise f.error(
                f"it gives a gradient for tensor {id}, which its forward function at line {partner.line} does not read"
            )
    if f.label != partner.label:
        raise f.error(f"its forward function at line {partner.line} is {partner.label}")
    if json.dumps(f.attrs, sort_keys=True) != json.dumps(partner.attrs, sort_keys=True):
        raise f.error(f"its attributes are not those of its forward function at line {partner.line}")
    return partner
