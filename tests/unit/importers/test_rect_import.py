"""Graphs of rects from JSON: round trips, and files that are broken or contradict themselves."""

from __future__ import annotations

import copy
import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rect_damage import content
from tilegrad.errors import FormatError
from tilegrad.importers.head import read_head
from tilegrad.importers.rects import load_rect_json, sniff_rect_json
from tilegrad.rects import format_rect_json, training_step

REPAIRED = Path(__file__).parents[2] / "data" / "rect_graph.json"
SIZES: dict[str, Any] = {"batch": 4, "image": (12, 10), "channels": 2, "layers": [(3, 4), (2, 3)], "classes": 5}
GOOD: dict[str, Any] = json.loads(format_rect_json(training_step(**SIZES)[0]))
PLAIN = [{key: value for key, value in a.items() if key not in ("readers", "writers")} for a in GOOD["arrays"]]


def save(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "graph.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize("gain", ["a*(x+b)", "a*x+b"])
@pytest.mark.parametrize("workers", [(1, 1), (2, 3), (12, 1)])
def test_round_trip(tmp_path: Path, workers: tuple[int, int], gain: Any) -> None:
    for graph in training_step(**SIZES, workers=workers, gain=gain):
        found = load_rect_json(save(tmp_path, format_rect_json(graph)))
        assert found == graph
        assert format_rect_json(found) == format_rect_json(graph)


def test_evidence_goes_round_too(tmp_path: Path) -> None:
    graph = load_rect_json(REPAIRED)
    found = load_rect_json(save(tmp_path, format_rect_json(graph)))
    assert found == graph and sum(len(node.attrs["evidence"]) for node in found.nodes) == 100


def test_gzipped_and_with_progress(tmp_path: Path) -> None:
    path = tmp_path / "graph.json.gz"
    path.write_bytes(gzip.compress(REPAIRED.read_bytes()))
    calls: list[tuple[int, int]] = []
    assert load_rect_json(path, lambda *done: calls.append(done)) == load_rect_json(REPAIRED)
    assert calls and calls[-1][0] == calls[-1][1]
    assert sniff_rect_json(read_head(path))


def test_only_arrays_and_operators_are_needed(tmp_path: Path) -> None:
    short = {"operators": GOOD["operators"], "arrays": PLAIN}
    assert load_rect_json(save(tmp_path, short)) == replace(training_step(**SIZES)[0], name="graph")


def test_operators_may_stand_in_any_order(tmp_path: Path) -> None:
    turned = {"operators": GOOD["operators"][::-1], "arrays": GOOD["arrays"][::-1]}
    assert content(load_rect_json(save(tmp_path, turned))) == content(training_step(**SIZES)[0])


def test_many_who_add_to_one_gradient(tmp_path: Path) -> None:
    grad = next(op for op in GOOD["operators"] if op["name"] == "L1.filterNL.grad")
    more = [{**grad, "name": f"{grad['name']}.{at}"} for at in range(2_000)]
    start = time.process_time()
    graph = load_rect_json(save(tmp_path, {"operators": [*GOOD["operators"], *more], "arrays": PLAIN}))
    assert len([v for v in graph.values if v.alias == "L1.filterA.output.grad"]) == 2_001
    assert time.process_time() - start < 5


def test_sniff() -> None:
    assert sniff_rect_json(REPAIRED.read_bytes()[:4096])
    assert sniff_rect_json(format_rect_json(training_step(**SIZES)[0]).encode()[:4096])
    assert not sniff_rect_json(b'{"source": 1}') and not sniff_rect_json(b"") and not sniff_rect_json(b"graph x")


def change(edit: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    edit(document)
    return document


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *keys, last, value = path

    def edit(document: Any) -> None:
        for key in keys:
            document = document[key]
        document[last] = value

    return edit


BROKEN: dict[str, tuple[Any, str, str]] = {
    "no arrays": (change(lambda d: d.pop("arrays")), "no 'arrays'", "graph.json"),
    "no operators": (change(lambda d: d.pop("operators")), "no 'operators'", "graph.json"),
    "list": ("[]", "an object must stand here", ":1:1"),
    "cut": (json.dumps(GOOD)[:900], "", "graph.json:1:"),
    "more": (json.dumps(GOOD) + "x", "more text after the end", "graph.json:1:"),
    "array no object": (change(_set("arrays", 0, 7)), "an object must stand here", "(arrays.0)"),
    "no dim": (change(lambda d: d["arrays"][3].pop("dim")), "the key 'dim' is missing", "(arrays.3)"),
    "dim text": (change(_set("arrays", 1, "dim", "4")), "a list of 1 to 16 numbers", "(arrays.1.dim)"),
    "dim negative": (change(_set("arrays", 1, "dim", [-4])), "a whole number from 0", "(arrays.1.dim)"),
    "dim true": (change(_set("arrays", 1, "dim", [True])), "a whole number from 0", "(arrays.1.dim)"),
    "dim real": (change(_set("arrays", 1, "dim", [1.5])), "a whole number from 0", "(arrays.1.dim)"),
    "rank": (change(_set("arrays", 1, "dim", [1] * 17)), "a list of 1 to 16 numbers", "(arrays.1.dim)"),
    "rect": (change(_set("arrays", 0, "read_rect", [[0]])), "a rect must be", "(arrays.0.read_rect)"),
    "rect ranks": (change(_set("arrays", 0, "read_rect", [[0], [1, 1]])), "different ranks", "(arrays.0.read_rect)"),
    "role": (change(_set("arrays", 0, "role", "weight")), "the role must be one of", "(arrays.0.role)"),
    "role list": (change(_set("arrays", 0, "role", [])), "the role must be one of", "(arrays.0.role)"),
    "name long": (change(_set("arrays", 0, "name", "x" * 501)), "a text of 1 to 500", "(arrays.0.name)"),
    "name odd": (change(_set("arrays", 0, "name", "\ud800")), "printable", "(arrays.0.name)"),
    "ports": (change(_set("operators", 1, "inputs", [])), "an object must stand here", "(operators.1.inputs)"),
    "port": (change(_set("operators", 1, "inputs", "input", 7)), "a text of", "(operators.1.inputs.input)"),
    "kind": (change(_set("operators", 1, "kind", "conv")), "the kind 'conv' is not known", "(operators.1.kind)"),
    "output": (
        change(_set("operators", 1, "outputs", {"out": "L0.filter.output"})),
        "the outputs of",
        "(operators.1.outputs)",
    ),
    "twice": (change(_set("arrays", 1, "name", "data.raw_output")), "a second array or operator", "(arrays.1.name)"),
    "both": (change(_set("operators", 0, "name", "L0.W")), "a second array or operator", "(operators.0.name)"),
    "result_dim of none": (
        change(lambda d: next(o for o in d["operators"] if o["kind"] == "linear_grad").update(result_dim=[9])),
        "[9], but the graph has [4, 5, 1, 1]",
        "(operators.classifier.linear1.grad.result_dim)",
    ),
    "result_dim": (
        change(_set("operators", 1, "result_dim", [1])),
        "[1], but the graph has [4, 4, 10, 8]",
        "(operators.L0.filter.result_dim)",
    ),
    "other role": (
        change(_set("arrays", 0, "role", "loss")),
        "loss, but the graph has input",
        "(arrays.data.raw_output.role)",
    ),
    "evidence attr": (change(_set("operators", 1, "attrs", "evidence", "x")), "said of edges", "attrs.evidence)"),
    "attr": (change(_set("operators", 1, "attrs", "stride", [])), "an attribute must be", "(operators.1.attrs.stride)"),
    "dist": (change(_set("operators", 1, "attrs", "dist_result", 1)), "a rect must be", "attrs.dist_result)"),
    "outside": (change(_set("arrays", 0, "dim", [4, 2, 11, 10])), "rule G10: a rank reads", "data.raw_output"),
    "edge gone": (change(lambda d: d["edges"].pop()), "is missing", "(edges)"),
    "edge twice": (change(lambda d: d["edges"].append(d["edges"][0])), "stands twice", "(edges)"),
    "edge's port": (change(_set("edges", 0, "port", "->x")), "the edge", "(edges)"),
    "evidence": (change(_set("edges", 0, "evidence", "guessed")), "evidence must be one of", "(edges.0.evidence)"),
    "counts": (change(_set("counts", "arrays", 33)), "33, but the graph has 34", "(counts.arrays)"),
    "kinds": (change(_set("counts", "by_kind", "update", 6)), "6, but the graph has 7", "(counts.by_kind.update)"),
    "kinds no object": (change(_set("counts", "by_kind", 3)), "an object must stand here", "(counts.by_kind)"),
    "seen": (change(_set("counts", "edges_seen", 9)), "9, but the graph has None", "(counts.edges_seen)"),
    "totals": (change(_set("totals", "flops_step", 1)), "1, but the graph has", "(totals.flops_step)"),
    "readers": (
        change(_set("arrays", 0, "readers", [])),
        "[], but the graph has ['L0.filter.grad:input'",
        "(arrays.data.raw_output.readers)",
    ),
    "writers": (
        change(_set("arrays", 0, "writers", [3])),
        "[3], but the graph has ['data:raw_data']",
        "(arrays.data.raw_output.writers)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(tmp_path: Path, name: str) -> None:
    document, what, where = BROKEN[name]
    with pytest.raises(FormatError) as error:
        load_rect_json(save(tmp_path, document))
    assert what in error.value.what and where in str(error.value.where)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        load_rect_json(tmp_path / "none.json")
