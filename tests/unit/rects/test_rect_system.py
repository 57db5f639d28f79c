"""The step for any sizes and workers: who has what, who needs what, and that it is enough to run the step exactly."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from rect_player import Player, random_start
from tilegrad.errors import InputError
from tilegrad.ir import check_graph, format_graph, parse_graph
from tilegrad.rects import Share, check_rects, imbalance, shares, total, training_step
from tilegrad.rects.step import arrays, dists_of, edges, held_of, owned
from tilegrad.region import Box

SOURCE: dict[str, Any] = {
    "batch": 256, "image": (41, 41), "channels": 1, "layers": [(9, 64), (7, 64)], "classes": 3034,
}  # fmt: skip
SMALL: dict[str, Any] = {"batch": 2, "image": (11, 9), "channels": 2, "layers": [((3, 2), 3), (4, 2)], "classes": 3}
MESHES = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (2, 3), (4, 4), (11, 1), (1, 9), (5, 9)]


@pytest.mark.parametrize("workers", MESHES)
@pytest.mark.parametrize("gain", ["a*(x+b)", "a*x+b"])
def test_workers_together_do_what_one_does(workers: tuple[int, int], gain: Any) -> None:
    alone = training_step(**SMALL, gain=gain)
    together = training_step(**SMALL, gain=gain, workers=workers)
    start = random_start(alone[0])
    one, many = Player(alone, start), Player(together, start)
    one.play()
    many.play()
    for array in arrays(alone[0]):
        assert np.array_equal(one.whole(array.name), many.whole(array.name)), array.name
    for share, halo, gradient in zip(shares(together), many.halos, many.gradients, strict=True):
        assert (share.halo_bytes, share.gradient_bytes) == (4 * halo, 4 * gradient)


@pytest.mark.parametrize("sizes", [SOURCE, SMALL, {**SMALL, "layers": [(2, 3)]}, {**SMALL, "layers": [(2, 3)] * 4}])
@pytest.mark.parametrize("workers", [(1, 1), (2, 2), (3, 1), (5, 7)])
def test_every_graph_keeps_the_rules(sizes: dict[str, Any], workers: tuple[int, int]) -> None:
    graphs = training_step(**sizes, workers=workers)
    assert len(graphs) == workers[0] * workers[1]
    for graph in graphs:
        check_graph(graph)
        check_rects(graph)
        assert parse_graph(format_graph(graph)) == graph
        layers = len(sizes["layers"])
        assert (len(arrays(graph)), len(graph.nodes)) == (10 + 12 * layers, 11 + 15 * layers)
        assert total(graph) == total(graphs[0])


@pytest.mark.parametrize("workers", MESHES)
def test_boxes_are_a_partition(workers: tuple[int, int]) -> None:
    graphs = training_step(**SMALL, workers=workers)
    for array in arrays(graphs[0]):
        dim = array.type.shape
        if array.name.startswith("classifier.softmax") or dim[-2:] == (1, 1) or dim == (1,):
            assert all(dim == owned(graph, graph.value[array.name]).shape for graph in graphs)
            continue
        seen = np.zeros(dim, int)
        for graph in graphs:
            seen[owned(graph, graph.value[array.name]).slices] += 1
        assert (seen == 1).all(), array.name


def test_halos_of_the_source() -> None:
    graphs = training_step(**SOURCE, workers=(2, 1))
    first, second = graphs
    # 41 rows are cut at 21, 33 at 17, 27 at 14: rows [0, 17) of the first layer read [0, 25), and so on.
    image = [held_of(graph.value["data.raw_output"]) for graph in graphs]
    assert [held.write[2] for held in image if held.write] == [(0, 21), (21, 41)]
    assert [held.read[2] for held in image] == [(0, 25), (17, 41)]
    assert dists_of(first.node["L0.filter"])["dist_input"][2] == (0, 25)
    assert held_of(first.value["L0.filterNL.output"]).read[2] == (0, 20)
    assert held_of(second.value["L0.filterNL.output"]).read[2] == (14, 33)
    for version in ("L0.filterNL.output.grad", "L0.filterNL.output.grad_1"):  # zero, and then added to
        gradient = held_of(second.value[version])
        assert gradient.write is not None and gradient.write[2] == (14, 33) and gradient.read[2] == (17, 33)
    places = [(0, 64), (0, 1), (0, 1), (0, 64), (0, 7), (0, 7), (14, 27), (0, 27)]
    assert held_of(second.value["L1.W"]).read == Box(places)


def test_traffic_of_the_source_by_hand() -> None:
    first, second = shares(training_step(**SOURCE, workers=(2, 1)))
    halo = 4 * 256 * (4 * 41 * 1 + 3 * 33 * 64)
    assert (first.halo_bytes, second.halo_bytes) == (halo, halo)
    assert (first.gradient_bytes, second.gradient_bytes) == (4 * 256 * 64 * 33 * 3,) * 2
    logits = 4 * 256 * 3034
    assert first.sum_bytes + second.sum_bytes == 2 * logits + 2 * 2 * 4  # two workers: 2 * (2 - 1) / 2 of it each
    assert first.owned_bytes_by_role["param"] == 4 * (
        64 * 81 * 17 * 33 + 64 * 64 * 49 * 14 * 27 + 3034 * 64 * 14 * 27
    ) + (4 * (64 * 17 * 33 + 64 * 14 * 27 + 2))
    assert first.flops == 2 * 256 * (2 * 64 * 81 * 17 * 33 + 3 * (64 * 64 * 49 + 3034 * 64) * 14 * 27)


@pytest.mark.parametrize("workers", [(1, 1), (1, 3), (2, 2), (4, 4), (9, 3)])
def test_shares_add_up(workers: tuple[int, int]) -> None:
    graphs = training_step(**SOURCE, workers=workers)
    parts = shares(graphs)
    totals, count = total(graphs[0]), len(parts)
    assert sum(part.flops for part in parts) == totals["flops_step"]
    spread = totals["bytes_by_role_f32"]["param"] - 4 * 2  # all but the gains, which every worker has
    assert sum(part.owned_bytes_by_role["param"] - 8 for part in parts) == spread
    assert max(part.owned_bytes_by_role["param"] for part in parts) <= 1.35 * spread / count + 8
    assert all(part.held_bytes >= part.owned_bytes for part in parts)
    found = imbalance(parts)
    assert min(found.values()) >= 1
    if count == 1:
        assert (
            parts[0].received_bytes == 0
            and parts[0].held_bytes == totals["bytes_all_arrays_f32"] == parts[0].owned_bytes
        )
        assert found == {"owned": 1, "received": 1, "flops": 1}


def test_imbalance_by_hand() -> None:
    parts = [Share("", {"param": n}, n, 0, 0, 0, 10 * n) for n in (1, 2, 3)]
    assert imbalance(parts) == {"owned": 1.5, "received": 1.0, "flops": 1.5}


def test_rects_that_are_not_printed_are_those_of_the_arrays() -> None:
    bare = [
        replace(graph, nodes=tuple(replace(node, attrs={}) for node in graph.nodes))
        for graph in training_step(**SMALL, workers=(2, 1))
    ]
    for graph in bare:
        check_rects(graph)
    found, full = shares(bare), shares(training_step(**SMALL, workers=(2, 1)))
    assert all(a.halo_bytes >= b.halo_bytes and a.flops == b.flops for a, b in zip(found, full, strict=True))


def test_workers_of_different_steps() -> None:
    with pytest.raises(InputError, match="workers of different steps"):
        shares([*training_step(**SOURCE), *training_step(**SMALL)])
    with pytest.raises(InputError, match="without workers"):
        shares([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "the batch must be 1 or more"),
        ({"layers": []}, "a net without layers"),
        ({"layers": [(12, 3)]}, r"a kernel of 12 x 12 on maps of 11 x 9"),
        ({"layers": [(3, 0)]}, "maps must be 1 or more"),
        ({"workers": (0, 1)}, "the workers must be 1 or more"),
        ({"workers": (12, 1)}, "12 x 1 workers for an image of 11 x 9"),
        ({"gain": "x"}, "the gain 'x' is not known"),
    ],
)
def test_sizes_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        training_step(**{**SMALL, **change})


def test_the_gradient_of_a_gain_without_b() -> None:
    plain, other = (training_step(**SMALL, gain=gain)[0] for gain in ("a*(x+b)", "a*x+b"))  # type: ignore[arg-type]
    lost = set(edges(plain)) - set(edges(other))
    assert lost == {(f"L{at}.b", f"L{at}.filterA.grad", "->b") for at in (0, 1)}
    assert plain != other


def test_names_do_not_depend_on_workers() -> None:
    for rows, cols in product((1, 3), (1, 2)):
        graph = training_step(**SMALL, workers=(rows, cols))[-1]
        assert list(edges(graph)) == list(edges(training_step(**SMALL)[0]))


def test_every_sum_and_update_is_a_value_of_its_own() -> None:
    graph = training_step(**SMALL)[0]
    added = [v for v in graph.values if v.alias is not None]
    assert len(added) == 7 + 14  # parameters, and all gradients but the loss's, which nobody adds to
    for value in added:
        node = graph.producer[value.name]
        assert value.alias in (graph.value[name].alias or name for name in node.reads)
        assert value.held == graph.value[value.alias or ""].held
    assert [old for old, _ in graph.updates] == [n.inputs[0].value for n in graph.nodes if n.op == "update"]
