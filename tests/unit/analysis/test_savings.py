"""What writing in place and another order would save, on graphs small enough to do by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilegrad.analysis import savings
from tilegrad.analysis.savings import Savings, find_savings
from tilegrad.ir import Build, Graph, Kind, TensorType
from tilegrad.profile import Block, BlockKind, Operator, Profile, Span


def sized(count: int) -> TensorType:
    return TensorType((count,), "uint8")


def profile(graph: Graph, *blocks: Block) -> Profile:
    """The nodes in their order, one tick each."""
    operators = tuple(Operator(node.name, node.name, node.op, Span(at, at + 1)) for at, node in enumerate(graph.nodes))
    clock = tuple(float(at) for at in range(len(operators)))
    return Profile("p", "megengine profile", operators, blocks, clock, graph=graph)


def chain(op: str = "relu") -> Profile:
    """a (10 bytes) -> b (10) -> c (1): a and b are alive together, 20 bytes; in place 11, b and c."""
    build = Build()
    x = build.value("x", sized(10), Kind.INPUT)
    a = build.emit("conv2d", [("input", x)], sized(10), name="a")
    b = build.emit(op, [("self", a)], sized(10), name="b")
    c = build.emit("conv2d", [("input", b)], sized(1), name="c")
    lives = (Block("a", 10, 0, 2), Block("b", 10, 1, 3), Block("c", 1, 2, 3))
    return profile(build.graph([c]), *lives)


def test_in_place() -> None:
    assert find_savings(chain(), "") == Savings(20, 11, 1, 20)


def test_not_where_an_element_is_read_again() -> None:
    assert find_savings(chain("softmax"), "") == Savings(20, 20, 0, 20)


def test_not_into_what_is_still_needed_or_of_another_size() -> None:
    found = chain()
    for a in (Block("a", 10, 0, 3), Block("a", 12, 0, 2), Block("a", 10, 0, 2, owned=False)):
        saved = find_savings(replace(found, blocks=(a, *found.blocks[1:])), "")
        assert saved is not None and saved.in_place_nodes == 0


def branches() -> Profile:
    """Two branches, each a large value that shrinks to one byte; recorded side by side: 100 + 100 + 1 alive. One after
    the other it is 1 + 100 + 1."""
    build = Build()
    x = build.value("x", sized(5), Kind.INPUT)
    p = build.emit("conv2d", [("input", x)], sized(100), name="p")
    q = build.emit("conv2d", [("input", x)], sized(100), name="q")
    p_small = build.emit("max_pool2d", [("self", p)], sized(1), name="p_small")
    q_small = build.emit("max_pool2d", [("self", q)], sized(1), name="q_small")
    out = build.emit("add", [("self", p_small), ("other", q_small)], sized(1), name="out")
    lives = (
        Block("p", 100, 0, 3), Block("q", 100, 1, 4), Block("p_small", 1, 2, 5), Block("q_small", 1, 3, 5),
        Block("out", 1, 4, 5),
    )  # fmt: skip
    return profile(build.graph([out]), *lives)


def test_another_order() -> None:
    assert find_savings(branches(), "") == Savings(201, 201, 1, 102)


def test_workspaces_go_with_their_operator() -> None:
    found = branches()
    scratch = Block("scratch", 50, 1, 2, BlockKind.WORKSPACE)  # of q: alone with p_small it makes 151
    saved = find_savings(replace(found, blocks=(*found.blocks, scratch)), "")
    assert saved is not None
    assert (saved.peak_bytes, saved.order_bytes) == (250, 151)


def test_two_workspaces_of_one_operator_are_both_needed() -> None:
    found = branches()
    scratch = [Block(name, 50, 1, 2, BlockKind.WORKSPACE) for name in ("one", "two")]
    saved = find_savings(replace(found, blocks=(*found.blocks, *scratch)), "")
    assert saved is not None
    assert (saved.peak_bytes, saved.order_bytes) == (300, 201)


def test_a_large_graph_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savings, "MOST", 4)
    found = find_savings(branches(), "")
    assert found is not None and found.order_bytes is None


def test_nothing_to_say_without_a_graph_ticks_or_blocks() -> None:
    found = chain()
    assert find_savings(replace(found, graph=None), "") is None
    assert find_savings(replace(found, clock=(*found.clock, 9.0)), "") is None
    assert find_savings(found, "another device") is None
