"""MegEngine profiles: what is odd and no error, and one clear error for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tilegrad.analysis import analyze
from tilegrad.errors import FormatError
from tilegrad.importers import find_format, load, load_profile
from tilegrad.ir import Kind
from tilegrad.profile import BlockKind, Profile

SOURCE = Path(__file__).parents[2] / "data" / "resnet50_megengine.json"
Dump = dict[str, Any]


def operator(id: str, type: str, inputs: list[str], outputs: list[str], name: str = "") -> Dump:
    return {"id": id, "name": name or f"{type}[{id}]", "type": type, "input": inputs, "output": outputs}


def var(id: str, start: int = 0, bytes: int = 0, shape: list[int] | None = None, **more: Any) -> Dump:
    """Never had memory where `bytes` is 0: then the key of the end is absent, as in real files."""
    ends = {"prev_dev_ptr_end": start + bytes} if bytes else {}
    tags = {"SHAPE": {"infer_type": "CONST", "inferred_result": shape}, "VALUE": {"infer_type": "NO_DESC"}}
    plain = {"flag": [], "comp_node": "gpu0:0", "dev_ptr": None, "mem_plan": None, "mem_readonly_fwd_src": None}
    return {"id": id, "name": f"v{id}", "prev_dev_ptr": start, "static_infer_tags": tags} | plain | ends | more


def times(start: float, kern: float, end: float) -> Dump:
    return {"start": start, "kern": kern, "end": end}


def small() -> Dump:
    """x -> relu -> y -> relu -> z, a workspace beside y, a constant that is never read, an operator that never ran."""
    plan = {"mem_chunk_id": "chk21", "offset_byte": 0, "layout": {"shape": [2, 3], "dtype": "Float32"}}
    chunk = {"id": "chk21", "owner_var": "21", "size": 24, "dev_ptr": 5000}
    footprint = {
        "computation": 6,
        "memory": 48,
        "in_shapes": [[2, 3]],
        "out_shapes": [[2, 3]],
        "param": {"mode": "RELU"},
    }
    return {
        "profiler": {
            "opr_internal_pf": {},
            "host": {id: {"main": times(at, at, at + 0.5)} for at, id in enumerate(["0", "1", "2", "3"])},
            "device": {id: {"gpu0:0": times(at, at + 0.25, at + 1)} for at, id in enumerate(["0", "1", "2", "3"])},
            "opr_footprint": {"2": footprint, "3": footprint},
        },
        "graph_exec": {
            "comp_seq": ["0", "1", "2", "3"],
            "mem_chunk": {"chk21": chunk},
            "operator": {
                "0": operator("0", "InputCallback", [], ["20"]),
                "1": operator("1", "ImmutableTensor", [], ["21"]),
                "2": operator("2", "Elemwise", ["20"], ["22", "23"], "RELU[9999]"),
                "3": operator("3", "Elemwise", ["22"], ["24"]),
                "4": operator("4", "GetVarShape", ["22"], ["25"]),
            },
            "var": {
                "20": var("20", 1000, 24, [2, 3]),
                "21": var("21", 5000, 24, [2, 3], mem_plan=plan, dev_ptr=5000),
                "22": var("22", 2000, 24, [2, 3]),
                "23": var("23", 3000, 64, [64], flag=["VOLATILE_CONTENT"]),
                "24": var("24", 1000, 24, [2, 3]),
                "25": var("25", 0, 0, None, comp_node="cpu0:0"),
            },
        },
    }


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Dump], Profile]:
    def reader(dump: Dump) -> Profile:
        (tmp_path / "p.json").write_text(json.dumps(dump))
        return load_profile(tmp_path / "p.json")

    return reader


Reader = Callable[[Dump], Profile]


def test_a_small_file(read: Reader) -> None:
    profile = read(small())
    assert [op.id for op in profile.operators] == ["0", "1", "2", "3"]
    assert (profile.format, profile.one_clock, profile.ticks) == ("megengine profile", False, 4)
    relu = profile.operators[2]
    assert (relu.flops, relu.bytes, relu.reads, relu.writes) == (6, 48, ("20",), ("22", "23"))
    assert relu.device is not None and (relu.device.wait_s, relu.device.kernel_s) == (0.25, 0.75)
    lives = {b.name: (b.kind, b.start, b.stop, b.address, b.bytes, b.owned) for b in profile.blocks}
    assert lives == {
        "21": (BlockKind.WEIGHT, 0, 4, 5000, 24, False),
        "20": (BlockKind.INPUT, 0, 3, 1000, 24, False),
        "22": (BlockKind.ACTIVATION, 2, 4, 2000, 24, True),
        "23": (BlockKind.WORKSPACE, 2, 3, 3000, 64, True),
        "24": (BlockKind.ACTIVATION, 3, 4, 1000, 24, True),
    }
    graph = profile.graph
    assert graph is not None
    assert [(node.op, node.reads, node.time_s) for node in graph.nodes] == [
        ("relu", ("20",), 0.75),
        ("relu", ("22",), 0.75),
    ]
    assert (graph.value["20"].kind, graph.value["21"].kind) == (Kind.INPUT, Kind.PARAMETER)


def test_operators_that_never_ran_are_known(read: Reader) -> None:
    profile = read(small())
    assert [op.id for op in profile.idle] == ["4"]
    assert "1 of 5 operators never ran" in profile.notes


def test_a_name_may_cite_an_id_that_is_not_there(read: Reader) -> None:
    assert read(small()).facts["cited_ids_not_in_file"] == ["9999"]


def test_aliases_make_their_memory_live_longer(read: Reader) -> None:
    dump = small()
    dump["graph_exec"]["var"]["24"]["mem_readonly_fwd_src"] = "22"
    dump["graph_exec"]["var"]["26"] = var("26", 6000, 4, [1])
    dump["graph_exec"]["operator"]["5"] = operator("5", "Elemwise", ["24"], ["26"])
    dump["graph_exec"]["comp_seq"].append("5")
    profile = read(dump)
    lives = {b.name: (b.start, b.stop) for b in profile.blocks}
    assert "24" not in lives
    assert lives["22"] == (2, 5)
    assert profile.graph is not None and profile.graph.value["24"].alias == "22"
    assert profile.facts["classes"]["aliases"] == {"24": "22"}


def test_operators_without_device_times(read: Reader) -> None:
    dump = small()
    del dump["profiler"]["device"]["3"]
    profile = read(dump)
    assert profile.operators[3].device is None
    assert profile.operators[3].span == profile.operators[3].host
    assert "1 operators ran without device times" in profile.notes


def test_no_kernel_is_minus_one(read: Reader) -> None:
    dump = small()
    dump["profiler"]["host"]["2"]["main"]["kern"] = -1
    host = read(dump).operators[2].host
    assert host is not None and (host.kern_s, host.wait_s, host.kernel_s) == (None, 0, 0.5)


def test_several_comp_nodes(read: Reader) -> None:
    """A second kernel of one operator is an operator of its own, without a host span; memory is told apart."""
    dump = small()
    dump["profiler"]["device"]["2"]["gpu1:0"] = times(2.5, 2.5, 3.5)
    dump["graph_exec"]["var"]["24"]["comp_node"] = "gpu1:0"
    profile = read(dump)
    assert [op.id for op in profile.operators] == ["0", "1", "2", "3", "2.1"]
    further = profile.operators[4]
    assert (further.stream, further.host, further.type) == ("gpu1:0", None, "Elemwise")
    assert set(profile.devices) == {"gpu0:0", "gpu1:0"}
    device = analyze(profile).device
    assert device is not None and set(device.lanes) == {"gpu0:0", "gpu1:0"}
    assert device.total_s == 5


def test_unknown_keys_are_left_out_and_told(read: Reader) -> None:
    dump = small() | {"future": {"deep": [1, 2]}}
    dump["profiler"]["newer"] = []
    notes = read(dump).notes
    assert any("2 unknown keys were left out" in note for note in notes)


def test_a_file_of_its_bare_parts(read: Reader) -> None:
    bare = {"graph_exec": {"comp_seq": [], "operator": {}, "var": {}}}
    profile = read(bare)
    assert (profile.operators, profile.blocks, profile.clock) == ((), (), ())
    assert analyze(profile).to_json()["counts"]["operators"] == 0


def test_an_operator_of_an_unknown_type_stays_in_the_graph(read: Reader) -> None:
    dump = small()
    dump["graph_exec"]["operator"]["3"]["type"] = "Novel"
    graph = read(dump).graph
    assert graph is not None and graph.nodes[1].op == "megengine.Novel"


def test_the_source(tmp_path: Path) -> None:
    assert find_format(SOURCE).name == "megengine profile"
    graph = load(SOURCE)
    assert [node.op for node in graph.nodes].count("conv2d") == 53
    moved = tmp_path / "notes.txt"  # the content tells, not the name
    moved.write_bytes(b"\xef\xbb\xbf" + SOURCE.read_bytes())
    assert len(load_profile(moved).operators) == 234


def change(*path: str, to: Any) -> Callable[[Dump], None]:
    def apply(dump: Dump) -> None:
        at: Any = dump
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return apply


def drop(*path: str) -> Callable[[Dump], None]:
    def apply(dump: Dump) -> None:
        at: Any = dump
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return apply


OPS, VARS = ("graph_exec", "operator"), ("graph_exec", "var")
HOST = ("profiler", "host", "2", "main")
BROKEN: dict[str, tuple[Callable[[Dump], None], str]] = {
    "no operators": (drop(*OPS), "no 'graph_exec.operator'"),
    "no sequence": (drop("graph_exec", "comp_seq"), "no 'graph_exec.comp_seq'"),
    "an input that is not there": (change(*OPS, "3", "input", to=["77"]), "operator '3' cites variable '77'"),
    "an output of two": (change(*OPS, "3", "output", to=["22"]), "variable '22' is written twice"),
    "an operator twice": (change("graph_exec", "comp_seq", to=["2", "2"]), "names an operator twice"),
    "a sequence of unknown": (change("graph_exec", "comp_seq", to=["8"]), "comp_seq names operator '8'"),
    "times of unknown": (change("profiler", "device", "8", to={}), "device names operator '8'"),
    "an alias of nothing": (change(*VARS, "24", "mem_readonly_fwd_src", to="99"), "shares the memory of '99'"),
    "an alias of itself": (change(*VARS, "24", "mem_readonly_fwd_src", to="24"), "in a circle"),
    "a chunk of nobody": (change("graph_exec", "mem_chunk", "chk21", "owner_var", to="99"), "owned by variable '99'"),
    "another id": (change(*OPS, "3", "id", to="33"), "the operator calls itself '33'"),
    "another var": (change(*VARS, "22", "id", to="33"), "the variable calls itself '33'"),
    "memory from the end": (change(*VARS, "22", "prev_dev_ptr_end", to=3), "memory that ends before it begins"),
    "2**63 bytes": (change(*VARS, "22", "prev_dev_ptr_end", to=2**63), "'prev_dev_ptr_end' must be a whole number"),
    "2**63 of a chunk": (change("graph_exec", "mem_chunk", "chk21", "size", to=2**63), "'size' must be a whole number"),
    "a huge number": (change(*VARS, "22", "prev_dev_ptr", to=10**200), "a number of more than 70 bits"),
    "a size of -1": (change(*VARS, "22", "static_infer_tags", "SHAPE", "inferred_result", to=[-1]), "'a size' must be"),
    "a name that is a number": (change(*OPS, "3", "name", to=5), "a name must be a text, not 5"),
    "an input that is no array": (change(*OPS, "3", "input", to="22"), "'input' must be an array"),
    "an operator that is a text": (change(*OPS, "3", to="relu"), "an object must stand here"),
    "backward in time": (change(*HOST, to=times(2, 2, 1)), "times that run backward"),
    "a kernel before its start": (change(*HOST, to=times(2, 1, 3)), "times that run backward"),
    "a time that is a text": (change(*HOST, "end", to="3"), "'end' must be a number of seconds"),
    "a time that is missing": (drop(*HOST, "end"), "'end' must be a number of seconds, not nothing"),
    "half a flop": (change("profiler", "opr_footprint", "2", "computation", to=2.5), "'computation' must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(case: str, read: Reader) -> None:
    dump = deepcopy(small())
    breaks, message = BROKEN[case]
    breaks(dump)
    with pytest.raises(FormatError) as raised:
        read(dump)
    assert message in str(raised.value)
    assert "p.json" in (raised.value.where or "")


def test_a_circle_of_aliases(read: Reader) -> None:
    dump = small()
    for id, source in (("20", "22"), ("22", "24"), ("24", "20")):
        dump["graph_exec"]["var"][id]["mem_readonly_fwd_src"] = source
    with pytest.raises(FormatError, match="in a circle"):
        read(dump)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_times_that_are_no_numbers(word: str, tmp_path: Path) -> None:
    text = json.dumps(small()).replace('"end": 2.5', f'"end": {word}', 1)
    assert word in text
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(FormatError, match=r"p\.json"):
        load_profile(tmp_path / "p.json")


@pytest.mark.parametrize("key", ["2", "22"])
def test_an_id_that_stands_twice(key: str, tmp_path: Path) -> None:
    text = json.dumps(small())
    part = "operator" if key == "2" else "var"
    record = json.dumps(small()["graph_exec"][part][key])
    (tmp_path / "p.json").write_text(text.replace(f'"{key}": {record}', f'"{key}": {record}, "{key}": {record}', 1))
    with pytest.raises(FormatError, match=f"the key '{key}' stands twice"):
        load_profile(tmp_path / "p.json")


def test_a_file_that_is_cut(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(small())[:900])
    with pytest.raises(FormatError, match=r"p\.json"):
        load_profile(tmp_path / "p.json")
