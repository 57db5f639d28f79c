"""The kinds of operators: their ports, what each is called in formulas, and what a drawing prints of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class KindRule(NamedTuple):
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # of both: ports that need not be there
    math: str = ""
    dists: Mapping[str, str] = MappingProxyType({"dist_result": "output"})  # rects, and the port each is a part of
    dims: tuple[
        str, ...
    ] = ()  # "port: sizes"; one letter is one size, * is all of them. A gradient has those of its kind


_NONE: dict[str, str] = {}
_CONNECTED = {"dist_input": "input", "dist_filters": "filters"}
_BACKWARD = {"dist_result": "output.delta"}

KINDS: dict[str, KindRule] = {
    "source": KindRule(
        (), ("raw_data", "labels"), math="images and their labels", dists=_NONE,
        dims=("raw_data: ncij", "labels: n111"),
    ),
    "locally_connected": KindRule(
        ("input", "filters"), ("output",), math="y[n,o,i,j] = sum_cuv W[o,0,0,c,u,v,i,j] x[n,c,i+u,j+v]",
        dists=_CONNECTED | {"dist_result": "output"}, dims=("input: ncIJ", "filters: o11cuvij", "output: noij"),
    ),
    "scalar_affine": KindRule(
        ("input", "a", "b"), ("output",), math="y = a*(x+b), or a*x+b where attrs say so",
        dims=("input: ncij", "a: 1", "b: 1cij", "output: ncij"),
    ),
    "nonlinearity": KindRule(("input",), ("output",), math="y = f(x)", dims=("input: *", "output: *")),
    "linear": KindRule(
        ("input", "weights"), ("output",), math="z[n,k] = sum_cij V[k,c,i,j] h[n,c,i,j]",
        dists={"read_rect": "input", "write_rect": "output"}, dims=("input: ncij", "weights: kcij", "output: nk11"),
    ),
    "softmax_cross_entropy": KindRule(
        ("input", "labels"), ("probability", "output"), math="p = softmax(z); loss = -sum_n log p[n,label[n]]",
        dims=("input: nkij", "labels: n111", "probability: nkij", "output: 1111"),
    ),
    "evaluate": KindRule(
        ("probability", "labels"), ("output",), math="4 numbers from p and labels",
        dims=("probability: nkij", "labels: n111"),
    ),
    "accuracy": KindRule(("input",), math="one number, on the host", dists=_NONE),
    "softmax_cross_entropy_grad": KindRule(
        ("output.delta", "probability", "labels"), ("input.delta",), math="dz[n,k] += p[n,k] - (k == label[n])",
        dists={"dist_result": "input.delta"},
    ),
    "linear_grad": KindRule(
        ("output.delta", "input", "weights"), ("weights.delta", "input.delta"), math="dV += dz h; dh += dz V",
        dists={"read_rect": "output.delta", "write_rect": "input.delta"},
    ),
    "nonlinearity_grad": KindRule(
        ("output.delta", "input", "output"), ("input.delta",), math="dx += f'(x) dy", dists=_BACKWARD
    ),
    "scalar_affine_grad": KindRule(
        ("output.delta", "input", "a", "b"), ("a.delta", "b.delta", "input.delta"), ("b",),
        math="dx += a dy; of a*(x+b): da += sum dy (x+b), db += a sum_n dy; of a*x+b: da += sum dy x, db += sum_n dy",
        dists=_BACKWARD,
    ),
    "locally_connected_grad": KindRule(
        ("output.delta", "input", "filters"), ("filters.delta", "input.delta"), ("input.delta",),
        math="dW[o,0,0,c,u,v,i,j] += sum_n dy[n,o,i,j] x[n,c,i+u,j+v]; dx[n,c,i+u,j+v] += sum_o W dy",
        dists=_CONNECTED | _BACKWARD,
    ),
    "update": KindRule(
        ("params", "gradient"), math="p <- p - rate*g, in place", dists={"dist_result": "params"},
        dims=("params: *", "gradient: *"),
    ),
    "set_zero": KindRule((), ("output",), math="g = 0, before others add to it", dists=_NONE),
}  # fmt: skip
