"""The configuration: every key is understood or refused, with its name and what to write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from torch import nn

from tilegrad.cli import main
from tilegrad.errors import InputError
from tilegrad.recipe import Recipe, parse_recipe
from tilegrad.training import Stopped, Trainer
from tilegrad.training.config import load_config, make, make_config, parse_value
from tilegrad.training.metrics import MetricLog
from tilegrad.units import in_decimal

GIVEN = {"train": "a.csv", "model": "resnet18"}


def test_recipes() -> None:
    assert parse_recipe("SGD") == Recipe("SGD")
    assert parse_recipe("a.b:c(width=0.5, betas=(0.9, 0.99), name='x')").options["betas"] == (0.9, 0.99)
    assert (
        parse_recipe({"name": "SGD", "lr": 1})
        == parse_recipe("SGD(lr=1)")
        == parse_recipe(str(Recipe("SGD", {"lr": 1})))
    )


@pytest.mark.parametrize(
    "given", ["", "SGD(lr=)", "SGD(lr=0.1, 2)", "SGD(lr=open)", 3, {"lr": 1}, "SGD(lr=1, )) + (f(b=2))"]
)
def test_what_is_no_recipe(given: Any) -> None:
    with pytest.raises(InputError, match="a name with options"):
        parse_recipe(given)


def test_flags_speak_toml() -> None:
    assert [parse_value(text) for text in ("3", "0.5", "true", "SGD(lr=1)", "[1, 2]", "{h = 2}")] == [
        3, 0.5, True, "SGD(lr=1)", [1, 2], {"h": 2}
    ]  # fmt: skip


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "a typo": ({"epoch": 3}, "there is no key 'epoch'", "did you mean 'epochs'?"),
    "nothing like it": ({"zzz": 3}, "there is no key 'zzz'", "train, model, task"),
    "text for a number": ({"epochs": "many"}, "'many' cannot be used", "a whole number from 1 on"),
    "true for a number": ({"epochs": True}, "'True' cannot be used", "a whole number"),
    "too small": ({"batch": 0}, "'0' cannot be used", "key 'batch'"),
    "a choice": ({"task": "segment"}, "'segment' cannot be used", "did you mean 'segmentation'?"),
    "a budget": ({"budget": "much"}, "'much' cannot be used", "key 'budget'"),
    "classes": ({"classes": ["a", "a"]}, "cannot be used", "names that differ"),
    "no classes": ({"task": "segmentation"}, "masks need names", "classes = "),
    "a schedule's steps": ({"schedule_each": "step"}, "it has no effect without a schedule", "no schedule_each"),
    "masks' value": ({"ignore_index": 9}, "it has no effect on labels", "no ignore_index"),
    "the best of nothing": ({"best": "accuracy"}, "it has no effect without images to validate on", "no best"),
    "halos of plain": ({"halos": "disk"}, "it has no effect without a budget", "no halos"),
    "iou of labels": ({"best": "iou"}, "iou is for masks", "accuracy"),
    "a share": ({"validate": 1.5}, "'1.5' cannot be used", "such as 0.2"),
    "weights": ({"class_weights": [1, -1]}, "cannot be used", "balanced"),
    "a mesh": ({"mesh": {"x": 2}}, "cannot be used", "{h = 2, w = 2}"),
    "a device": ({"device": "gpu"}, "'gpu' cannot be used", "cpu, cuda"),
    "two scales": ({"scale": [1.0, 2.0]}, "cannot be used", "a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case: str) -> None:
    keys, what, hint = BAD[case]
    with pytest.raises(InputError) as caught:
        make_config(GIVEN | keys, "run.toml")
    assert what in str(caught.value) and hint in str(caught.value)


def test_what_is_missing() -> None:
    with pytest.raises(InputError, match="the key 'model' is missing"):
        make_config({"train": "a.csv"}, "run.toml")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'train = "a.csv"\nvalidate = 0.2\nout = "../run"\n[model]\nname = "unet"\nwidth = 0.5'
    )
    given = load_config(tmp_path / "run.toml")
    assert given["train"] == str(tmp_path / "a.csv")
    config = make_config(given, "run.toml")
    assert (config.validate, config.model) == (0.2, Recipe("unet", {"width": 0.5}))
    (tmp_path / "bad.toml").write_text("train = a.csv")
    with pytest.raises(InputError, match=r"not TOML.*line 1"):
        load_config(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="No such file"):
        load_config(tmp_path / "none.toml")


def test_torch_by_name() -> None:
    weights = nn.Linear(1, 1).parameters()
    found = make(Recipe("SGD", {"lr": 0.5}), torch.optim, torch.optim.Optimizer, "optimizer", weights)
    assert isinstance(found, torch.optim.SGD) and found.defaults["lr"] == 0.5
    for name, hint in (("sdg", "did you mean 'SGD'"), ("adamw", "did you mean 'AdamW'"), ("?", "AdamW")):
        with pytest.raises(InputError, match="key 'optimizer'") as caught:
            make(Recipe(name), torch.optim, torch.optim.Optimizer, "optimizer", weights)
        assert hint in str(caught.value)
    with pytest.raises(InputError, match=r"SGD\(speed=1\) cannot be made.*speed"):
        make(Recipe("SGD", {"speed": 1}), torch.optim, torch.optim.Optimizer, "optimizer", weights)


def test_the_command_that_was(capsys: pytest.CaptureFixture[str]) -> None:
    """`tilegrad train MODEL` says in one line what to write instead."""
    for words in (["resnet18", "--input", "1x3x64x64", "--steps", "3", "--json"], ["resnet18"], ["net.py:make"]):
        assert main(["train", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"tilegrad record {words[0]} …" in line


@pytest.mark.parametrize(("file", "flags", "decimal"), [
    ("150MB", [], True), ("150MiB", [], False), ("150MB", ["--budget", "1GiB"], False),
])  # fmt: skip
def test_bytes_are_told_as_the_file_gave_them(
    file: str, flags: list[str], decimal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag goes before the file."""
    told = []

    def run(trainer: Any, resume: bool) -> Any:
        told.append(in_decimal())
        raise Stopped(2)

    monkeypatch.setattr(Trainer, "run", run)
    runs.make_images(tmp_path, [24, 24])
    lines = [f'train = "{tmp_path}/train.csv"', 'model = "resnet18"', f'budget = "{file}"', "scale = 0.004"]
    (tmp_path / "run.toml").write_text("\n".join(lines))
    assert main(["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), *flags]) == 128 + 2
    assert told == [decimal]


def test_no_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="tensorboard is not installed") as caught:
        MetricLog(tmp_path, 0, 0, tensorboard=True)
    assert "pip install 'tilegrad[tensorboard]'" in str(caught.value)
