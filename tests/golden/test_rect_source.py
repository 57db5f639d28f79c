"""A scanned drawing of a training step: its repaired graph, the same at one worker, and the scan as it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rect_damage import content
from tilegrad.importers.rects import load_drawing, load_rect_json
from tilegrad.ir import Graph, check_graph, format_graph, parse_graph
from tilegrad.rects import check_rects, count_kinds, format_rect_json, total, training_step
from tilegrad.rects.step import (
    arrays,
    dists_of,
    edges,
    held_of,
    inputs_of,
    outputs_of,
    result_dim,
    role_of,
)
from tilegrad.region import Box

DATA = Path(__file__).parents[1] / "data"
SCAN, REPAIRED = DATA / "rect_drawing.txt", DATA / "rect_graph.json"
GOLDEN: dict[str, Any] = json.loads(REPAIRED.read_text())


def built() -> Graph:
    sizes: dict[str, Any] = {"batch": 256, "image": (41, 41), "channels": 1, "classes": 3034}
    return training_step(**sizes, layers=[(9, 64), (7, 64)], workers=(1, 1))[0]


GRAPHS = {"built": built, "repaired": lambda: load_rect_json(REPAIRED), "scan": lambda: load_drawing(SCAN)[0]}
every_graph = pytest.mark.parametrize("graph", [make() for make in GRAPHS.values()], ids=list(GRAPHS))


def rect(raw: Any) -> Box | None:
    return None if raw is None else Box(zip(*raw, strict=True))


@every_graph
def test_arrays(graph: Graph) -> None:
    assert len(arrays(graph)) == GOLDEN["counts"]["arrays"] == 34
    by_name = {array.name: array for array in arrays(graph)}
    for golden in GOLDEN["arrays"]:
        found = by_name[golden["name"]]
        assert found.type.shape == tuple(golden["dim"])
        assert role_of(graph, found) == golden["role"]
        held = held_of(found)
        assert (held.read, held.write) == (rect(golden["read_rect"]), rect(golden["write_rect"]))
    for value in graph.values:  # all that lives in an array is of its size, and in the same boxes
        assert (value.type, value.held) == (by_name[value.alias or value.name].type, graph.value[value.name].held)


@every_graph
def test_operators(graph: Graph) -> None:
    assert len(graph.nodes) == GOLDEN["counts"]["operators"] == 41
    assert count_kinds(graph) == GOLDEN["counts"]["by_kind"]
    for golden in GOLDEN["operators"]:
        found = graph.node[golden["name"]]
        ports = (inputs_of(graph, found), outputs_of(graph, found))
        reads, writes = ({port: array.name for port, array in each.items()} for each in ports)
        assert (found.op, reads, writes) == (golden["kind"], golden["inputs"], golden["outputs"])
        assert ("result_dim" in golden) == (found.op != "linear_grad")
        assert result_dim(graph, found) == tuple(golden.get("result_dim", (256, 3034, 1, 1)))
        attrs = golden.get("attrs", {})
        rects = {key: rect(value) for key, value in attrs.items() if isinstance(value, list)}
        assert dists_of(found) == rects
        assert {key: value for key, value in found.attrs.items() if key != "evidence"} == attrs


@every_graph
def test_edges_and_totals(graph: Graph) -> None:
    assert len(list(edges(graph))) == GOLDEN["counts"]["edges"] == 100
    assert set(edges(graph)) == {(e["src"], e["dst"], e["port"]) for e in GOLDEN["edges"]}
    found = total(graph)
    assert (found["param_total"], found["flops_step"]) == (293_629_250, 447_945_375_744)
    assert (found["flops_forward"], found["flops_backward"]) == (150_278_602_752, 297_666_772_992)
    ours, golden = json.loads(format_rect_json(graph))["totals"], dict(GOLDEN["totals"])
    roles = golden.pop("bytes_by_role_f32")  # without the 20 bytes of loss and metric
    assert ours["bytes_by_role_f32"] == {**roles, "loss": 4, "metric": 16}
    assert {key: ours[key] for key in golden} == golden


@every_graph
def test_equal_and_legal(graph: Graph) -> None:
    assert content(graph) == content(built())
    check_graph(graph)
    check_rects(graph)
    assert parse_graph(format_graph(graph)) == graph


@every_graph
def test_readers_and_writers(graph: Graph) -> None:
    for golden in GOLDEN["arrays"]:
        found = [f"{dst}:{port[2:]}" for src, dst, port in edges(graph) if src == golden["name"]]
        assert sorted(found) == sorted(golden["readers"])
        found = [f"{src}:{port[:-2]}" for src, dst, port in edges(graph) if dst == golden["name"]]
        found += [f"{graph.producer[new].name} (in place)" for old, new in graph.updates if old == golden["name"]]
        assert sorted(found) == sorted(golden["writers"])


@pytest.mark.parametrize("name", ["repaired", "scan"])
def test_evidence(name: str) -> None:
    graph = GRAPHS[name]()
    found = {edge: node.attrs["evidence"][edge[2]] for node in graph.nodes for edge in edges(graph, node)}
    assert found == {(e["src"], e["dst"], e["port"]): e["evidence"] for e in GOLDEN["edges"]}
    how = list(found.values())
    assert [how.count(h) for h in ("seen", "counted", "inferred")] == [68, 24, 8]


def test_repairs_are_reported() -> None:
    repairs = load_drawing(SCAN)[1]
    assert len(repairs) == 156
    taken = {(repair.read, repair.taken) for repair in repairs}
    assert {
        ("LO.W", "L0.W"), ("classifier.weightsl", "classifier.weights1"), ("utput->", "output->"),
        ("cla881f1ertsoftmax.grad", "classifier.softmax.grad"), ("=>1npyt", "->input"), ("F>params", "->params"),
        ("classifier.evaluate.ouptut", "classifier.evaluate.output"), ("->pa msprLbability", "->params"),
        ("->pa msprLbability", "->probability"), ("dim=[64 1 164 7 727 27]", "dim=[64 1 1 64 7 7 27 27]"),
        ("dim=[ 2563034 1 1]", "dim=[256 3034 1 1]"), ("dim=[111 1]", "dim=[1 1 1 1]"),
        ("result_ dim=[64 1 1 1 9 933 33]", "result_dim=[64 1 1 1 9 9 33 33]"),
        ("<:::::::§§.fllterNL.out ut.grad.set ze%E:::::::>", "L1.filterNL.output.grad.set_zero"),
        ("", "L0.a.grad.set_zero"),
    } <= taken  # fmt: skip
    edges = [repair for repair in repairs if repair.why.startswith(("counted", "inferred")) and "->" in repair.taken]
    assert len([r for r in edges if r.why.startswith("counted")]) == 24
    assert len([r for r in edges if r.why.startswith("inferred")]) == 8
    lines = SCAN.read_text().splitlines()
    for repair in repairs:
        assert 1 <= repair.line <= len(lines) and repair.taken and repair.why
        assert all(word in lines[repair.line - 1] for word in repair.read.split())


def test_the_scan_is_the_repaired_graph() -> None:
    scan, repaired = load_drawing(SCAN)[0], load_rect_json(REPAIRED)
    assert content(scan) == content(repaired)
    assert {n.name: n.attrs["evidence"] for n in scan.nodes} == {n.name: n.attrs["evidence"] for n in repaired.nodes}
