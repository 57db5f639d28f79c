"""The records of a MegEngine profile as a `Graph`: ATen's operators where there is one that does the same.

Nodes are called by the ids of operators, values by those of variables. Constants become parameters, inputs come from
outside; workspaces and what lives on the host alone are not values. An operator that ATen has not, or that is used in a
way that ATen has no name for, becomes one without a rule, called `megengine.<type>`: it can be counted, but not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from ...errors import FormatError
from ...ir import Graph, Input, Kind, Node, Role, Source, TensorType, Value, check_graph
from ...profile.model import Shape
from ..form import Form
from .dump import MegEngineDump, OperatorFootprint, OpRecord, VarRecord

_DTYPES = {"Float32": "float32", "Float16": "float16", "BFloat16": "bfloat16", "Int32": "int32", "Int16": "int16"}
_DTYPES |= {"Int8": "int8", "Uint8": "uint8", "Byte": "uint8", "Bool": "bool"}
_BY_BYTES = {4: "float32", 2: "float16", 8: "float64", 1: "uint8"}  # where no dtype is recorded
_BOUNDARY = ("ImmutableTensor", "InputCallback", "OutputCallback", "Host2DeviceCopy", "SharedDeviceTensor")


def make_graph(dump: MegEngineDump) -> tuple[Graph | None, str]:
    """The forward graph, or None and why there is none."""
    graph = _Make(dump).graph()
    try:
        check_graph(graph)
    except FormatError as error:
        return None, f"no graph: {error.what}"
    return graph, ""


class _Make:
    def __init__(self, dump: MegEngineDump):
        self.dump = dump
        self.values: dict[str, Value] = {}
        self.shapes = self._shapes_by_readers()

    def graph(self) -> Graph:
        nodes, outputs = [], list[str]()
        for id in self.dump.sequence:
            op = self.dump.operators[id]
            if op.type == "OutputCallback":
                outputs += [name for name in op.inputs if name in self.values]
            elif op.type in _BOUNDARY:
                for name in op.outputs:
                    self._outside(self.dump.vars[name], op)
            elif (node := self._node(op)) is not None:
                nodes.append(node)
        read = {name for node in nodes for name in node.reads}
        outputs = outputs or [out for node in nodes for out in node.outputs if out not in read]
        return Graph(tuple(self.values.values()), tuple(nodes), tuple(dict.fromkeys(outputs)), (), self.dump.name)

    def _shapes_by_readers(self) -> dict[str, Shape]:
        """Shapes as the footprints of readers tell them: an input's is inferred by nobody."""
        found: dict[str, Shape] = {}
        for id, footprint in self.dump.footprints.items():
            inputs = self.dump.operators[id].inputs if id in self.dump.operators else ()
            for name, shape in zip(inputs, footprint.in_shapes, strict=False):
                found.setdefault(name, shape)
        return found

    def _outside(self, var: VarRecord, op: OpRecord) -> None:
        if var.bytes and not var.workspace:
            kind = Kind.PARAMETER if op.type == "ImmutableTensor" else Kind.INPUT
            target = op.name if kind is Kind.PARAMETER else None
            self.values[var.id] = Value(var.id, self._type(var), kind, target)

    def _type(self, var: VarRecord) -> TensorType:
        shape = var.shape if var.shape is not None else self.shapes.get(var.id)
        if shape is not None and (count := prod(shape)):
            dtype = _DTYPES.get(var.dtype or "") or _BY_BYTES.get(var.bytes // count, "")
            if dtype and (found := TensorType(shape, dtype)).bytes == var.bytes:
                return found
        return TensorType((var.bytes,), "uint8")

    def _node(self, op: OpRecord) -> Node | None:
        outputs = [self.dump.vars[v] for v in op.outputs]
        results = [v for v in outputs if not v.workspace and v.bytes]
        if not results:
            return None  # works on the host alone
        reads = [name for name in op.inputs if name in self.values]
        for var in results:
            alias = var.source if var.source in self.values else None
            self.values[var.id] = Value(var.id, self._type(var), Kind.ACTIVATION, None, alias)
        form = self._form(op, [self.values[name].type for name in reads], self.values[results[0].id].type)
        if len(results) > 1 or form is None or len(form.args) != len(reads):
            form = Form(f"megengine.{op.type}", "", tuple(f"input.{i}" for i in range(len(reads))))
        inputs = tuple(
            Input(arg, name, Role.PARAMETER if self.values[name].kind is Kind.PARAMETER else Role.DATA)
            for arg, name in zip(form.args, reads, strict=True)
        )
        return Node(
            op.id, form.op, inputs, tuple(v.id for v in results), MappingProxyType(dict(form.attrs)), form.target,
            source=Source(module=op.name), time_s=self._seconds(op.id),
        )  # fmt: skip

    def _seconds(self, id: str) -> float | None:
        spans = self.dump.device.get(id) or self.dump.host.get(id)
        return max(span.kernel_s for span in spans.values()) if spans else None

    def _form(self, op: OpRecord, types: list[TensorType], out: TensorType) -> Form | None:
        footprint, make = self.dump.footprints.get(op.id), _FORMS.get(op.type)
        return make(footprint, types, out) if footprint is not None and make is not None else None


# Forms ----------------------------------------------------------------------------------------------------------------


def _pairs(param: Mapping[str, Any], *names: str) -> list[list[int]] | None:
    """`stride_h` and `stride_w` as [h, w]; None where one is not a whole number."""
    found = [[param.get(f"{name}_h"), param.get(f"{name}_w")] for name in names]
    sound = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**31 for pair in found for n in pair)
    return found if sound else None  # type: ignore[return-value]


def _convolution(footprint: OperatorFootprint, types: list[TensorType], out: TensorType) -> Form | None:
    param = footprint.param
    sides = _pairs(param, "stride", "pad", "dilate")
    usual = (param.get("mode"), param.get("format"), param.get("sparse")) == ("CROSS_CORRELATION", "NCHW", "DENSE")
    if sides is None or not usual or len(types) not in (2, 3):
        return None
    attrs: dict[str, Any] = {"groups": 1} | dict(zip(("stride", "padding", "dilation"), sides, strict=True))
    if len(types) == 2:
        attrs["bias"] = None
    return Form("conv2d", "aten.conv2d.default", ("input", "weight", "bias")[: len(types)], attrs)


def _pooling(footprint: OperatorFootprint, types: list[TensorType], out: TensorType) -> Form | None:
    param, sides = footprint.param, _pairs(footprint.param, "window", "stride", "pad")
    if sides is None or param.get("format") != "NCHW":
        return None
    attrs: dict[str, Any] = dict(zip(("kernel_size", "stride", "padding"), sides, strict=True))
    if param.get("mode") == "MAX":
        return Form("max_pool2d", "aten.max_pool2d.default", ("self",), attrs)
    if str(param.get("mode")).startswith("AVERAGE"):
        attrs["count_include_pad"] = param["mode"] == "AVERAGE"
        return Form("avg_pool2d", "aten.avg_pool2d.default", ("self",), attrs)
    return None


def _elementwise(footprint: OperatorFootprint, types: list[TensorType], out: TensorType) -> Form | None:
    op = _ELEMENTWISE.get(str(footprint.param.get("mode")))
    if op is None:
        return None
    fused = op in _FUSED
    target = "" if fused else f"aten.{op}.{_OVERLOADS.get(op, 'Tensor' if len(types) == 2 else 'default')}"
    return Form(op, target, ("self", "other")[: len(types)])


def _reduction(footprint: OperatorFootprint, types: list[TensorType], out: TensorType) -> Form | None:
    axis, mode = footprint.param.get("axis"), footprint.param.get("mode")
    op = {"MAX": "amax", "MIN": "amin", "SUM": "sum", "MEAN": "mean"}.get(str(mode))
    if op is None or not types or isinstance(axis, bool) or not isinstance(axis, int):
        return None
    if not -len(types[0].shape) <= axis < len(types[0].shape):
        return None
    keep = len(out.shape) == len(types[0].shape)
    overload = "default" if op in ("amax", "amin") else "dim_IntList" if op == "sum" else "dim"
    return Form(op, f"aten.{op}.{overload}", ("self",), {"dim": [axis], "keepdim": keep})


def _matrix_product(footprint: OperatorFootprint, types: list[TensorType], out: TensorType) -> Form | None:
    a, b = footprint.param.get("transposeA"), footprint.param.get("transposeB")
    if a is not False or b not in (True, False) or any(len(t.shape) != 2 for t in types):
        return None
    if b:
        return Form("linear", "aten.linear.default", ("input", "weight"), {"bias": None})
    return Form("mm", "aten.mm.default", ("self", "mat2"))


_FUSED = ("add_relu", "add_sigmoid", "add_tanh")
_ELEMENTWISE = {
    "ADD": "add", "SUB": "sub", "MUL": "mul", "TRUE_DIV": "div", "MAX": "maximum", "MIN": "minimum", "EXP": "exp",
    "LOG": "log", "RELU": "relu", "SIGMOID": "sigmoid", "TANH": "tanh", "NEGATE": "neg", "ABS": "abs",
    "FUSE_ADD_RELU": "add_relu", "FUSE_ADD_SIGMOID": "add_sigmoid", "FUSE_ADD_TANH": "add_tanh",
}  # fmt: skip
_OVERLOADS = {"maximum": "default", "minimum": "default"}
_FORMS: dict[str, Callable[[OperatorFootprint, list[TensorType], TensorType], Form | None]] = {
    "ConvolutionForward": _convolution,
    "PoolingForward": _pooling,
    "Elemwise": _elementwise,
    "Reduce": _reduction,
    "MatrixMul": _matrix_product,
    "Reshape": lambda _, __, out: Form("reshape", "aten.reshape.default", ("self",), {"shape": list(out.shape)}),
}
