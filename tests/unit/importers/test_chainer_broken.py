"""Chainer dumps that are wrong: always one `FormatError`, which says what and where; never anything else."""

from __future__ import annotations

import json
import random
import re
import resource
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from chainer_files import Net

from thorough import often
from tilegrad.errors import FormatError
from tilegrad.importers import load
from tilegrad.importers.chainer import dump as chainer_dump
from tilegrad.ir import Graph, check_graph, format_graph, parse_graph

UNET = Path(__file__).parents[2] / "data" / "unet_chainer.txt"
LINES = UNET.read_text().splitlines()
HUGE = 2**63

# Lines (from 1) of the first forward function, a ReLU from tensor 8 to 18 of rank 18, and of its backward.
FORWARD, BACKWARD = 110, 521
ATTRS = FORWARD + 5
WHOLE = "must be a whole number from"


def failure(path: Path) -> FormatError:
    with pytest.raises(FormatError) as caught:
        load(path)
    return caught.value


def write(folder: Path, lines: list[str]) -> Path:
    path = folder / "dump.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def put(line: int, text: str) -> Callable[[list[str]], None]:
    def change(lines: list[str]) -> None:
        lines[line - 1] = text

    return change


def attr(key: str, item: Any, line: int = ATTRS) -> Callable[[list[str]], None]:
    """Change an attribute, or take it away, in a forward function and its partner alike."""

    def change(lines: list[str]) -> None:
        old = lines[line - 1]
        attrs = json.loads(old)
        attrs.pop(key, None)
        new = json.dumps(attrs if item is ... else attrs | {key: item})
        lines[:] = [new if each == old else each for each in lines]

    return change


def delete(first: int, count: int = 1) -> Callable[[list[str]], None]:
    def change(lines: list[str]) -> None:
        del lines[first - 1 : first - 1 + count]

    return change


def together(*changes: Callable[[list[str]], None]) -> Callable[[list[str]], None]:
    def change(lines: list[str]) -> None:
        for each in changes:
            each(lines)

    return change


def insert(line: int, *texts: str) -> Callable[[list[str]], None]:
    def change(lines: list[str]) -> None:
        lines[line - 1 : line - 1] = texts

    return change


def raw_attrs(text: str) -> Callable[[list[str]], None]:
    return put(ATTRS, text)


CASES: dict[str, tuple[Callable[[list[str]], None], str, int]] = {
    # counts
    "one count": (put(1, "108"), "expected the numbers of tensors and functions, such as '108 120', found '108'", 1),
    "a negative count": (put(1, "-1 120"), "found '-1 120'", 1),
    "a count beyond 64 bits": (put(1, f"{HUGE} 120"), f"{HUGE} is too large a number", 1),
    "underscores": (put(1, "1_08 120"), "found '1_08 120'", 1),
    "more tensors than there are": (put(1, "109 120"), "expected a tensor 'id bytes name', found 'forward'", 110),
    "enormously more": (put(1, f"{HUGE - 1} 120"), "expected a tensor 'id bytes name', found 'forward'", 110),
    "fewer tensors": (put(1, "107 120"), "expected 'forward' or 'backward', found '107 81920000 _'", 109),
    "more functions": (put(1, "108 121"), "the file ends where 'forward' or 'backward' (121 functions", 1047),
    "enormously more functions": (put(1, f"108 {HUGE - 1}"), "the file ends where 'forward' or 'backward'", 1047),
    "fewer functions": (put(1, "108 119"), "the file goes on after 119 functions: 'backward'", 1040),
    "no functions": (put(1, "108 0"), "the file goes on after 0 functions: 'forward'", 110),
    # tensors
    "a tensor twice": (put(3, LINES[1]), "tensor 0 is here twice: first at line 2", 3),
    "negative bytes": (put(2, "0 -37879808 _"), "expected a tensor 'id bytes name'", 2),
    "no bytes": (put(2, "0 0 _"), "tensor 0 has no bytes", 2),
    "bytes beyond 64 bits": (put(2, f"0 {HUGE} _"), "is too large a number", 2),
    "too many digits": (put(2, f"0 {'9' * 5000} _"), "expected a tensor", 2),
    "a strange name": (put(2, "0 37879808 x"), "expected a tensor", 2),
    "a very long name": (put(3, f"1 2048 /{'x' * 600}/b"), "tensor 1 has a name of 603 characters", 3),
    "a parameter twice": (put(3, "1 2048 /conv_d3a_b/b"), "tensor 3 is called '/conv_d3a_b/b', as is the one", 5),
    "bytes that are no floats": (put(2, "0 37879807 _"), "tensor 0 has 37879807 bytes: no whole number of float32", 2),
    "a tensor nobody uses": (
        together(put(1, "109 120"), insert(110, "500 4 _")),
        "tensor 500 is neither read nor written by any function",
        110,
    ),
    "a written parameter": (put(20, "18 67108864 /x/W"), "it writes tensor 18, which is '/x/W' from outside", 110),
    # functions
    "no phase": (put(FORWARD, "foward"), "expected 'forward' or 'backward', found 'foward'", FORWARD),
    "no numbers": (put(FORWARD + 1, "1"), "expected the numbers of inputs and outputs, such as '3 1', found '1'", 111),
    "enormous numbers": (put(FORWARD + 1, f"{HUGE - 1} 1"), "expected an input 'id role', found '18'", 113),
    "no outputs": (together(put(FORWARD + 1, "1 0"), delete(FORWARD + 3)), "ReLU: a function without outputs", 110),
    "an unknown input": (put(FORWARD + 2, "108 _"), "tensor 108 is not in the table of tensors", 112),
    "an unknown output": (put(FORWARD + 3, "999"), "tensor 999 is not in the table of tensors", 113),
    "a role in forward": (put(FORWARD + 2, "8 input"), "role 'input' is not one of _", 112),
    "no role in backward": (put(BACKWARD + 2, "18 _"), "role '_' is not one of gradient, input, output", 523),
    "no role": (put(FORWARD + 2, "8"), "expected an input 'id role', found '8'", 112),
    "no label": (put(FORWARD + 4, " "), "expected the name of a function, found ''", 114),
    "two writers": (put(FORWARD + 3, "66"), "it writes tensor 66, as does the function at line 110", 116),
    # attributes
    "no json": (raw_attrs("{'rank': 18}"), "attributes that are not a JSON object: Expecting property name", ATTRS),
    "a list": (raw_attrs("[1]"), "attributes that are not a JSON object: not an object", ATTRS),
    "cut off": (raw_attrs('{"rank": 18'), "attributes that are not a JSON object", ATTRS),
    "nan": (raw_attrs('{"rank": NaN}'), "attributes that are not a JSON object: NaN is not a number", ATTRS),
    "infinity": (raw_attrs('{"rank": -Infinity}'), "-Infinity is not a number", ATTRS),
    "a key twice": (raw_attrs('{"rank": 1, "rank": 2}'), "a key is there twice", ATTRS),
    "deep": (raw_attrs('{"x": ' + "[" * 40 + "]" * 40 + "}"), "nested too deep", ATTRS),
    "very deep": (raw_attrs("[" * 100_000), "nested too deep", ATTRS),
    "too many digits in json": (raw_attrs('{"rank": ' + "9" * 5000 + "}"), "that are not a JSON object", ATTRS),
    "no rank": (attr("rank", ...), f"ReLU: attribute 'rank' {WHOLE} 0 to 2147483647, but is missing", ATTRS),
    "rank true": (attr("rank", True), f"attribute 'rank' {WHOLE} 0 to 2147483647, but is true", ATTRS),
    "rank 1.5": (attr("rank", 1.5), "but is 1.5", ATTRS),
    "rank -1": (attr("rank", -1), "but is -1", ATTRS),
    "enormous rank": (attr("rank", HUGE), f"but is {HUGE}", ATTRS),
    "nothing on retention": (attr("_output_indexes_to_retain", ...), "_to_retain' must be null or", ATTRS),
    "retains what is not there": (attr("_output_indexes_to_retain", [1]), "indexes below 1, but is [1]", ATTRS),
    "retains twice": (attr("_output_indexes_to_retain", [0, 0]), "different indexes below 1, but is [0, 0]", ATTRS),
    "retains true": (attr("_output_indexes_to_retain", [False]), "different indexes below 1, but is [false]", ATTRS),
    "retains a number": (attr("_input_indexes_to_retain", 0), "different indexes below 1, but is 0", ATTRS),
    "another output count": (attr("_output_count", 2), "'_output_count' must be 1, the number of its outputs", ATTRS),
    "no stride": (attr("sy", ..., 123), "Convolution2DFunction: attribute 'sy' must be a whole number from 1", 123),
    "stride 0": (attr("sx", 0, 123), f"attribute 'sx' {WHOLE} 1 to 2147483647, but is 0", 123),
    "stride true": (attr("sx", True, 123), f"attribute 'sx' {WHOLE} 1 to 2147483647, but is true", 123),
    "groups null": (attr("groups", None, 123), "attribute 'groups' must be a whole number", 123),
    "cover_all 1": (attr("cover_all", 1, 129), "attribute 'cover_all' must be true or false, but is 1", 129),
    "dropout 1.5": (attr("dropout_ratio", 1.5, 171), "attribute 'dropout_ratio' must be at least 0 and below 1", 171),
    "dropout string": (attr("dropout_ratio", "x", 171), "'dropout_ratio' must be a number, but is \"x\"", 171),
    "slices null": (attr("slices", None, 185), "GetItem: attribute 'slices' must be a string, but is null", 185),
    "axis out of range": (attr("axis", 4, 200), "Concat: it needs 5 dimensions, but tensor 61 has 4", 194),
    # order
    "read before written": (attr("rank", 16), "it reads tensor 8 before the function at line 507 writes it", FORWARD),
    "reads itself": (put(FORWARD + 2, "18 _"), "it reads tensor 18, which depends on it: a cycle", FORWARD),
    "a cycle": (put(509, "18 _"), "Convolution2DFunction: it reads tensor 18, which depends on it: a cycle", 507),
    # partners
    "no backward": (
        together(put(1, "108 119"), delete(BACKWARD, 7)),
        "ReLU: it has no backward function",
        FORWARD,
    ),
    "two backwards": (
        together(put(1, "108 121"), lambda lines: lines.extend(lines[BACKWARD - 1 : BACKWARD + 6])),
        "ReLU: a second backward function for the one at line 110, after line 521",
        1047,
    ),
    "no forward": (put(BACKWARD + 2, "53 gradient"), "backward without a forward function: no", 521),
    "no gradient": (put(BACKWARD + 2, "18 output"), "backward without a forward function: it reads no gradient", 521),
    "another label": (put(BACKWARD + 5, "Tanh"), "Tanh: its forward function at line 110 is ReLU", 521),
    "another gradient": (put(BACKWARD + 4, "9"), "it gives a gradient for tensor 9, which its forward", 521),
    "another input": (put(BACKWARD + 3, "8 output"), "it reads tensor 8 as output, unlike its forward", 521),
    "other attributes": (
        put(BACKWARD + 6, LINES[ATTRS - 1].replace("18", "19")),
        "ReLU: its attributes are not those of its forward function at line 110",
        521,
    ),
    # shapes
    "a larger activation": (put(64, "62 660734208 _"), "tensor 62 of 660734208 bytes has no possible shape", 64),
    "a larger kernel": (put(49, "47 2560 /conv_d0a_b/W"), "tensor 47 of 2560 bytes has no possible shape: no", 49),
    "a larger image": (put(55, "53 10473984 0"), "has no possible shape", 49),
    "a larger bias": (put(4, "2 260 /conv_d0a_b/b"), "tensor 73 of 665395200 bytes has no possible shape", 75),
    "a larger loss": (put(6, "4 8 _"), "its dimensions make 1 elements, not 2", 6),
    "enormous bytes": (put(10, f"8 {HUGE - 4} _"), "tensor 8 of 9223372036854775804 bytes has no possible shape", 10),
    "another size of output": (attr("outh", 55, 179), "tensor 61 of 51380224 bytes has no possible shape", 63),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_broken(name: str, tmp_path: Path) -> None:
    change, what, line = CASES[name]
    lines = list(LINES)
    change(lines)
    error = failure(write(tmp_path, lines))
    assert what in error.what
    assert error.where == f"dump.txt:{line}"


class TestHints:
    def test_cut_off(self, tmp_path: Path) -> None:
        assert failure(write(tmp_path, LINES[:50])).hint == "the file is cut off: dump it again"

    def test_counts(self, tmp_path: Path) -> None:
        hint = failure(write(tmp_path, ["109 120", *LINES[1:]])).hint
        assert hint is not None and hint.startswith("line 1 announces 109 tensors")

    def test_order(self, tmp_path: Path) -> None:
        lines = list(LINES)
        attr("rank", 16)(lines)
        hint = failure(write(tmp_path, lines)).hint
        assert hint == "functions run by their attribute 'rank': it must grow from writer to reader"


class TestFunctions:
    """What cannot be said by changing one line."""

    def test_too_few_inputs(self, tmp_path: Path) -> None:
        net = Net()
        net.call("Convolution2DFunction", [net.tensor((1, 1, 8, 8), "0")], (1, 1, 8, 8))
        error = failure(net.write(tmp_path))
        assert error.what == "Convolution2DFunction: it has 1 inputs and 1 outputs, not 2 or 3 and 1"
        assert error.where == "net.txt:4"

    def test_an_image_and_a_matrix(self, tmp_path: Path) -> None:
        net = Net()
        x = net.conv(net.tensor((2, 3, 8, 8), "0"), 4)
        net.call("LinearFunction", [x, net.tensor((4, 4), "/fc/W")], (2, 4))
        error = failure(net.write(tmp_path))
        assert "tensor 3 has 4 dimensions by the function at line 8, but 2 by LinearFunction at line 16" in error.what
        assert error.where == "net.txt:5"

    def test_no_gradient_arrives(self, tmp_path: Path) -> None:
        net = Net()
        x = net.relu(net.conv(net.tensor((2, 3, 8, 8), "0"), 4))
        net.relu(net.call("Stop", [x, net.tensor((4,), "/p/b")], (1,)))
        lines = net.lines()
        label = len(lines) - 1 - lines[::-1].index("Stop")  # of its backward, after three inputs and two outputs
        lines[label - 6] = "3 1"
        del lines[label - 2]
        error = failure(write(tmp_path, lines))
        assert error.what == "ReLU: no function gives a gradient for any of its outputs"

    def test_a_loss_of_something(self, tmp_path: Path) -> None:
        net = Net()
        net.loss(net.relu(net.tensor((6, 2), "0")))
        graph = load(net.write(tmp_path))  # it cannot be told what it is a loss of
        assert [node.op for node in graph.nodes] == ["relu", "softmax_cross_entropy"]


class TestFiles:
    def test_every_prefix_of_lines(self, tmp_path: Path) -> None:
        for count in (*range(130), *range(130, len(LINES), 7)):
            error = failure(write(tmp_path, LINES[:count])) if count else None
            assert error is None or error.where == f"dump.txt:{count + 1}"

    def test_no_such_file(self, tmp_path: Path) -> None:
        error = failure(tmp_path / "nothing.txt")
        assert "cannot be read: No such file" in error.what and error.where == str(tmp_path / "nothing.txt")

    def test_a_folder(self, tmp_path: Path) -> None:
        assert "it is a folder" in failure(tmp_path).what

    def test_no_path(self) -> None:
        assert "cannot be read" in failure(Path("a\0b")).what

    def test_empty(self, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        error = failure(tmp_path / "empty")
        assert (error.what, error.where) == ("the file is empty", "empty")
        assert str(error.hint).startswith("one of: tilegrad text, chainer dump, megengine profile")

    def test_another_format(self, tmp_path: Path) -> None:
        path = tmp_path / "x.txt"
        path.write_bytes(b"\x7fELF\x00")
        assert failure(path).what == "the file has no format that is known here"

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "dump.txt"
        path.write_bytes(UNET.read_bytes().replace(b"conv_d0a_b/W", b"conv_\xff\xfe/W"))
        error = failure(path)
        assert error.what.startswith("bytes that are not UTF-8") and error.where == "dump.txt:49"

    def test_windows_line_ends(self, tmp_path: Path) -> None:
        path = tmp_path / "unet_chainer.txt"
        path.write_bytes(UNET.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
        assert load(path) == load(UNET)

    def test_a_broken_text(self, tmp_path: Path) -> None:
        path = tmp_path / "graph.txt"
        path.write_text("graph g\nvalue x: float32[1] input\nvalue y\n")
        error = failure(path)
        assert error.where == "graph.txt:3" and "not a graph, value, node" in error.what
        path.write_text("graph g\nvalue x: float32[1] activation\n")
        error = failure(path)
        assert error.where == "graph.txt: x" and "rule G3" in error.what
        path.write_bytes(b"graph g\nvalue \xff")
        assert failure(path).where == "graph.txt:2"


class TestLimits:
    def test_a_long_line(self, tmp_path: Path) -> None:
        lines = list(LINES)
        lines[ATTRS - 1] = json.dumps({"x": "y" * chainer_dump.LONGEST_LINE})
        error = failure(write(tmp_path, lines))
        assert (error.what, error.where) == ("a line longer than 1048576 bytes", f"dump.txt:{ATTRS}")

    def test_many_lines(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chainer_dump, "MOST_LINES", 500)
        assert failure(write(tmp_path, LINES)).where == "dump.txt:501"

    def test_a_large_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chainer_dump, "LARGEST_FILE", 1000)
        assert "or 1000 bytes" in failure(write(tmp_path, LINES)).what

    def test_counts_allocate_nothing(self, tmp_path: Path) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for head in (f"{HUGE - 1} {HUGE - 1}", f"0 {HUGE - 1}"):
            failure(write(tmp_path, [head, "forward", f"{HUGE - 1} {HUGE - 1}"]))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes

    def test_long_chains_take_linear_time(self, tmp_path: Path) -> None:
        net = Net()
        x = net.deconv(net.tensor((2, 3, 8, 8), "0"), 4)
        for _ in range(1500):
            x = net.relu(x)
        start = time.process_time()
        assert load(net.write(tmp_path)).shape(f"t{x}") == (2, 4, 16, 16)
        assert time.process_time() - start < 5


NUMBERS = [
    "0", "-1", "1", "2", "3", "4", "7", "64", str(HUGE - 1), str(HUGE), "1" * 5000, "true", "null", "NaN", "1e999",
    "0.5", '"x"', "[]", "{}", "",
]  # fmt: skip


@lru_cache(maxsize=2)
def places(text: bytes, pattern: bytes) -> list[tuple[int, int]]:
    return [found.span() for found in re.finditer(pattern, text)]


def mutate(drawn: random.Random, text: bytes, lines: list[bytes]) -> bytes:
    """One accident: lines lost, swapped, repeated; bytes flipped, numbers replaced, the end missing."""
    kind = drawn.randrange(8)
    mutated = list(lines)
    i, j = drawn.randrange(len(lines)), drawn.randrange(len(lines))
    if kind == 0:
        del mutated[i : i + drawn.choice((1, 1, 2, 6, 7))]
    elif kind == 1:
        mutated[i], mutated[j] = mutated[j], mutated[i]
    elif kind == 2:
        mutated[j:j] = mutated[i : i + drawn.choice((1, 1, 6, 7))]
    elif kind == 3:
        flipped = bytearray(text)
        for _ in range(drawn.choice((1, 1, 2, 5))):
            flipped[drawn.randrange(len(flipped))] = drawn.randrange(256)
        return bytes(flipped)
    elif kind == 4:
        start, stop = drawn.choice(places(text, rb"-?\d+"))
        new = drawn.choice([*NUMBERS, str(drawn.randrange(200)), str(drawn.randrange(10**9))])
        return text[:start] + new.encode() + text[stop:]
    elif kind == 5:
        return text[: drawn.randrange(len(text))]
    elif kind == 6:  # the same change in all functions that have it, so that partners agree
        start, stop = drawn.choice(places(text, rb'"\w+": [^,}]+'))
        old = text[start:stop]
        return text.replace(old, old.split(b":")[0] + b": " + drawn.choice(NUMBERS).encode())
    else:
        old = drawn.choice([line for line in lines if line[:1].isalpha()])
        return text.replace(b"\n" + old + b"\n", b"\nSomething\n")
    return b"\n".join(mutated)


def survives(path: Path) -> Graph | None:
    """The graph, or None after a `FormatError` that names a place in the file. Anything else is a failure."""
    try:
        graph = load(path)
    except FormatError as error:
        assert error.where is not None and error.where.startswith(path.name)
        return None
    check_graph(graph)
    assert parse_graph(format_graph(graph)) == graph
    return graph


@pytest.mark.parametrize("seed", range(4))
def test_accidents(seed: int, tmp_path: Path) -> None:
    drawn, path, outcomes = random.Random(seed), tmp_path / "dump.txt", Counter[bool]()
    text = UNET.read_bytes()
    lines = text.split(b"\n")
    times = often(120, 400)
    for number in range(times):
        mutated = mutate(drawn, text, lines)
        path.write_bytes(mutated)
        try:
            outcomes[survives(path) is not None] += 1
        except Exception:
            (tmp_path / f"failed_{number}.txt").write_bytes(mutated)
            raise
    assert outcomes[True] >= times // 80 and outcomes[False] >= times // 2  # both ends of the road are travelled


def test_accidents_twice(tmp_path: Path) -> None:
    """Small files and several accidents at once."""
    drawn, path = random.Random(99), tmp_path / "dump.txt"
    net = Net()
    x = net.concat(*[net.relu(net.conv(net.tensor((2, 3, 12, 12), "0"), 4))] * 2)
    net.loss(net.deconv(net.pool(net.norm(x)), 4))
    for _ in range(600):
        text = "\n".join(net.lines()).encode()
        for _ in range(drawn.randrange(1, 4)):
            text = mutate(drawn, text, text.split(b"\n")) or b"\n"
            if not re.search(rb'\d.*\n(.*\n)*[A-Za-z].*\n(.*\n)*.*"\w+": [^,}]+', text):
                break
        path.write_bytes(text)
        survives(path)
