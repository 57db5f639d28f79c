"""The kinds of operators: their ports, what each is called in formulas, and what a drawing prints of them."""

from __future__ import annotations

from typing import NamedTuple


class KindRule(NamedTuple):
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # of both: ports that need not be there
    math: str = ""
    dists: tuple[str, ...] = ("dist_result",)


_CONNECTED = ("dist_input", "dist_filters", "dist_result")
_RECTS = ("read_rect", "write_rect")

KINDS: dict[str, KindRule] = {
    "source": KindRule((), ("raw_data", "labels"), math="images and their labels", dists=()),
    "locally_connected": KindRule(
        ("input", "filters"), ("output",), math="y[n,o,i,j] = sum_cuv W[o,0,0,c,u,v,i,j] x[n,c,i+u,j+v]",
        dists=_CONNECTED,
    ),
    "scalar_affine": KindRule(("input", "a", "b"), ("output",), math="y = a*(x+b), or a*x+b where attrs say so"),
    "nonlinearity": KindRule(("input",), ("output",), math="y = f(x)"),
    "linear": KindRule(
        ("input", "weights"), ("output",), math="z[n,k] = sum_cij V[k,c,i,j] h[n,c,i,j]", dists=_RECTS
    ),
    "softmax_cross_entropy": KindRule(
        ("input", "labels"), ("probability", "output"), math="p = softmax(z); loss = -sum_n log p[n,label[n]]"
    ),
    "evaluate": KindRule(("probability", "labels"), ("output",), math="4 numbers from p and labels"),
    "accuracy": KindRule(("input",), math="one number, on the host", dists=()),
    "softmax_cross_entropy_grad": KindRule(
        ("output.delta", "probability", "labels"), ("input.delta",), math="dz[n,k] += p[n,k] - (k == label[n])"
    ),
    "linear_grad": KindRule(
        ("output.delta", "input", "weights"), ("weights.delta", "input.delta"), math="dV += dz h; dh += dz V",
        dists=_RECTS,
    ),
    "nonlinearity_grad": KindRule(("output.delta", "input", "output"), ("input.delta",), math="dx += f'(x) dy"),
    "scalar_affine_grad": KindRule(
        ("output.delta", "input", "a", "b"), ("a.delta", "b.delta", "input.delta"), ("b",),
        math="dx += a dy; of a*(x+b): da += sum dy (x+b), db += a sum_n dy; of a*x+b: da += sum dy x, db += sum_n dy",
    ),
    "locally_connected_grad": KindRule(
        ("output.delta", "input", "filters"), ("filters.delta", "input.delta"), ("input.delta",),
        math="dW[o,0,0,c,u,v,i,j] += sum_n dy[n,o,i,j] x[n,c,i+u,j+v]; dx[n,c,i+u,j+v] += sum_o W dy",
        dists=_CONNECTED,
    ),
    "update": KindRule(("params", "gradient"), math="p <- p - rate*g, in place"),
    "set_zero": KindRule((), ("output",), math="g = 0, before others add to it", dists=()),
}  # fmt: skip
