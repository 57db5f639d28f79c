"""Islands through `torch.compile`: the same step, one compilation for all that are alike, and a way out if it fails.

Most tests take the backend `aot_eager`, which does all but make machine code: its sums are eager's, so that integers
can be compared with `torch.equal`.
"""

from __future__ import annotations

import copy
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import InputError
from tilegrad.execution import compilation
from tilegrad.execution.compilation import Compilation
from tilegrad.schedule import Run
from tilegrad.testing import PeakBytes, assert_same, assert_same_step, integer_module, integer_tensor, run_step

EAGER = {"backend": "aot_eager"}
pytestmark = [  # what torch.compile itself says to those who call it
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Compilation]:
    """All that is compiled, from nothing."""
    found: list[Compilation] = []
    init = Compilation.__init__

    def noted(self: Compilation, *args: Any) -> None:
        init(self, *args)
        found.append(self)

    monkeypatch.setattr(Compilation, "__init__", noted)
    compilation.compilations.clear()
    compilation._said.clear()
    return found


def works(made: list[Compilation]) -> bool:
    return bool(made) and all(each._works for each in made)


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3, padding=1), nn.LeakyReLU(0.5)
    )


class Residual(nn.Module):
    """A value that is joined, read twice and given away."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.a(x)
        z = torch.relu(y + self.b(y))
        return z, z.sum((2, 3))


def blocks(count: int) -> nn.Module:
    parts = (part for _ in range(count) for part in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()))
    return nn.Sequential(*parts)


@pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])
@pytest.mark.parametrize("net", [chain, Residual])
def test_integers_are_equal(net: Callable[[], nn.Module], mode: str, made: list[Compilation]) -> None:
    image = integer_tensor((1, 2, 32, 12))
    assert_same_step(integer_module(net()), [image], tile={"h": 8}, mode=mode, compile=EAGER)
    assert works(made) or mode == "gather"


def test_tiles_along_two_axes(made: list[Compilation]) -> None:
    assert_same_step(integer_module(Residual()), [integer_tensor((1, 2, 16, 16))], tile=8, compile=EAGER)
    assert works(made)


@pytest.mark.parametrize("halos", ["device", "disk"])
def test_norms_and_their_buffers(halos: str, made: list[Compilation]) -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.GELU()
    )
    image = torch.randn(2, 2, 24, 10).double()
    assert_same_step(net.double(), [image], exact=False, tile={"h": 8}, halos=halos, compile=EAGER)
    assert works(made)


def test_tiles_that_are_kept() -> None:
    """Kept tiles run under autograd in forward; nobody runs them without."""
    net, image = integer_module(chain()), integer_tensor((1, 2, 64, 64))
    tiled = tilegrad.tile(copy.deepcopy(net), tile={"h": 16}, budget="1.2MiB", compile=EAGER)
    assert_same(run_step(tiled, [image]), run_step(net, [image]))
    schedule = tiled.plan.schedule
    assert any(isinstance(step, Run) and step.keep for step in schedule.steps[: schedule.turn])


@pytest.mark.parametrize(
    "layer", [nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d((7, 5)), nn.ReflectionPad2d(2)]
)
def test_what_depends_on_the_place(layer: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), layer, nn.Tanh()).double()
    assert_same_step(net, [torch.randn(1, 2, 24, 8).double()], exact=False, tile={"h": 6}, compile=EAGER)


def test_random_nodes_stay_outside(made: list[Compilation]) -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 4, 3), nn.ReLU())
    net, image, found = integer_module(net), integer_tensor((1, 2, 24, 8)), []
    for asked in (False, EAGER):
        torch.manual_seed(1)
        found.append(run_step(tilegrad.tile(copy.deepcopy(net), tile={"h": 8}, compile=asked), [image]))
    assert_same(found[1], found[0])
    assert works(made)


def test_no_gradient_where_plain_has_none() -> None:
    """Of two outputs one is used: what only the other one reads has no gradient at all."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.a(x).relu()
            return self.b(y).relu(), self.c(y).relu()

    net, image = integer_module(Two()), integer_tensor((1, 2, 24, 8))
    tiled = tilegrad.tile(copy.deepcopy(net), tile={"h": 8}, compile=EAGER)
    for each in (net, tiled):
        each(image)[0].sum().backward()
    for name, weight in net.named_parameters():
        grad = tiled.get_parameter(name).grad
        assert (grad is None) == (weight.grad is None), name
        assert grad is None or torch.equal(grad, weight.grad), name


# -- once for all that are alike ---------------------------------------------------------------------------------------


def test_one_compilation_per_kind_of_tile(made: list[Compilation]) -> None:
    net, counts = chain(), []
    for height in (48, 96):
        tilegrad.tile(net, tile={"h": 8})(torch.randn(1, 2, height, 12))
        made.clear()
        compilation.compilations.clear()
        tilegrad.tile(net, tile={"h": 8}, compile=EAGER)(torch.randn(1, 2, height, 12)).sum().backward()
        counts.append(len(made))
    assert counts[0] == counts[1] <= 8  # top, bottom and between, with and without gradients


def test_equal_blocks_share(made: list[Compilation]) -> None:
    counts = []
    for count in (3, 5):
        made.clear()
        compilation.compilations.clear()
        tilegrad.tile(blocks(count), tile={"h": 8}, compile=EAGER)(torch.randn(1, 4, 24, 8)).sum().backward()
        counts.append(len(made))
    assert counts[0] == counts[1]


def test_functions_that_differ_in_a_constant_do_not_share(made: list[Compilation]) -> None:
    x = torch.ones(3, requires_grad=True)

    def by(factor: float) -> Compilation:
        def scaled(given: Sequence[Tensor]) -> list[Tensor]:
            return [given[0] * torch.tensor([1.0, factor, 2.0], device=given[0].device)]

        found = compilation.compilation_of(scaled, [x], EAGER, "")
        assert found is not None
        return found

    two, three = by(2.0), by(3.0)
    assert two is by(2.0) is not three
    assert [each.attempt(x)[1][0].tolist() for each in (two, three)] == [[1.0, 2.0, 2.0], [1.0, 3.0, 2.0]]


def test_functions_that_differ_in_backward_do_not_share() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
            ctx.by = by
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return grad * ctx.by, None

    found = []
    for by in (2.0, 3.0):
        tensors = [torch.ones(3, requires_grad=True)]
        one = compilation.compilation_of(lambda given, by=by: [Scaled.apply(given[0], by)], tensors, EAGER, "")
        assert one is not None
        one.attempt(*tensors)[1][0].sum().backward()
        found.append((one, tensors[0].grad))
    assert found[0][0] is not found[1][0]
    assert [grad.tolist() for _, grad in found if grad is not None] == [[2.0] * 3, [3.0] * 3]


# -- where it cannot be compiled ---------------------------------------------------------------------------------------


def broken(_graph: Any, _inputs: Any) -> Any:
    raise RuntimeError("no compiler here")


@pytest.mark.parametrize("asked", [{"tile": {"h": 8}}, {"budget": "1GiB"}])
def test_it_runs_as_it_is_and_says_why(
    asked: dict[str, Any], made: list[Compilation], caplog: pytest.LogCaptureFixture
) -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3)).double()
    with caplog.at_level(logging.WARNING, "tilegrad"):
        image = torch.randn(1, 2, 24, 10).double()
        assert_same_step(net, [image], exact=False, compile={"backend": broken}, **asked)
    assert made
    assert not any(each._works for each in made)
    lines = [record.getMessage() for record in caplog.records if "cannot be compiled" in record.getMessage()]
    assert len(lines) == 1
    assert "no compiler here" in lines[0]


def test_whoever_watches_operators_sees_them(made: list[Compilation]) -> None:
    net, image = chain(), torch.randn(1, 2, 24, 12)
    peaks = []
    for asked in (False, EAGER):
        tiled = tilegrad.tile(net, tile={"h": 8}, compile=asked)
        tiled.plan_for(image.clone())
        with PeakBytes() as peak:
            tiled(image).sum().backward()
        net.zero_grad()
        peaks.append(peak.bytes)
    assert peaks[0] == peaks[1]
    assert not made
    tiled(image).sum().backward()
    assert works(made)


def test_memory_is_not_more_than_without(tmp_path: Path) -> None:
    """The plan was predicted without it. By torch's own profile, which sees what compiled code allocates."""
    net, image = chain(), torch.randn(1, 2, 256, 64)

    def peak(asked: Any) -> int:
        tiled = tilegrad.tile(net, tile={"h": 64}, compile=asked)

        def step() -> None:
            net.zero_grad()
            tiled(image).sum().backward()

        step()
        step()
        with torch.profiler.profile(profile_memory=True) as profile:
            step()
        profile.export_chrome_trace(str(tmp_path / "trace.json"))
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        held = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
        return max(held) - held[0]

    assert peak(EAGER) <= 1.05 * peak(False)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_machine_code(made: list[Compilation]) -> None:
    """Rounded in its own way: one part in 10^10 of float64."""
    net = nn.Sequential(nn.Conv2d(2, 4, 1), nn.SiLU(), nn.Conv2d(4, 2, 1), nn.SiLU()).double()
    image = torch.randn(1, 2, 16, 8).double()
    assert_same_step(net, [image], exact=False, tolerance=1e-10, tile={"h": 8}, mode="scatter", compile=True)
    assert works(made)
    assert len(made) == 2  # with and without gradients


# -- what the caller may ask for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("yes", "compile='yes'"),
        ({"fullgraph": True}, "'fullgraph' is not an option"),
        ({"mode": "reduce-overhead"}, "CUDA graphs"),
        ({"options": {"triton.cudagraphs": True}}, "CUDA graphs"),
        ({"backend": "nothing"}, "torch.compile refuses"),
        ({"options": {"nonsense": 1}}, "torch.compile refuses"),
    ],
)
def test_what_it_refuses(asked: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        tilegrad.tile(chain(), tile=8, compile=asked)


def test_plain_is_compiled_where_it_fits(made: list[Compilation]) -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).double()
    image = torch.randn(1, 2, 12, 12).double()
    assert_same_step(net, [image], exact=False, budget="1GiB", compile=EAGER)
    assert works(made)
    assert len(made) == 1


# -- torch.compile around it, and inside -------------------------------------------------------------------------------


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * 2) * 3


@pytest.mark.parametrize("asked", [False, EAGER])
def test_compiled_around_it(asked: Any) -> None:
    """One call that the compiler does not look into: code before it and code behind it are compiled."""
    net, image = Around(integer_module(chain())), integer_tensor((1, 2, 24, 12))
    outer = Around(tilegrad.tile(copy.deepcopy(net.inner), tile={"h": 8}, compile=asked))
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(outer, backend=backend)
    wanted = run_step(net, [image])
    compiled(image.clone().requires_grad_()).backward(integer_tensor(wanted.outputs["output 0"].shape))
    for name, weight in net.named_parameters():
        assert torch.equal(outer.get_parameter(name).grad, weight.grad), name
    assert len(graphs) == 2
    with pytest.raises(Exception, match="a tiled module is one call"):
        torch.compile(outer, backend="aot_eager", fullgraph=True)(image)


def test_a_compiled_module_is_tiled_inside(tmp_path: Path) -> None:
    net, image = integer_module(chain()), integer_tensor((1, 2, 24, 12))
    wanted = run_step(copy.deepcopy(net), [image])
    for inside in (torch.compile(net, backend="aot_eager"), net):
        net.zero_grad()
        tiled = tilegrad.tile(inside, tile={"h": 8}, compile=EAGER)
        assert tiled.module is net
        assert_same(run_step(tiled, [image]), wanted)
    torch.save(tilegrad.tile(torch.compile(net), tile=8).state_dict(), tmp_path / "weights.pt")
    other = integer_module(chain(), seed=9)
    tilegrad.tile(torch.compile(other), tile=8).load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), net.parameters(), strict=True))


def test_what_was_compiled_is_compiled_in_tiles() -> None:
    in_place = chain()
    in_place.compile()
    for asked in (torch.compile(chain()), in_place):
        assert tilegrad.tile(asked, tile=8).options.compile == ()
        assert tilegrad.tile(asked, tile=8, compile=False).options.compile is None
    assert tilegrad.tile(chain(), tile=8).options.compile is None


def test_compiled_in_place_is_tiled_still() -> None:
    net, image = integer_module(chain()), integer_tensor((1, 2, 24, 12))
    wanted = run_step(copy.deepcopy(net), [image])
    net.compile(backend="aot_eager")
    tiled = tilegrad.tile(net, tile={"h": 8}, compile=False)
    assert_same(run_step(tiled, [image]), wanted)
    assert tiled.plan.schedule.mode == "stream"
    tiled.compile()
    assert_same(run_step(tilegrad.tile(integer_module(chain()), tile={"h": 8}), [image]), wanted)
