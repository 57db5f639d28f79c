"""What is refused, and what an error in the middle of a step leaves behind: nothing."""

from __future__ import annotations

import gc
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad
import tilegrad.modules.tiled
from tilegrad.errors import CaptureError, GridError, InputError, ModelError, RunError, TilegradError
from tilegrad.execution import Pass
from tilegrad.ops.conv import Conv
from tilegrad.testing import PeakBytes, assert_same, assert_same_step, integer_module, integer_tensor, run_step

every_mode = pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])


def make_net() -> nn.Module:
    return integer_module(
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3, padding=1))
    )


def image(*shape: int) -> Tensor:
    return integer_tensor(shape or (1, 2, 13, 11))


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Pass]]]:
    """Weak references to all sessions that are made: what a step keeps lives in them."""
    made: list[weakref.ref[Pass]] = []

    class Watched(Pass):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            made.append(weakref.ref(self))

    monkeypatch.setattr(tilegrad.modules.runner, "Pass", Watched)
    yield made
    gc.collect()
    assert made and not any(ref() for ref in made)


# Nothing is kept


@every_mode
def test_without_gradients_nothing_is_kept(mode: str, sessions: list[weakref.ref[Pass]]) -> None:
    tiled, plain = tilegrad.tile(make_net(), tile=4, mode=mode), make_net()
    for block in (torch.no_grad, torch.inference_mode):
        with block():
            out = tiled(image())
            assert torch.equal(out, plain(image()))
        assert not out.requires_grad and out.is_inference() == (block is torch.inference_mode)
        assert sessions[-1]() is None  # at once, without the garbage collector
    tiled.requires_grad_(False)
    assert not tiled(image()).requires_grad and sessions[-1]() is None


@every_mode
def test_backward_frees_the_session(mode: str, sessions: list[weakref.ref[Pass]]) -> None:
    tiled = tilegrad.tile(make_net(), tile=4, mode=mode)
    out = tiled(image())
    out.sum().backward()
    session = sessions[-1]()
    assert session is None or not (session.values or session.halos.items or session.halo_grads or session.grads)


@every_mode
def test_dropping_the_output_frees_the_session(mode: str, sessions: list[weakref.ref[Pass]]) -> None:
    out = tilegrad.tile(make_net(), tile=4, mode=mode)(image())
    assert sessions[-1]() is not None
    del out
    assert sessions[-1]() is None


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_training_after_inference(block: Any) -> None:
    tiled = tilegrad.tile(make_net(), tile=4)
    with block():
        tiled(image())
    assert_same(run_step(tiled, [image()]), run_step(make_net(), [image()]))


# Where halos wait


@pytest.mark.parametrize("halos", ["device", "host", "disk"])
def test_halos_anywhere(halos: str) -> None:
    net = nn.Sequential(make_net(), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3)).double()
    assert_same_step(net, image(2, 2, 13, 11), exact=False, tolerance=1e-12, tile=4, halos=halos)
    assert_same_step(make_net(), image(2, 2, 13, 11), tile=3, halos=halos)


def open_files() -> list[str]:
    folder = "/proc/self/fd"
    return [link for fd in os.listdir(folder) if (link := _link(f"{folder}/{fd}")).endswith("(deleted)")]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks at open files where Linux lists them")
def test_the_temporary_file_has_no_name_and_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiled = tilegrad.tile(make_net(), tile=4, mode="stream", halos="disk")
    tiled(image()).sum().backward()  # torch makes a folder when it first compiles anything
    gc.collect()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # others may have files of their own in the usual one
    before = len(open_files())
    out = tiled(image())
    assert len(open_files()) == before + 1
    assert os.listdir(tmp_path) == []
    out.sum().backward()
    del out
    gc.collect()
    held = len(open_files())  # what it had waits for the next step
    for _ in range(3):
        tiled(image()).sum().backward()
        with torch.no_grad():
            tiled(image())
    gc.collect()
    assert len(open_files()) == held <= before + 2
    del tiled
    gc.collect()
    assert len(open_files()) <= before


def test_halos_on_disk_take_no_memory() -> None:
    net = nn.Sequential(nn.Conv2d(2, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU())
    peaks = {}
    for halos in ("device", "disk"):
        tiled = tilegrad.tile(net, tile={"h": 4}, mode="stream", halos=halos)
        tiled(torch.zeros(1, 2, 64, 64))
        with PeakBytes() as peak:
            tiled(torch.zeros(1, 2, 64, 64)).sum().backward()
        peaks[halos] = peak.bytes
    # 15 seams, each of 4 rows of 8 channels before the second convolution
    assert peaks["device"] - peaks["disk"] > 0.8 * 15 * 4 * 64 * 8 * 4


# Errors on the way


@every_mode
def test_an_error_in_a_hook_leaves_the_module_usable(mode: str, sessions: list[weakref.ref[Pass]]) -> None:
    net = make_net()
    tiled = tilegrad.tile(net, tile=4, mode=mode)

    def stumble(_: Tensor) -> None:
        raise ZeroDivisionError("on purpose")

    handle = net[0].weight.register_hook(stumble)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        run_step(tiled, [image()])
    handle.remove()
    net.zero_grad()
    assert_same(run_step(tiled, [image()]), run_step(make_net(), [image()]))


@every_mode
@pytest.mark.parametrize("at", [3, 30])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_an_interrupted_step(
    error: type[BaseException],
    at: int,
    mode: str,
    sessions: list[weakref.ref[Pass]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiled = tilegrad.tile(make_net(), tile=4, mode=mode)
    tiled.plan_for(image().requires_grad_())  # so that the step alone is counted
    run, count = Conv.run, [0]

    def stop(*args: Any) -> Tensor:
        count[0] += 1
        if count[0] == at:  # the third is in the forward pass, the thirtieth in backward
            raise error("stop")
        return run(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Conv, "run", stop)
        with pytest.raises(error, match="stop"):
            run_step(tiled, [image()])
    assert count[0] == at
    tiled.zero_grad()
    assert_same(run_step(tiled, [image()]), run_step(make_net(), [image()]))


# What is refused


def test_second_derivatives() -> None:
    x = image().requires_grad_()
    out = tilegrad.tile(make_net(), tile=4)(x)
    with pytest.raises(TilegradError, match="second-order gradients through a tiled module"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


@pytest.mark.parametrize("retain", [True, False])
def test_backward_twice(retain: bool) -> None:
    loss = tilegrad.tile(make_net(), tile=4)(image()).sum()
    loss.backward(retain_graph=retain)
    with pytest.raises(TilegradError, match="backward a second time"):
        loss.backward()


@every_mode
@pytest.mark.parametrize("what", ["parameter", "input", "output"])
def test_what_backward_needs_must_not_be_written_to(what: str, mode: str) -> None:
    """As in plain torch, where autograd counts versions; recomputing from other numbers would be silently wrong."""
    net = nn.Sequential(make_net(), nn.Conv2d(3, 3, 3, padding=1)).double()
    x = image().requires_grad_()
    tiled = tilegrad.tile(_Both(net), tile=4, mode=mode)
    y = x * 1
    first, second = tiled(y)
    with torch.no_grad():
        {"parameter": net[1].weight, "input": y, "output": first}[what].mul_(2)
    with pytest.raises(RunError, match="written to after the forward pass"):
        second.sum().backward()


class _Both(nn.Module):
    """Gives back a value that it goes on to reduce, so that a later phase reads it again."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.net(x)
        return y, y * y.mean((2, 3), keepdim=True)


@every_mode
def test_an_output_nobody_reads_again_may_be_written_to(mode: str) -> None:
    plain, tiled = make_net(), tilegrad.tile(make_net(), tile=4, mode=mode)
    for run in (plain, tiled):
        run(image()).mul_(3).relu_().sum().backward()
    for a, b in zip(plain.parameters(), tiled.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_wrong_channels() -> None:
    tiled = tilegrad.tile(make_net(), tile=4)
    with pytest.raises(ModelError, match="to have 2 channels, but got 3"):
        tiled(image(1, 3, 13, 11))
    assert torch.equal(tiled(image()), make_net()(image()))  # and goes on


def test_wrong_type() -> None:
    with pytest.raises(ModelError):
        tilegrad.tile(make_net(), tile=4)(image().float())


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.sum() > 0 else x


def test_a_branch_on_content() -> None:
    with pytest.raises(CaptureError, match="branches on the content of a tensor"):
        tilegrad.tile(Branches(), tile=4)(torch.zeros(1, 2, 9, 9))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 4, "mode": "sideways"}, "not a mode"),
        ({"tile": 4, "halos": "moon"}, "halos cannot be kept"),
        ({"tile": 4, "axes": "d"}, "no axis 'd'"),
        ({"tile": (4, 4, 4)}, "3 tile sizes for 2 axes"),
        ({"tile": 0}, "a tile of 0"),
        ({"tile": {"h": -1}}, "a tile of -1"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, GridError), match=message):
        tilegrad.tile(make_net(), **options)(image())


def test_a_batch_has_one_name() -> None:
    """That of meshes: "n" is an abbreviation."""
    net, x = make_net(), image().repeat(4, 1, 1, 1)
    for options in ({"axes": "batch", "tile": 2}, {"axes": ["n"], "tile": 2}, {"tile": {"batch": 2}}):
        tiled = tilegrad.tile(net, **options)  # type: ignore[arg-type]
        torch.testing.assert_close(tiled(x), net(x))
        assert tiled.options.axes == ("n",) or tiled.options.tile == (("n", 2),)


def test_tiled_twice() -> None:
    with pytest.raises(InputError, match="tiled already"):
        tilegrad.tile(tilegrad.tile(make_net(), tile=4), tile=4)
