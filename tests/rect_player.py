"""Run a step on all its workers in plain numpy, with nothing but what their rects let each of them see.

Every worker has its own copy of every array, NaN wherever it neither wrote nor received anything. Integers go in, and
softmax is left out (the "probability" is the logits), so that results are exact in any order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilegrad.ir import Graph, Kind, Node
from tilegrad.rects.step import arrays, dists_of, held_of, inputs_of, outputs_of, owned
from tilegrad.region import Box

Numbers = dict[str, np.ndarray]


class Played:
    """A node, with the arrays behind its ports."""

    def __init__(self, graph: Graph, node: Node):
        self.kind, self.attrs, self.dists = node.op, node.attrs, dists_of(node)
        self.inputs = {port: array.name for port, array in inputs_of(graph, node).items()}
        self.outputs = {port: array.name for port, array in outputs_of(graph, node).items()}


class Player:
    """All workers at once; `sent` counts the elements that each got from others: halos and gradients."""

    def __init__(self, graphs: Sequence[Graph], start: Numbers):
        self.graphs = graphs
        self.halos, self.gradients = [0] * len(graphs), [0] * len(graphs)
        self.state: list[Numbers] = []
        for graph in graphs:
            own = {a.name: np.full(a.type.shape, np.nan) for a in arrays(graph)}
            for array in arrays(graph):
                if array.name in start:
                    held = held_of(array)
                    box = (held.read if held.write is None else held.write).slices
                    own[array.name][box] = start[array.name][box]
            self.state.append(own)

    def play(self) -> None:
        for name in self.graphs[0].node:  # in the order of the graph: rule G4
            ops = [Played(graph, graph.node[name]) for graph in self.graphs]
            if ops[0].kind == "locally_connected":
                self.fetch(ops)
            before = [{a: self.state[w][a].copy() for a in op.outputs.values()} for w, op in enumerate(ops)]
            for worker, op in enumerate(ops):
                getattr(self, op.kind)(op, self.graphs[worker], self.state[worker])
            self.add_up(ops, before)

    def fetch(self, ops: list[Played]) -> None:
        array = ops[0].inputs["input"]
        for worker, op in enumerate(ops):
            for other, graph in enumerate(self.graphs):
                wrote = held_of(graph.value[array]).write
                assert wrote is not None
                part = op.dists["dist_input"].meet(wrote)
                if other != worker and part.volume:
                    self.state[worker][array][part.slices] = self.state[other][array][part.slices]
                    self.halos[worker] += part.volume

    def add_up(self, ops: list[Played], before: list[Numbers]) -> None:
        kind = ops[0].kind
        for port, name in ops[0].outputs.items():
            if (kind, port) in (("linear", "output"), ("scalar_affine_grad", "a.delta")):
                start = before[0][name] if port == "a.delta" else 0
                made = [
                    s[name] - (b[name] if port == "a.delta" else 0) for s, b in zip(self.state, before, strict=True)
                ]
                for state in self.state:
                    state[name] = start + sum(made)
            if (kind, port) == ("locally_connected_grad", "input.delta"):
                made = [s[name] - b[name] for s, b in zip(self.state, before, strict=True)]
                for worker, graph in enumerate(self.graphs):
                    for other, op in enumerate(ops):
                        part = op.dists["dist_input"].meet(held_of(graph.value[name]).read)
                        if other != worker and part.volume:
                            self.state[worker][name][part.slices] += made[other][part.slices]
                            self.gradients[worker] += part.volume

    def whole(self, name: str) -> np.ndarray:
        """An array, put together from what each worker has; they must agree where several have it."""
        found = np.full(self.graphs[0].shape(name), np.nan)
        for graph, state in zip(self.graphs, self.state, strict=True):
            box = owned(graph, graph.value[name]).slices
            there = ~np.isnan(found[box])
            assert np.array_equal(found[box][there], state[name][box][there])
            found[box] = state[name][box]
        assert not np.isnan(found).any(), name
        return found

    def source(self, op: Played, graph: Graph, s: Numbers) -> None:
        """The images are there from the start."""

    def set_zero(self, op: Played, graph: Graph, s: Numbers) -> None:
        array = graph.value[op.outputs["output"]]
        wrote = held_of(array).write
        assert wrote is not None
        s[array.name][wrote.slices] = 0

    def locally_connected(self, op: Played, graph: Graph, s: Numbers) -> None:
        x, w, y = s[op.inputs["input"]], s[op.inputs["filters"]], s[op.outputs["output"]]
        out = op.dists["dist_result"]
        y[out.slices] = 0
        for u, v, here, shifted in _taps(w, out):
            y[out.slices] += np.einsum("ocij,ncij->noij", w[:, 0, 0, :, u, v][here], x[shifted])

    def locally_connected_grad(self, op: Played, graph: Graph, s: Numbers) -> None:
        x, w, dy = (s[op.inputs[port]] for port in ("input", "filters", "output.delta"))
        out = op.dists["dist_result"]
        for u, v, here, shifted in _taps(w, out):
            moved = np.einsum("noij,ncij->ocij", dy[out.slices], x[shifted])
            s[op.outputs["filters.delta"]][:, 0, 0, :, u, v][here] += moved
            if "input.delta" in op.outputs:
                back = np.einsum("ocij,noij->ncij", w[:, 0, 0, :, u, v][here], dy[out.slices])
                s[op.outputs["input.delta"]][shifted] += back

    def scalar_affine(self, op: Played, graph: Graph, s: Numbers) -> None:
        box = op.dists["dist_result"].slices
        x, a, b = (s[op.inputs[port]] for port in ("input", "a", "b"))
        bias = b[(slice(None), *box[1:])]
        y = a[0] * x[box] + bias if op.attrs.get("gain") == "a*x+b" else a[0] * (x[box] + bias)
        s[op.outputs["output"]][box] = y

    def scalar_affine_grad(self, op: Played, graph: Graph, s: Numbers) -> None:
        box = op.dists["dist_result"].slices
        places = (slice(None), *box[1:])
        x, dy, a = s[op.inputs["input"]][box], s[op.inputs["output.delta"]][box], s[op.inputs["a"]][0]
        second = op.attrs.get("gain") == "a*x+b"
        s[op.outputs["input.delta"]][box] += a * dy
        s[op.outputs["a.delta"]] += np.sum(dy * (x if second else x + s[op.inputs["b"]][places]))
        s[op.outputs["b.delta"]][places] += (1 if second else a) * dy.sum(0, keepdims=True)

    def nonlinearity(self, op: Played, graph: Graph, s: Numbers) -> None:
        box = op.dists["dist_result"].slices
        s[op.outputs["output"]][box] = np.maximum(s[op.inputs["input"]][box], 0)

    def nonlinearity_grad(self, op: Played, graph: Graph, s: Numbers) -> None:
        box = op.dists["dist_result"].slices
        s[op.outputs["input.delta"]][box] += s[op.inputs["output.delta"]][box] * (s[op.inputs["output"]][box] > 0)

    def linear(self, op: Played, graph: Graph, s: Numbers) -> None:
        box = op.dists["read_rect"].slices
        h, w = s[op.inputs["input"]][box], s[op.inputs["weights"]][(slice(None), *box[1:])]
        s[op.outputs["output"]][:, :, 0, 0] = np.einsum("kcij,ncij->nk", w, h)

    def linear_grad(self, op: Played, graph: Graph, s: Numbers) -> None:
        box = op.dists["write_rect"].slices
        places = (slice(None), *box[1:])
        dz = s[op.inputs["output.delta"]][:, :, 0, 0]
        s[op.outputs["weights.delta"]][places] += np.einsum("nk,ncij->kcij", dz, s[op.inputs["input"]][box])
        s[op.outputs["input.delta"]][box] += np.einsum("nk,kcij->ncij", dz, s[op.inputs["weights"]][places])

    def softmax_cross_entropy(self, op: Played, graph: Graph, s: Numbers) -> None:
        s[op.outputs["probability"]][:] = s[op.inputs["input"]]
        s[op.outputs["output"]][:] = s[op.inputs["input"]].sum()

    def softmax_cross_entropy_grad(self, op: Played, graph: Graph, s: Numbers) -> None:
        classes = np.arange(s[op.inputs["probability"]].shape[1])[None, :, None, None]
        s[op.outputs["input.delta"]] += s[op.inputs["probability"]] % 7 - (classes == s[op.inputs["labels"]])

    def evaluate(self, op: Played, graph: Graph, s: Numbers) -> None:
        s[op.outputs["output"]][:] = (s[op.inputs["probability"]].argmax(1) == s[op.inputs["labels"]][:, 0]).sum()

    def accuracy(self, op: Played, graph: Graph, s: Numbers) -> None:
        assert not np.isnan(s[op.inputs["input"]]).any()

    def update(self, op: Played, graph: Graph, s: Numbers) -> None:
        box = op.dists["dist_result"].slices
        s[op.inputs["params"]][box] -= s[op.inputs["gradient"]][box] % 5


def _taps(w: np.ndarray, out: Box) -> list[tuple[int, int, tuple[slice, ...], tuple[slice, ...]]]:
    rows, cols = out[2], out[3]
    here = (slice(None), slice(None), *out.slices[2:])
    found = []
    for u in range(w.shape[4] if out.volume else 0):
        for v in range(w.shape[5]):
            shifted = (slice(rows.lo + u, rows.hi + u), slice(cols.lo + v, cols.hi + v))
            found.append((u, v, here, (slice(None), slice(None), *shifted)))
    return found


def random_start(graph: Graph, seed: int = 0) -> Numbers:
    rng = np.random.default_rng(seed)
    start: Numbers = {}
    for array in graph.of_kind(Kind.PARAMETER):
        start[array.name] = rng.integers(-1, 2, array.type.shape).astype(float)
    start["data.raw_output"] = rng.integers(0, 3, graph.shape("data.raw_output")).astype(float)
    classes = graph.shape("classifier.linear1.output")[1]
    start["data.labels_output"] = rng.integers(0, classes, graph.shape("data.labels_output")).astype(float)
    return start
