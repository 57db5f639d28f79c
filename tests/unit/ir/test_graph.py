"""Lookups of a graph, sizes of types, and building graphs with fresh names."""

from __future__ import annotations

import pytest

from tilegrad.ir import Build, Kind, Role, Source, TensorType
from tilegrad.ir.types import DTYPE_BYTES


def small() -> Build:
    build = Build("small")
    build.value("x", TensorType((2, 3)), Kind.INPUT)
    build.value("w", TensorType((3,)), Kind.PARAMETER, "layer.weight")
    build.source = Source("layer", "net.py:7")
    build.emit("mul", [("self", "x"), ("other", "w")], TensorType((2, 3)), {"alpha": 2})
    build.emit("mul", [("self", "mul"), ("other", "mul")], TensorType((2, 3)))
    return build


def test_names_are_made_unique() -> None:
    graph = small().graph(["mul_1"])
    assert [n.name for n in graph.nodes] == ["mul", "mul_1"]
    assert graph.producer["mul_1"] is graph.node["mul_1"]


def test_roles_follow_kinds() -> None:
    first = small().graph([]).node["mul"]
    assert [i.role for i in first.inputs] == [Role.DATA, Role.PARAMETER]


def test_a_node_that_reads_a_value_twice_is_one_consumer() -> None:
    graph = small().graph(["mul_1"])
    assert graph.consumers["mul"] == (graph.node["mul_1"],)
    assert graph.consumers["mul_1"] == ()


def test_lookups() -> None:
    graph = small().graph(["mul_1"])
    assert graph.inputs == ("x",)
    assert [v.target for v in graph.of_kind(Kind.PARAMETER)] == ["layer.weight"]
    assert graph.shape("w") == (3,)
    assert graph.node["mul"].describe() == "mul 'mul' layer (net.py:7)"


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_bytes_are_torchs(dtype: str) -> None:
    import torch

    assert TensorType((3, 5), dtype).bytes == torch.empty((3, 5), dtype=getattr(torch, dtype)).nbytes
    assert TensorType((), dtype).floating == (getattr(torch, dtype).is_floating_point or "complex" in dtype)


def test_attributes_cannot_be_changed() -> None:
    node = small().graph([]).node["mul"]
    with pytest.raises(TypeError, match="assignment"):
        node.attrs["alpha"] = 3  # type: ignore[index]
