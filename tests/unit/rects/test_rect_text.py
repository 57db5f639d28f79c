"""Graphs of rects as Graphviz text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from tilegrad.rects import format_rect_json, training_step
from tilegrad.rects.step import with_evidence
from tilegrad.report.dot import format_rects_dot

GRAPHS = training_step(batch=2, image=(9, 8), channels=1, layers=[(3, 4), (2, 3)], classes=5, workers=(2, 1))


def test_dot_has_every_node_edge_and_rect() -> None:
    text = format_rects_dot(GRAPHS[1])
    assert text.startswith('digraph "worker 1,0 of 2x1" {') and text.endswith("}\n")
    assert text.count("shape=box") == 34 and text.count("shape=oval") == 41
    assert text.count(" -> ") == 100
    assert 'label="L0.a\\ndim=[1]\\nread_rect=[0:1]\\nwrite_rect=None"' in text
    assert "dim=[2 1 9 8]\\nread_rect=[0:2 0:1 4:9 0:8]\\nwrite_rect=[0:2 0:1 5:9 0:8]" in text
    assert "dist_input=[0:2 0:1 4:9 0:8]\\ndist_filters=[0:4 0:1 0:1 0:1 0:3 0:3 4:7 0:6]" in text


def test_dot_escapes_names_and_dashes_what_is_inferred() -> None:
    graph = replace(GRAPHS[0], name='a"b\\c\n')
    graph = with_evidence(graph, {("L0.a", "L0.filterA", "->a"): "inferred"})
    text = format_rects_dot(graph)
    assert text.startswith('digraph "a\\"b\\\\c\N{REPLACEMENT CHARACTER}" {\n')
    assert text.count("style=dashed") == 1


def test_json_is_a_line_per_node_and_says_what_is_owned() -> None:
    text = format_rect_json(GRAPHS[0])
    document = json.loads(text)
    assert len(text.splitlines()) == 34 + 41 + 100 + 3 * 2 + 6
    assert document["counts"]["edges"] == 100
    assert document["arrays"][0]["write_rect"] == [[0, 0, 0, 0], [2, 1, 5, 8]]
    assert document["arrays"][2]["writers"] == ["update_L0.W (in place)"]
    assert "evidence" not in document["edges"][0]
