"""Capture an `nn.Module` with torch.export on fake tensors: shapes of any size cost nothing.

torch.export gives ATen calls as the module made them (`conv2d`, `batch_norm`, `relu_`). Here they become nodes:
in-place forms are replaced by their pure ones (`functional.py`), each used result of a call with several gets a
node of its own, and every node keeps the module path and the line of the user's code it came from.
"""

from __future__ import annotations

import operator
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ..errors import CaptureError, ModelError, TilegradError
from ..ir import Build, Graph, Kind, Source, TensorType, check_graph
from ..ops import aten
from .functional import Aliases

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parent.parent)
_SPLITS = {"split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"}
_KINDS = {
    InputKind.PARAMETER: Kind.PARAMETER,
    InputKind.BUFFER: Kind.BUFFER,
    InputKind.CONSTANT_TENSOR: Kind.CONSTANT,
    InputKind.USER_INPUT: Kind.INPUT,
}


@dataclass(frozen=True)
class Captured:
    """A graph, and what it takes to run it in place of the module."""

    graph: Graph
    program: ExportedProgram = field(repr=False)
    outputs: tuple[Any, ...] = ()  # graph output index, or a constant that the module returns

    @property
    def constants(self) -> dict[str, Tensor]:
        """Tensors that the module made while it was traced, by value name."""
        table = self.program.constants
        return {v.name: table[v.target] for v in self.graph.of_kind(Kind.CONSTANT) if v.target in table}


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor output stands among the module's outputs."""

    index: int


def capture(module: nn.Module, *inputs: Any) -> Graph:
    """The graph of `module` for these inputs: tensors, or shapes such as `(1, 3, 65536, 65536)`."""
    return export_module(module, inputs).graph


def export_module(module: nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Captured:
    """Capture for execution: the graph, torch's program, and how outputs are put together."""
    try:
        fakes, keywords = _fake_inputs(module, inputs, dict(kwargs or {}))
        program = torch.export.export(module, fakes, keywords)
    except TilegradError:
        raise
    except Exception as error:  # whatever the user's code or torch.export raises
        raise _explain(module, error) from error
    return _Importer(program, type(module).__name__).run()


def _fake_inputs(
    module: nn.Module, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    reference = next(iter(module.parameters()), torch.empty(0))
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(item: Any) -> Any:
        if isinstance(item, Tensor):
            with mode:
                # Parameters may live on another device than a large image: nodes run where parameters are.
                return torch.empty(item.shape, dtype=item.dtype, device=reference.device)
        if isinstance(item, torch.Size) or (
            isinstance(item, tuple) and item and all(isinstance(n, int) and not isinstance(n, bool) for n in item)
        ):
            with mode:
                return torch.empty(item, dtype=reference.dtype, device=reference.device)
        return item

    return tuple(map(fake, inputs)), {name: fake(item) for name, item in kwargs.items()}


class _Importer:
    """Walks the exported program once, in order."""

    def __init__(self, program: ExportedProgram, name: str):
        self.program = program
        self.build = Build(name)
        self.aliases = Aliases(self.build)
        self.several: dict[torch.fx.Node, list[tuple[int, ...]]] = {}  # calls with more than one result

    def run(self) -> Captured:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        outputs: tuple[Any, ...] = ()
        for node in self.program.graph.nodes:
            self.build.source = source_of(node)
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name])
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = tuple(self._outputs(node))
        return self._finish(outputs)  # what is left are parts of control flow, refused where it is called

    def _placeholder(self, node: torch.fx.Node, spec: Any) -> None:
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            return  # a number or None: torch.export has already put it where it is used
        if spec.kind not in _KINDS:
            raise CaptureError(f"inputs of kind {spec.kind} are not supported", where=node.name)
        if isinstance(self.program.constants.get(spec.target), FakeTensor):
            raise CaptureError(
                "the model makes a tensor behind the back of torch.export",
                where=str(source_of(next(iter(node.users), node))),
                hint="detach() instead of .data, and no numpy in forward",
            )
        name = self.build.value(node.name, self._type(value), _KINDS[spec.kind], spec.target)
        self.aliases.define(node, name)

    def _call(self, node: torch.fx.Node) -> None:
        target = node.target
        if target is operator.getitem:
            self._getitem(node)
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError(
                f"the model uses '{target}', which is not a plain tensor operator",
                where=self._first_line(node),
                hint="move torch.no_grad, autocast or control flow blocks out of forward",
            )
        result = node.meta.get("val")
        if isinstance(result, list | tuple):
            self.several[node] = [tuple(t.shape) if isinstance(t, Tensor) else () for t in result]
        elif isinstance(result, Tensor):
            inputs, attrs = self._arguments(node, target)
            self.aliases.call(node, target, inputs, attrs, self._type(result))

    def _first_line(self, node: torch.fx.Node) -> str:
        """Where a block of control flow was written: torch.export remembers lines only for what is inside it."""
        blocks = [n.target for n in node.all_input_nodes if n.op == "get_attr" and isinstance(n.target, str)]
        inside = [n for name in blocks for n in getattr(self.program.graph_module, name).graph.nodes]
        return next((where for n in (node, *inside) if (where := str(source_of(n)))), "")

    def _getitem(self, node: torch.fx.Node) -> None:
        call, index = node.args
        assert isinstance(call, torch.fx.Node) and isinstance(index, int)
        target = call.target
        assert isinstance(target, torch._ops.OpOverload)
        if not node.users:
            return
        inputs, attrs = self._arguments(call, target)
        base, first = target._schema.name.split("::")[1], call.args[0]
        type_ = self._type(node.meta["val"])
        if base == "broadcast_tensors":  # each result is one of the tensors, expanded
            assert isinstance(first, list | tuple)
            base, target, first = "expand", torch.ops.aten.expand.default, first[index]
            inputs, attrs = [("self", inputs[index][1])], {"size": list(type_.shape)}
        elif base in _SPLITS:
            dim = int(attrs.get("dim") or 0)
            start = sum(shape[dim] for shape in self.several[call][:index])
            attrs = {"dim": dim, "start": start, "length": self.several[call][index][dim]}
        elif base == "unbind":
            attrs = {"dim": int(attrs.get("dim") or 0), "index": index}
        else:
            attrs |= {"output": index}
        self.aliases.define(node, self.build.emit(base, inputs, type_, attrs, str(target), node.name))
        self.aliases.view(node, first, (target, inputs, attrs, type_))

    def _arguments(
        self, node: torch.fx.Node, target: torch._ops.OpOverload
    ) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        """Tensor arguments by name, and the others as plain attributes; what equals its default is kept out."""
        names = [argument.name for argument in target._schema.arguments]
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        inputs: list[tuple[str, str]] = []
        attrs: dict[str, Any] = {}
        for name, item in given.items():
            if isinstance(item, torch.fx.Node):
                inputs.append((name, self.aliases.value(item)))
            elif isinstance(item, list | tuple) and any(isinstance(each, torch.fx.Node) for each in item):
                # some may be None: x[:, index] is index(x, [None, index])
                given_at = [(k, each) for k, each in enumerate(item) if isinstance(each, torch.fx.Node)]
                inputs += [(f"{name}.{k}", self.aliases.value(each)) for k, each in given_at]
            else:
                attrs[name] = self._encode(item)
        return inputs, attrs

    def _type(self, tensor: Tensor) -> TensorType:
        where = str(self.build.source)
        if tensor.layout is not torch.strided:
            raise CaptureError("the model makes a sparse tensor", where=where, hint="dense tensors only")
        if not all(isinstance(n, int) for n in tensor.shape):
            raise CaptureError(
                "the model makes a tensor whose shape depends on the content of another",
                where=where,
                hint="torch.where instead of indexing by a mask, or keep this part outside the wrapped module",
            )
        return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def _encode(self, item: Any) -> Any:
        try:
            return aten.encode(item)
        except TypeError as error:
            raise CaptureError(str(error), where=str(self.build.source)) from None

    def _outputs(self, node: torch.fx.Node) -> list[Any]:
        flat = node.args[0]
        assert isinstance(flat, list | tuple)
        return [self.aliases.value(item) if isinstance(item, torch.fx.Node) else _Constant(item) for item in flat]

    def _finish(self, outputs: Sequence[Any]) -> Captured:
        tensors = [name for name in outputs if isinstance(name, str)]
        self.build.updates += self.aliases.updates()
        graph = self.build.graph(tensors)
        check_graph(graph)
        slots = iter(range(len(tensors)))
        layout = tuple(Slot(next(slots)) if isinstance(item, str) else item.item for item in outputs)
        return Captured(graph, self.program, layout)


@dataclass(frozen=True, slots=True)
class _Constant:
    item: Any


def source_of(node: torch.fx.Node) -> Source:
    """Module path and line of the user's code, from what torch.export remembers."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((path for path, _ in reversed(list(stack.values()))), "")
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    users = [(file, line) for file, line in frames if not file.startswith((_TORCH, "<"))]
    return Source(path, f"{Path(users[-1][0]).name}:{users[-1][1]}" if users else "")


def _explain(module: nn.Module, error: Exception) -> TilegradError:
    """One message for what torch.export raises: which line of the user's model, and what to do."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not f.filename.startswith((_TORCH, _OURS, "<"))]
    theirs = [f for f in frames if "/tilegrad/models/" in f.filename] + users
    where = f"{theirs[-1].filename}:{theirs[-1].lineno}: {theirs[-1].line}" if theirs else type(module).__name__
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    kind = type(error).__name__
    if "DataDependent" in kind or "data-dependent" in str(error) or "GuardOnData" in kind:
        return CaptureError(
            f"the model branches on the content of a tensor: {reason}",
            where=where,
            hint="torch.where instead of if, or keep this part outside the wrapped module",
        )
    if isinstance(error, RuntimeError | ValueError | IndexError | TypeError) and "export" not in kind.lower():
        return ModelError(
            f"the model does not run on these inputs: {reason}",
            where=where,
            hint="check the number of channels, the rank and the size of the input",
        )
    return CaptureError(f"torch.export cannot capture the model: {reason}", where=where)
