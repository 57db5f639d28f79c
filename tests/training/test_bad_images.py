"""Images that cannot be used are named; they are skipped or stop the run, and what was learned is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import tifffile
import torch
import zarr
from PIL import Image

from tilegrad.cli import main
from tilegrad.errors import FormatError, InputError
from tilegrad.training.checkpoint import LAST, load_checkpoint

SIZE = 64
OPTIONS: dict[str, Any] = {"epochs": 2, "optimizer": "SGD(lr=0.1)"}
GOOD = 4


def tiff(path: Path) -> bytes:
    tifffile.imwrite(path, np.full((SIZE, SIZE, 3), 9, np.uint8), tile=(16, 16), compression="zlib")
    return path.read_bytes()


def truncated(path: Path) -> None:
    content = tiff(path)
    path.write_bytes(content[: len(content) * 3 // 4])


def corrupt(path: Path) -> None:
    """Its header is whole: it opens, and fails in the middle of a step."""
    content = bytearray(tiff(path))
    with tifffile.TiffFile(path) as file:
        at = file.pages[0].dataoffsets[5]  # type: ignore[union-attr]
    content[at : at + 40] = bytes(40)
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"II*\0" + bytes(range(200)))


def wrong_channels(path: Path) -> None:
    tifffile.imwrite(path, np.zeros((SIZE, SIZE), np.uint8))


def wrong_type(path: Path) -> None:
    tifffile.imwrite(path, np.zeros((SIZE, SIZE, 3), np.uint16), photometric="rgb")


def missing(path: Path) -> None:
    pass


BAD = {
    truncated: "it ends at byte",
    corrupt: "cannot be read",
    empty: "the file is empty",
    garbage: "cannot be read|no format|page",
    wrong_channels: "it has 1 channels, the model takes 3",
    wrong_type: "its pixels are uint16, those of other images uint8",
    missing: "there is no such file",
}
every_kind = pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.__name__)


def make(folder: Path, *, bad: Any = None) -> None:
    draw = np.random.default_rng(0)
    lines = ["image,label"]
    for k in range(GOOD):
        pixels = draw.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)
        tifffile.imwrite(folder / f"{k}.tif", pixels, tile=(16, 16), photometric="rgb")
        lines.append(f"{k}.tif,{'ab'[k % 2]}")
    if bad is not None:
        bad(folder / "bad.tif")
        lines.append("bad.tif,a")
    (folder / "train.csv").write_text("\n".join(lines))


@every_kind
def test_skipped(kind: Any, tmp_path: Path) -> None:
    make(tmp_path, bad=kind)
    said: list[str] = []
    trainer = runs.trainer(tmp_path, **OPTIONS, on_bad="skip", budget="300KiB")
    trainer.say = said.append
    trainer.run()
    assert trainer.at.step == 2 * GOOD
    (line,) = [line for line in said if line.startswith("left out")]
    assert "bad.tif" in line
    (noted,) = [line for line in runs.metrics(tmp_path / "run") if "bad" in line]
    assert noted["bad"].endswith("bad.tif")
    assert list(load_checkpoint(tmp_path / "run" / LAST)["at"]["bad"]) == [str(tmp_path / "bad.tif")]


@every_kind
def test_stopped(kind: Any, tmp_path: Path) -> None:
    """The checkpoint is of the last step before it, to the bit; mended, the run goes on."""
    make(tmp_path, bad=kind)
    trainer = runs.trainer(tmp_path, **OPTIONS)
    with pytest.raises(FormatError, match=BAD[kind]) as caught:
        trainer.run()
    assert "bad.tif" in str(caught.value)
    assert "train.csv:6" in str(caught.value)
    state = load_checkpoint(tmp_path / "run" / LAST)
    done = state["at"]["step"]
    assert 0 <= done < GOOD + 1
    assert state["model"]["1.num_batches_tracked"] == done == len(runs.losses(tmp_path / "run"))
    tifffile.imwrite(tmp_path / "bad.tif", np.full((SIZE, SIZE, 3), 9, np.uint8), photometric="rgb")
    runs.trainer(tmp_path, **OPTIONS).run(resume=True)
    runs.trainer(tmp_path, **OPTIONS, out=str(tmp_path / "whole")).run()
    assert runs.losses(tmp_path / "run") == runs.losses(tmp_path / "whole")


def test_a_dropped_step_leaves_no_trace(tmp_path: Path) -> None:
    """A file that fails in the middle of a step, skipped, gives the losses of a run that never knew it."""
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    make(tmp_path / "one", bad=corrupt)
    make(tmp_path / "two", bad=missing)
    for name in ("one", "two"):
        runs.trainer(tmp_path / name, **OPTIONS, on_bad="skip").run()
    assert runs.losses(tmp_path / "one" / "run") == runs.losses(tmp_path / "two" / "run")


def test_held_back_images_too(tmp_path: Path) -> None:
    make(tmp_path, bad=corrupt)
    (tmp_path / "held.csv").write_text("image,label\n0.tif,a\nbad.tif,a\n")
    (tmp_path / "train.csv").write_text("image,label\n0.tif,a\n1.tif,b\n")
    trainer = runs.trainer(tmp_path, **OPTIONS, validate=str(tmp_path / "held.csv"), on_bad="skip")
    trainer.run()
    assert list(trainer.at.bad) == [str(tmp_path / "bad.tif")]
    with pytest.raises(FormatError, match=r"bad\.tif"):
        runs.trainer(tmp_path, **OPTIONS, validate=str(tmp_path / "held.csv"), out=str(tmp_path / "run2")).run()


def test_sizes_that_differ_in_a_batch(tmp_path: Path) -> None:
    runs.make_images(tmp_path, [24, 24, 24, 32])
    with pytest.raises(FormatError, match="in a batch of") as caught:
        runs.trainer(tmp_path, batch=4).run()
    assert ".npy" in str(caught.value) and "accumulate" in str(caught.value)
    trainer = runs.trainer(tmp_path, batch=4, on_bad="skip", out=str(tmp_path / "skip"))
    trainer.run()
    assert trainer.at.step == 1 and not trainer.at.bad  # alone in a batch it would be of use


def test_bytes_without_a_scale(tmp_path: Path) -> None:
    runs.make_images(tmp_path, [24])
    with pytest.raises(InputError, match=r"no scale(?s:.*)scale = 0\.0039"):
        runs.trainer(tmp_path, scale=None).run()


MASKS: dict[str, Any] = {"task": "segmentation", "classes": {"tissue": 0, "tumour": 200}, "ignore_index": 255}


@pytest.mark.parametrize("form", ["png", "palette.png", "tif", "zarr", "npy"])
def test_masks_of_any_format(tmp_path: Path, form: str) -> None:
    """All give the same loss."""
    losses = []
    for each in ("npy", form):
        folder = tmp_path / ("first" if each == "npy" and not losses else "second")
        folder.mkdir()
        runs.make_images(folder, [24], masks=True)
        mask = (np.load(folder / "m0.npy") * 200).astype(np.uint8)
        mask[:3] = 255
        write_mask(folder / f"m.{each}", mask)
        (folder / "train.csv").write_text(f"image,mask\n0.npy,m.{each}\n")
        runs.trainer(folder, **MASKS, flips=True, turns=True).run()
        losses.append(runs.losses(folder / "run"))
    assert losses[0] == losses[1]


def write_mask(path: Path, mask: np.ndarray[Any, Any]) -> None:
    if path.name.endswith("palette.png"):
        image = Image.fromarray(mask, mode=None).convert("L")
        image.putpalette([value for k in range(256) for value in (k, 255 - k, 7)])
        image.save(path)
    elif path.suffix == ".png":
        Image.fromarray(mask).save(path)
    elif path.suffix == ".tif":
        tifffile.imwrite(path, mask)
    elif path.suffix == ".zarr":
        zarr.create_array(path, data=mask, chunks=(10, 10))
    else:
        np.save(path, mask)


BAD_MASKS: dict[str, tuple[Any, str]] = {
    "values": (np.full((24, 24), 3, np.uint8), r"the mask has \[3\], and no class has that value"),
    "size": (np.zeros((24, 20), np.uint8), "the mask is 24x20, its image 24x24"),
    "channels": (np.zeros((24, 24, 3), np.uint8), "a mask with 3 channels"),
    "ignored": (np.full((24, 24), 255, np.uint8), "no pixel of the mask counts"),
}


@pytest.mark.parametrize("case", BAD_MASKS)
def test_bad_masks(case: str, tmp_path: Path) -> None:
    mask, message = BAD_MASKS[case]
    runs.make_images(tmp_path, [24], masks=True)
    np.save(tmp_path / "m0.npy", mask)
    with pytest.raises(FormatError, match=message) as caught:
        runs.trainer(tmp_path, **MASKS).run()
    assert "m0.npy" in str(caught.value)


def test_the_command_says_it_in_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, bad=empty)
    words = ["train", "--train", str(tmp_path / "train.csv"), "--out", str(tmp_path / "run"), "--scale", "0.004"]
    words += ["--model", "resnet18(classes=2, width=0.0625)"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "bad.tif" in said and "--on-bad skip" in said and "Traceback" not in said
    assert main([*words, "--on-bad", "skip", "--resume"]) == 0
    out = capsys.readouterr().out
    assert "left out" in out and "4 steps" in out
    assert torch.load(tmp_path / "run" / LAST, weights_only=True)["classes"] == {"a": 0, "b": 1}
