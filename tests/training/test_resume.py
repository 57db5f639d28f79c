"""A run that was stopped, by whatever, goes on as if nothing had been: the same losses, bit for bit."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from torch import nn

from tilegrad import files
from tilegrad.errors import FormatError, InputError, RunError
from tilegrad.training import Stopped
from tilegrad.training.checkpoint import LAST, load_checkpoint, random_state, set_random_state

OPTIONS: dict[str, Any] = {
    "epochs": 3,
    "validate": 0.3,
    "flips": True,
    "turns": True,
    "optimizer": "AdamW(lr=0.01)",
    "schedule": "CosineAnnealingLR(T_max=20)",
    "schedule_each": "step",
    "checkpoint_steps": 2,
}


def in_step(net: nn.Module, at: int, do: Callable[[], None]) -> None:
    """Do something in the backward of a certain step."""
    calls = []

    def called(gradient: torch.Tensor) -> None:
        calls.append(1)
        if len(calls) == at:
            do()

    next(net.parameters()).register_hook(called)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Programs that a shell starts in the background ignore Ctrl-C, and so would these tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def fill(folder: Path) -> Path:
    runs.make_images(folder, [24, 24, 32, 24, 32, 24, 24, 32, 24, 24])
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing stopped."""
    folder = fill(tmp_path_factory.mktemp("undisturbed"))
    runs.trainer(folder, out=str(folder / "whole"), **OPTIONS).run()
    return folder / "whole"


@pytest.fixture
def whole(undisturbed: Path) -> list[float]:
    return runs.losses(undisturbed)


def interrupt(kind: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), kind)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [1, 6, 9])
def test_a_signal_in_a_step(folder: Path, whole: list[float], kind: int, at: int) -> None:
    """In the middle of backward: the statistics of batch norm have moved already."""
    first = runs.trainer(folder, **OPTIONS)
    net = first.objective.net
    in_step(net, at, interrupt(kind))
    with pytest.raises(Stopped) as stopped:
        first.run()
    assert stopped.value.signal == kind
    assert all(p.grad is None for p in net.parameters())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(runs.losses(folder / "run")) == at - 1
    state = load_checkpoint(folder / "run" / LAST)
    assert state["at"]["step"] == at - 1 == state["model"]["1.num_batches_tracked"]
    runs.trainer(folder, **OPTIONS).run(resume=True)
    assert runs.losses(folder / "run") == whole


def test_an_epoch_at_a_time(folder: Path, undisturbed: Path) -> None:
    """What was validated, and the best, too."""
    for epochs in (1, 2, 3):
        runs.trainer(folder, **OPTIONS | {"epochs": epochs}).run(resume=epochs > 1)
    drop = ("seconds", "images_per_s", "peak_bytes")
    lines = [
        [{k: v for k, v in line.items() if k not in drop} for line in runs.metrics(out)]
        for out in (folder / "run", undisturbed)
    ]
    assert lines[0] == lines[1]
    one, two = (load_checkpoint(out / "best.pt") for out in (folder / "run", undisturbed))
    assert one["at"] == two["at"]
    assert all(torch.equal(one["model"][key], two["model"][key]) for key in two["model"])


COMMAND = [sys.executable, "-m", "tilegrad", "train"]
NET = """
import sys
sys.path.insert(0, {tests!r})
from runs import classifier
"""


@pytest.fixture
def command(folder: Path) -> list[str]:
    (folder / "net.py").write_text(NET.format(tests=str(Path(__file__).parent)))
    lines = [f"{key} = {json.dumps(value)}" for key, value in OPTIONS.items()]
    lines += ['train = "train.csv"', f'model = "{folder}/net.py:classifier"', "scale = 0.00392156862745098"]
    (folder / "run.toml").write_text("\n".join(lines))
    return [*COMMAND, str(folder / "run.toml")]


def process(command: list[str], *more: str) -> subprocess.Popen[str]:
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *more], env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)  # type: ignore[call-overload, no-any-return]


def killed_at(command: list[str], out: Path, moments: int, seed: int) -> None:
    """Kill it so many times, at random moments of a run that is slowed down by nothing but its own work."""
    draw = random.Random(seed)
    for _ in range(moments):
        lines = _lines(out)
        wanted = lines + draw.randrange(1, 5)
        running = process(command, "--out", str(out), *(["--resume"] if (out / LAST).exists() else []))
        deadline = time.monotonic() + 60
        while running.poll() is None and _lines(out) < wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.01)
        running.kill()
        running.communicate()
        if (out / LAST).exists():
            assert load_checkpoint(out / LAST)["schema"] == 1


def _lines(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("moments", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_random_moments(folder: Path, whole: list[float], command: list[str], moments: int) -> None:
    out = folder / "killed"
    killed_at(command, out, moments, seed=moments)
    running = process(command, "--out", str(out), *(["--resume"] if (out / LAST).exists() else []))
    said = running.communicate(timeout=120)
    assert running.returncode == 0, said
    assert runs.losses(out) == whole
    assert not list(out.glob(".tilegrad-*"))


def test_ctrl_c_of_the_command(folder: Path, whole: list[float], command: list[str]) -> None:
    out = folder / "stopped"
    running = process(command, "--out", str(out))
    while running.poll() is None and _lines(out) < 3:
        time.sleep(0.001)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "go on with --resume" in said
    assert "Traceback" not in said
    again = process(command, "--out", str(out), "--resume")
    again.communicate(timeout=120)
    assert again.returncode == 0
    assert runs.losses(out) == whole


def test_a_disk_that_is_full(folder: Path, whole: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """The old checkpoint stays, the run says so and goes on; with room again, the next one is written."""
    said: list[str] = []
    first = runs.trainer(folder, **OPTIONS)
    first.say = said.append
    real, full = os.fsync, [False]
    left: list[int] = []

    def write(number: int) -> None:
        if full[0] and str(os.readlink(f"/proc/self/fd/{number}")).endswith(".tmp"):
            left.append(load_checkpoint(folder / "run" / LAST)["at"]["step"])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    tell = first._tell

    def told(loss: float) -> None:
        full[0] = 3 <= first.at.step < 9
        tell(loss)

    monkeypatch.setattr(first, "_tell", told)
    monkeypatch.setattr(files.os, "fsync", write)
    first.run()
    assert runs.losses(folder / "run") == whole
    assert left and set(left) == {2}
    assert any("No space left on device" in line and "untouched" in line for line in said)
    assert load_checkpoint(folder / "run" / LAST)["at"]["epoch"] == 3
    assert not list((folder / "run").glob(".tilegrad-*"))


def test_a_loss_that_is_not_finite(folder: Path) -> None:
    """The step is dropped, the images are named, and what was learned is kept."""
    first = runs.trainer(folder, **OPTIONS)

    def explode(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * float("nan") if first.at.step == 4 else output

    first.tiled.register_forward_hook(explode)
    with pytest.raises(RunError, match="loss of step 5 is nan") as caught:
        first.run()
    assert ".npy" in str(caught.value)
    state = load_checkpoint(folder / "run" / LAST)
    assert state["at"]["step"] == 4
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_generators_go_on() -> None:
    import numpy as np

    def draw() -> tuple[Any, ...]:
        return torch.rand(3).tolist(), random.random(), np.random.rand(), np.random.randn()

    draw()
    state = random_state()
    one = draw()
    set_random_state(state)
    assert draw() == one


def test_checkpoints_that_cannot_be_used(folder: Path) -> None:
    with pytest.raises(InputError, match="there is no checkpoint"):
        runs.trainer(folder, **OPTIONS).run(resume=True)
    runs.trainer(folder, **OPTIONS | {"epochs": 1}).run()
    with pytest.raises(InputError, match="a run in this folder already"):
        runs.trainer(folder, **OPTIONS).run()
    with pytest.raises(InputError, match="other images or classes"):
        runs.trainer(folder, **OPTIONS | {"validate": 0.5}).run(resume=True)
    with pytest.raises(InputError, match="another model or optimizer"):
        runs.trainer(
            folder, net=nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), **OPTIONS
        ).run(resume=True)
    path = folder / "run" / LAST
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match="not a checkpoint"):
        runs.trainer(folder, **OPTIONS).run(resume=True)
