"""Capture an `nn.Module` with torch.export on fake tensors: shapes of any size cost nothing.

torch.export gives ATen calls as the module made them (`conv2d`, `batch_norm`, `relu_`). Here they become nodes:
in-place forms are replaced by their pure ones (`functional.py`), each used result of a call with several gets a
node of its own, and every node keeps the module path and the line of the user's code it came from.
"""

from __future__ import annotations

import operator
import re
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind

from ...errors import CaptureError, TilegradError
from ...ir import Build, Graph, Kind, Source, TensorType, check_graph
from ...ops import aten, find
from ...ops.function import forget
from ...torch_private import FakeTensor, OpOverload
from .arguments import argument_names, autocast_dtype, check_ready, device_of, fake_inputs, from_shapes
from .explain import explain, is_ours
from .functional import Aliases
from .reach import HIDDEN, TensorSlot, contents
from .state import Snapshot, Write
from .trace import INNER, LOCK, Given, Returned, Traced, trace
from .trees import fill, take

_SPLITS = {"split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"}
_KINDS = {
    InputKind.PARAMETER: Kind.PARAMETER,
    InputKind.BUFFER: Kind.BUFFER,
    InputKind.CONSTANT_TENSOR: Kind.CONSTANT,
    InputKind.USER_INPUT: Kind.INPUT,
}


@dataclass(frozen=True, weakref_slot=True, slots=True)
class Captured:
    """A graph, and what it takes to run it in place of the module."""

    graph: Graph
    user_inputs: tuple[str, ...] = ()  # the value of every tensor among the arguments
    result: Any = field(default=None, repr=False)  # what the module returns: a tree over `sources`
    sources: tuple[Any, ...] = field(default=(), repr=False)
    slots: Mapping[str, TensorSlot] = field(default_factory=dict, repr=False)  # by value: where the module holds it now
    constants: Mapping[str, Tensor] = field(default_factory=dict, repr=False)  # made while it was traced
    writes: tuple[Write, ...] = field(default=(), repr=False)
    start: Snapshot | None = field(default=None, repr=False)  # the module's state that is baked in

    def bind(self, flat: Sequence[Any], module: nn.Module | None = None) -> dict[str, Any]:
        """What every outside value is for a call with these leaves of arguments. `module`: another of the same
        structure to take parameters and buffers from."""
        found = dict(zip(self.user_inputs, flat, strict=True))
        if module is None:
            found |= zip(self.slots, contents(self.slots.values()), strict=True)
        else:
            held = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
            named = {name: tensor for each in held for name, tensor in each}
            found |= {name: named[str(self.graph.value[name].target)] for name in self.slots}
        found |= self.constants
        return {name: found[name] for name in self.graph.outside}

    def graded(self, flat: Sequence[Any]) -> list[str]:
        """The outside values that need a gradient."""
        return sorted(name for name, t in self.bind(flat).items() if isinstance(t, Tensor) and t.requires_grad)

    def assemble(self, outputs: Sequence[Any], flat: Sequence[Any], bound: Mapping[str, Any] | None = None) -> Any:
        """The module's own result, after what it writes into its attributes is written there. `flat`: the tensors among
        the arguments; `bound`: what `bind` gave."""
        values = [self._value(source, outputs, flat, bound or {}) for source in self.sources]
        for write in self.writes:
            write.apply(values)
        return fill(self.result, values)

    @property
    def arrangement(self) -> Any:
        """What the module returns, with the numbers of the graph's outputs in their places."""
        return fill(self.result, [s.index if isinstance(s, Returned) else None for s in self.sources])

    def _value(self, source: Any, outputs: Sequence[Any], flat: Sequence[Any], bound: Mapping[str, Any]) -> Any:
        if isinstance(source, TensorSlot):
            same = (n for n, slot in self.slots.items() if slot.holder is source.holder and slot.key == source.key)
            name = next(same, None)
            return bound[name] if name is not None and name in bound else source.get()
        if isinstance(source, Returned):
            return outputs[source.index]
        return flat[source.index] if isinstance(source, Given) else source


def capture(module: nn.Module, *inputs: Any) -> Graph:
    """The graph of `module` for these inputs: tensors, or shapes such as `(1, 3, 65536, 65536)`."""
    return export_module(module, inputs).graph


def export_module(module: nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Captured:
    """Capture for execution. Shapes stand for tensors."""
    args, keywords = from_shapes(module, inputs, kwargs or {})
    flat, names = list[Tensor](), list[str]()
    tree = take((args, keywords), flat, names=names)
    return export_call(module, tree, flat, argument_names(module, names))


def export_call(
    module: nn.Module,
    tree: Any,
    flat: Sequence[Tensor],
    names: Sequence[str],
    away: Collection[int] = (),
    streamed: bool = False,
) -> Captured:
    """Capture a call: the graph, where its tensors are, and how outputs are put together. `tree`: arguments and
    keywords over the tensors `flat`, which are called `names`; `away`: those that lie elsewhere, by number;
    `streamed`: outputs will be written elsewhere, box by box."""
    check_ready(module)
    with LOCK:
        try:
            start = Snapshot.take(module)
            traced = trace(module, tree, fake_inputs(module, flat), names)
            return _Importer(traced, type(module).__name__, device_of(module, flat), start).run(away, streamed)
        except TilegradError:
            raise
        except Exception as error:  # whatever the user's code or torch.export raises
            raise explain(module, error) from error


@dataclass(frozen=True)
class _Region:
    """What holds for a stretch of the program: are gradients recorded, and does autocast choose dtypes?"""

    graded: bool = True
    autocast: bool = False


class _Importer:
    """Walks the exported program once, in order."""

    def __init__(self, traced: Traced, name: str, device: torch.device, start: Snapshot):
        self.traced, self.program, self.device, self.start = traced, traced.program, device, start
        self.build = Build(name)
        self.aliases = Aliases(self.build)
        self.several: dict[torch.fx.Node, list[Any]] = {}  # calls with more than one result
        self.region = _Region(autocast=autocast_dtype(device) is not None)
        self.slots: dict[str, TensorSlot] = {}
        self.constants: dict[str, Tensor] = {}
        self.statistics: set[str] = set()  # buffers that a norm layer has written to
        self.casts: dict[tuple[str, str], str] = {}  # of a value to a dtype

    def run(self, away: Collection[int], streamed: bool) -> Captured:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        outputs: Sequence[Any] = ()
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name])
            else:
                outputs = self._step(node, self.program.graph_module) or outputs
        return self._finish(outputs, away, streamed)

    def _step(self, node: torch.fx.Node, owner: torch.fx.GraphModule) -> Sequence[Any] | None:
        """One node; the output node gives what is returned."""
        self.build.source = source_of(node)
        if node.op == "call_function":
            self._call(node, owner)
        if node.op != "output":
            return None
        flat = node.args[0]
        return flat if isinstance(flat, list | tuple) else (flat,)

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
                hint="torch operators, and no numpy in forward",
            )
        target, kind = spec.target, _KINDS[spec.kind]
        inner = f"{INNER}."
        if target is not None and target.startswith(HIDDEN) and not node.users:
            return  # reached, but not used
        slot = self.traced.slots.get(target) if target is not None else None
        if slot is not None:
            kind = Kind.PARAMETER if slot.get().requires_grad or kind is Kind.PARAMETER else Kind.BUFFER
        if target is not None and target.startswith(inner):
            target = target.removeprefix(inner)
        name = re.sub(f"^([pbc])_{INNER}_", r"\1_", node.name)
        name = self.build.value(name, self._type(value), kind, target)
        if slot is not None:
            self.slots[name] = slot
        elif kind is Kind.CONSTANT and spec.target in self.program.constants:
            self.constants[name] = self.program.constants[spec.target]
        self.aliases.define(node, name)

    def _call(self, node: torch.fx.Node, owner: torch.fx.GraphModule) -> None:
        target = node.target
        if target is operator.getitem:
            self._getitem(node)
            return
        if not isinstance(target, OpOverload):
            self._enter(node, owner)
            return
        result = node.meta.get("val")
        if isinstance(result, list | tuple):
            self.several[node] = list(result)
            if target._schema.is_mutable:
                what = f"'{target._schema.name}' writes to several tensors"
                raise CaptureError(what, where=str(self.build.source), hint="operators that return new tensors")
        elif isinstance(result, Tensor):
            inputs, attrs = self._arguments(node, target)
            type_ = self._type(result)
            self._check_statistics(target._schema.name.split("::")[1], inputs, attrs)
            inputs = self._cast(target, inputs, attrs, type_)
            self.aliases.call(node, target, inputs, attrs, type_)

    def _check_statistics(self, name: str, inputs: list[tuple[str, str]], attrs: dict[str, Any]) -> None:
        """torch's norms write running statistics without saying so: nobody else may read them afterwards."""
        norm = name in ("batch_norm", "instance_norm")
        late = [value for _, value in inputs if value in self.statistics and not norm]
        if late:
            what = f"the model reads '{self.build.values[late[0]].target}' after its norm layer has written to it"
            raise CaptureError(
                what, where=str(self.build.source), hint="read it before the layer, or outside of forward"
            )
        if norm and attrs.get("training", attrs.get("use_input_stats")):
            self.statistics |= {value for arg, value in inputs if arg.startswith("running")}

    def _enter(self, node: torch.fx.Node, owner: torch.fx.GraphModule) -> None:
        """A block under torch.no_grad, enable_grad or autocast: its calls are taken into the graph as they stand."""
        name, args = str(node.target), list(node.args)
        if name == "wrap_with_set_grad_enabled":
            region = replace(self.region, graded=bool(args[0]))
            block, operands = args[1], args[2:]
        elif name == "wrap_with_autocast":
            ours = args[0] == self.device.type
            region = replace(self.region, autocast=bool(args[2])) if ours else self.region
            block, operands = args[4], args[5:]
        else:
            raise CaptureError(
                f"the model uses '{node.target}', which is not a plain tensor operator",
                where=self._first_line(node, owner),
                hint="keep control flow (torch.cond, while_loop, map) outside of the wrapped module",
            )
        assert isinstance(block, torch.fx.Node)
        inner = getattr(owner, str(block.target))
        before, self.region = self.region, region
        self.aliases.graded = region.graded
        given, returned = iter(operands), None
        for each in inner.graph.nodes:
            if each.op == "placeholder":
                self.aliases.same(each, next(given))
            else:
                returned = self._step(each, inner) or returned
        self.region = before
        self.aliases.graded = before.graded
        self.several[node] = list(returned or ())

    def _first_line(self, node: torch.fx.Node, owner: torch.fx.GraphModule) -> str:
        """Where a block of control flow was written: torch.export remembers lines only for what is inside it."""
        blocks = [n.target for n in node.all_input_nodes if n.op == "get_attr" and isinstance(n.target, str)]
        inside = [n for name in blocks for n in getattr(owner, name).graph.nodes]
        return next((where for n in (node, *inside) if (where := str(source_of(n)))), "")

    def _getitem(self, node: torch.fx.Node) -> None:
        call, index = node.args
        assert isinstance(call, torch.fx.Node) and isinstance(index, int)
        target = call.target
        if not isinstance(target, OpOverload):  # a block
            if isinstance(inner := self.several[call][index], torch.fx.Node):
                self.aliases.same(node, inner)
            return
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
            start = sum(piece.shape[dim] for piece in self.several[call][:index])
            attrs = {"dim": dim, "start": start, "length": self.several[call][index].shape[dim]}
        elif base == "unbind":
            attrs = {"dim": int(attrs.get("dim") or 0), "index": index}
        else:
            attrs |= {"output": index}
            inputs = self._cast(target, inputs, attrs, type_)
        self.aliases.names[node] = self.aliases.emit(base, inputs, type_, attrs, str(target), node.name)
        self.aliases.view(node, first, (target, inputs, attrs, type_))

    def _cast(
        self, target: OpOverload, inputs: list[tuple[str, str]], attrs: dict[str, Any], type_: TensorType
    ) -> list[tuple[str, str]]:
        """What autocast does, made plain: where an operator gives another dtype under it than without, or takes what it
        otherwise would not, its inputs are cast to what it gives."""
        if not self.region.autocast or not type_.floating:
            return inputs
        base = target._schema.name.split("::")[1]
        probe = Build("probe")
        for _, value in inputs:
            if value not in probe.values:
                probe.values[value] = self.build.values[value]
        probe.emit(base, inputs, type_, attrs, str(target))
        types = [self.build.type(v) for _, v in inputs]
        mixed = find(probe.nodes[0]).dense and len({t.dtype for t in types if t.floating}) > 1
        if not mixed and aten.natural_dtype(probe.nodes[0], types) == type_.dtype:
            return inputs
        return [(arg, self._to(value, type_.dtype)) for arg, value in inputs]

    def _to(self, value: str, dtype: str) -> str:
        type_ = self.build.type(value)
        if not type_.floating or type_.dtype == dtype:
            return value
        if (value, dtype) not in self.casts:
            cast = TensorType(type_.shape, dtype)
            attrs = {"dtype": {"dtype": dtype}}
            self.casts[value, dtype] = self.aliases.emit("to", [("self", value)], cast, attrs, "aten.to.dtype")
        return self.casts[value, dtype]

    def _arguments(self, node: torch.fx.Node, target: OpOverload) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        """Tensor arguments by name, and the others as plain attributes; what equals its default is kept out."""
        names = [argument.name for argument in target._schema.arguments]
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        inputs: list[tuple[str, str]] = []
        attrs: dict[str, Any] = {}
        for name, item in given.items():
            if isinstance(item, torch.fx.Node):
                inputs.append((name, self.aliases.read(item)))
            elif isinstance(item, list | tuple) and any(isinstance(each, torch.fx.Node) for each in item):
                # some may be None: x[:, index] is index(x, [None, index])
                given_at = [(k, each) for k, each in enumerate(item) if isinstance(each, torch.fx.Node)]
                inputs += [(f"{name}.{k}", self.aliases.read(each)) for k, each in given_at]
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

    def _finish(self, returned: Sequence[Any], away: Collection[int], streamed: bool) -> Captured:
        outputs = [self.aliases.value(item) for item in returned]
        self.build.updates += self.aliases.updates()
        specs = [spec for spec in self.program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
        graph = self.build.graph(outputs)
        graph = graph.with_away({specs[at].arg.name for at in away} | (_last_images(graph) if streamed else set()))
        check_graph(graph)
        traced = self.traced
        captured = Captured(
            graph, tuple(spec.arg.name for spec in specs), traced.result, traced.sources, self.slots, self.constants,
            tuple(traced.writes), self.start,
        )  # fmt: skip
        weakref.finalize(captured, forget, tuple(traced.tokens))
        return captured


def _last_images(graph: Graph) -> set[str]:
    """Outputs with axes of an image that nothing else reads and that have memory of their own."""
    made = [graph.value[name] for name in graph.outputs if name in graph.producer and not graph.consumers[name]]
    new = {new for _, new in graph.updates}
    return {v.name for v in made if v.alias is None and len(v.type.shape) > 2 and v.name not in new}


def source_of(node: torch.fx.Node) -> Source:
    """Module path and line of the user's code, from what torch.export remembers."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((path for path, _ in reversed(list(stack.values()))), "").removeprefix(INNER).removeprefix(".")
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    users = [(file, line) for file, line in frames if not is_ours(file)]
    return Source(path, f"{Path(users[-1][0]).name}:{users[-1][1]}" if users else "")
