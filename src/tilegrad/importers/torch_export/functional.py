"""Make a traced program pure: in-place writes become new values, seen through every alias.

`relu_(x)` gives a value that replaces `x` from there on. A write into a slice (`x[:, 0] = 0`) is written back to the
base with the matching scatter, and older views of that base are taken again when they are next used.

Where gradients are not recorded (`torch.no_grad`) calls read their inputs detached. A write there changes a value and
not where its gradient goes: `replaced` has the new content and passes its gradient to the old value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import CaptureError
from ...ir import Build, Kind, TensorType

FxNode = torch.fx.Node
Recipe = tuple[Any, list[tuple[str, str]], dict[str, Any], TensorType]  # how to take a view again
_SAME = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}  # out of training: their input itself
# Views that keep all elements in their order, so that a write into them is a write into their base, reshaped.
_RESHAPES = _SAME | {
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view", "view_as", "reshape_as", "alias",
    "detach", "to", "contiguous", "type_as", "lift_fresh",
}  # fmt: skip
_PIECES = {"split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", "narrow"}
# In-place forms whose pure form has another name.
_PURE = {"zero_": "zeros_like", "fill_": "full_like", "__iand__": "__and__", "__ior__": "__or__", "__ixor__": "__xor__"}
_NEW = {
    "empty": torch.ops.aten.zeros.default,
    "new_empty": torch.ops.aten.zeros.default,
    "new_zeros": torch.ops.aten.zeros.default,
    "new_ones": torch.ops.aten.ones.default,
    "new_full": torch.ops.aten.full.default,
}
_LIKE = {
    "expand_as": torch.ops.aten.expand.default,
    "view_as": torch.ops.aten.view.default,
    "reshape_as": torch.ops.aten.reshape.default,
    "type_as": torch.ops.aten.to.dtype,
}
# Draws in place, and the form that gives a new tensor.
_DRAWN = {
    ("bernoulli_", "float"): ("bernoulli", "aten.bernoulli.p"),
    ("normal_", "default"): ("normal_functional", "aten.normal_functional.default"),
}


class Aliases:
    """Which value each traced node stands for now."""

    def __init__(self, build: Build):
        self.build = build
        self.names: dict[FxNode, str] = {}
        self.base: dict[FxNode, FxNode] = {}  # view -> what it is a view of
        self.recipe: dict[FxNode, Recipe] = {}
        self.stale: set[FxNode] = set()
        self.outside: dict[FxNode, str] = {}
        self.written: dict[str, FxNode] = {}  # outside values that were written to
        self.graded = True  # are gradients recorded?
        self.quiet: set[str] = set()  # values made while they were not
        self.detached: dict[str, str] = {}

    def define(self, node: FxNode, name: str) -> None:
        """A value from outside."""
        self.names[node] = self.outside[node] = name

    def same(self, node: FxNode, other: Any) -> None:
        """`node` is another name for what `other` is: at the borders of a block."""
        if isinstance(other, FxNode):
            self.names[node], self.base[node] = self.value(other), other

    def emit(
        self,
        op: str,
        inputs: Sequence[tuple[str, str]],
        type_: TensorType,
        attrs: dict[str, Any] | None = None,
        target: str = "",
        name: str | None = None,
    ) -> str:
        found = self.build.emit(op, inputs, type_, attrs, target, name)
        if not self.graded:
            self.quiet.add(found)
        return found

    def read(self, node: FxNode) -> str:
        """The value a call reads: detached where gradients are not recorded."""
        name = self.value(node)
        if not self._unrecorded(name):
            return name
        if name not in self.detached:
            self.detached[name] = self.emit(
                "detach", [("self", name)], self.build.type(name), {}, "aten.detach.default"
            )
        return self.detached[name]

    def value(self, node: FxNode) -> str:
        if node not in self.names:
            what = f"the model uses '{node.name}', which is not a tensor but depends on one"
            hint = "keep it a tensor: no .item() or .tolist() in forward"
            raise CaptureError(what, where=str(self.build.source), hint=hint)
        if node in self.stale:
            self.stale.discard(node)
            base = self.value(self.base[node])
            if node in self.recipe:
                target, inputs, attrs, type_ = self.recipe[node]
                fresh = [(inputs[0][0], base), *inputs[1:]]
                self.names[node] = self.build.emit(_base_name(target), fresh, type_, attrs, str(target), node.name)
            else:  # the result of an in-place call is the very tensor it wrote to
                self.names[node] = base
        return self.names[node]

    def call(
        self, node: FxNode, target: Any, inputs: list[tuple[str, str]], attrs: dict[str, Any], type_: TensorType
    ) -> None:
        """Add a call; where it writes in place, let everyone who shares the memory see it."""
        name = _base_name(target)
        if name in _NEW:  # reads no input; an empty tensor is filled soon, and zero until then
            fill = {"fill_value": attrs["fill_value"]} if name == "new_full" else {}
            device = node.meta["val"].device
            size = {"size": list(type_.shape), "dtype": {"dtype": type_.dtype}, "device": {"device": str(device)}}
            target, inputs, attrs = _NEW[name], [], size | fill
        elif name == "empty_like":
            attrs.pop("memory_format", None)
            target = torch.ops.aten.zeros_like.default
        if name in _LIKE:  # of the other tensor only the type counts
            target, inputs = _LIKE[name], inputs[:1]
            key = "dtype" if name == "type_as" else "shape" if name == "reshape_as" else "size"
            attrs = {key: {"dtype": type_.dtype} if key == "dtype" else list(type_.shape)}
        if target._schema.is_mutable:
            self._in_place(node, target, inputs, attrs, type_)
        else:
            self.names[node] = self.emit(_base_name(target), inputs, type_, attrs, str(target), node.name)
            self.view(node, node.args[0] if node.args else None, (target, inputs, attrs, type_))

    def view(self, node: FxNode, base: Any, recipe: Recipe) -> None:
        """Remember that `node` shares the memory of `base`, if it does."""
        name = _base_name(recipe[0])
        asleep = name in _SAME and not recipe[2].get("train")
        shared = isinstance(base, FxNode) and _storage(node) == _storage(base) and name != "lift_fresh_copy"
        if asleep or shared:
            self.base[node], self.recipe[node] = base, recipe

    def _in_place(
        self, node: FxNode, target: Any, inputs: list[tuple[str, str]], attrs: dict[str, Any], type_: TensorType
    ) -> None:
        name, overload = _base_name(target), target._overloadname
        written = node.args[0] if node.args else None
        if name == "copy_":
            new = self._copy(inputs, type_)
        elif "out" in node.kwargs:
            written = node.kwargs["out"]
            pure = self._without_out(target)
            new = self.emit(name, [i for i in inputs if i[0] != "out"], type_, attrs, pure, node.name)
        else:
            pure = _PURE.get(name, name[:-1])
            overload = "default" if pure.endswith("_like") else overload
            if name == "fill_" and len(inputs) > 1:  # filled with a scalar tensor
                new = self._copy(inputs, type_)
            else:
                attrs = {"fill_value": attrs["value"]} if name == "fill_" else attrs
                found = f"aten.{pure}.{overload}"
                pure, found = _DRAWN.get((name, overload), (pure, found))
                if not hasattr(getattr(torch.ops.aten, pure, None), found.rpartition(".")[2]):
                    raise self._refuse(f"'{name}' has no form without side effects")
                new = self.emit(pure, inputs, type_, attrs, found, node.name)
        assert isinstance(written, FxNode)
        self.base[node] = written
        self._write(written, new, spare=node)
        self.names[node] = self.value(written)

    def _copy(self, inputs: Sequence[tuple[str, str]], type_: TensorType) -> str:
        source = inputs[1][1]
        if self.build.type(source).dtype != type_.dtype:
            attrs = {"dtype": {"dtype": type_.dtype}}
            cast = TensorType(self.build.type(source).shape, type_.dtype)
            source = self.build.emit("_to_copy", [("self", source)], cast, attrs, "aten._to_copy.default")
        if self.build.type(source).shape == type_.shape:
            return source
        size = {"size": list(type_.shape)}
        return self.build.emit("expand", [("self", source)], type_, size, "aten.expand.default")

    def _write(self, node: FxNode, new: str, spare: FxNode) -> None:
        """`node` now holds `new`: pass it up to its bases, and forget the views taken before."""
        while True:
            if node not in self.base or node in self.recipe:  # else it is another name for the next one
                new = self._keep_gradient(node, new)
            self.names[node] = new
            self.stale.discard(node)
            if node not in self.base:
                if node.op == "placeholder":
                    self.written[self.outside[node]] = node
                break
            parent = self.base[node]
            new = self._scatter(parent, node, new)
            node = parent
        self._forget_views(node, spare)

    def _keep_gradient(self, node: FxNode, new: str) -> str:
        """A write that is not recorded leaves the gradient where it went before."""
        old = self.names[node]
        if not self._unrecorded(old):
            return new
        return self.build.emit("replaced", [("self", old), ("by", new)], self.build.type(old))

    def _unrecorded(self, name: str) -> bool:
        """Has a value a gradient, and what happens to it now is not recorded?"""
        value = self.build.values[name]
        smooth = value.kind not in (Kind.BUFFER, Kind.CONSTANT) and value.type.floating
        return smooth and not self.graded and name not in self.quiet

    def _without_out(self, target: Any) -> str:
        """The overload of the same operator that returns its result."""
        packet = getattr(torch.ops.aten, _base_name(target))
        wanted = [(a.name, str(a.type)) for a in target._schema.arguments if not a.is_out]
        for overload in packet.overloads():
            schema = getattr(packet, overload)._schema
            if [(a.name, str(a.type)) for a in schema.arguments] == wanted and not schema.is_mutable:
                return f"aten.{_base_name(target)}.{overload}"
        raise self._refuse(f"'{target}' has no form that returns its result")

    def _forget_views(self, root: FxNode, spare: FxNode) -> None:
        for view in self.base:
            at = view
            while at in self.base:
                at = self.base[at]
            if at is root and view is not spare:
                self.stale.add(view)

    def _scatter(self, parent: FxNode, view: FxNode, new: str) -> str:
        if view not in self.recipe:  # the result of an in-place call: the same memory
            return new
        target, _, attrs, _ = self.recipe[view]
        name, base = _base_name(target), self.value(parent)
        type_ = self.build.type(base)
        if name in _PIECES:
            name, attrs = "slice", {k: attrs[k] for k in ("dim", "start")} | {"end": attrs["start"] + attrs["length"]}
        if name in ("select", "slice", "unbind"):
            op = f"{name}_scatter".replace("unbind", "select")
            return self.build.emit(op, [("self", base), ("src", new)], type_, attrs, f"aten.{op}.default")
        if name == "detach":  # the content is new, the gradient goes where it went
            return self.build.emit("replaced", [("self", base), ("by", new)], type_)
        if name in _RESHAPES:
            shape = {"size": list(type_.shape)}
            return self.build.emit("view", [("self", new)], type_, shape, "aten.view.default")
        raise self._refuse(f"a write into the result of '{name}'")

    def updates(self) -> list[tuple[str, str]]:
        """Outside values that end with another content than they began with."""
        self.graded = True
        found = []
        for name, node in self.written.items():
            if self.build.values[name].kind is not Kind.CONSTANT and self.value(node) != name:
                found.append((name, self.value(node)))
        return found

    def _refuse(self, what: str) -> CaptureError:
        return CaptureError(
            f"in-place write that cannot be made pure: {what}",
            where=str(self.build.source),
            hint="write the result to a new tensor (torch.cat, torch.where)",
        )


def _storage(node: FxNode) -> int | None:
    """Which memory a traced tensor lies in: views share it, on fake tensors too."""
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _base_name(target: Any) -> str:
    return str(target._schema.name).split("::")[1]
