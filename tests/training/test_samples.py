"""What there is to learn from: CSVs and folders, labels and masks, and what is wrong with them, by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilegrad.errors import FormatError, InputError
from tilegrad.training.samples import class_names, fingerprint, read_samples, split


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def test_a_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        '\ufeffimage, label, age\nx.tif, tumour, 3\n"y, z.tif",benign,4\n', encoding="utf-8"
    )
    found = read_samples(str(tmp_path / "a.csv"), "classification")
    assert [(sample.image, sample.target) for sample in found] == [
        (tmp_path / "x.tif", "tumour"),
        (tmp_path / "y, z.tif", "benign"),
    ]
    assert found[1].where.endswith("a.csv:3")
    assert class_names(found) == {"benign": 0, "tumour": 1}


def test_a_csv_of_masks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("mask,image\nm/x.png,x.tif\n")
    (found,) = read_samples(str(tmp_path / "a.csv"), "segmentation")
    assert (found.image, found.target) == (tmp_path / "x.tif", str(tmp_path / "m/x.png"))


def test_folders_of_labels(tmp_path: Path) -> None:
    """A zarr is an image, though it is a folder."""
    touch(tmp_path, "benign/1.tif", "tumour/2.tif", "tumour/3.zarr/zarr.json", "tumour/.DS_Store")
    found = read_samples(str(tmp_path), "classification")
    assert [(s.image.name, s.target) for s in found] == [("1.tif", "benign"), ("2.tif", "tumour"), ("3.zarr", "tumour")]


def test_folders_of_masks(tmp_path: Path) -> None:
    touch(tmp_path, "images/1.ome.tif", "images/2.tif", "masks/1.png", "masks/2.zarr/.zarray")
    found = read_samples(str(tmp_path), "segmentation")
    assert [Path(sample.target).name for sample in found] == ["1.png", "2.zarr"]
    touch(tmp_path, "images/3.tif")
    with pytest.raises(InputError, match="no mask of this name") as caught:
        read_samples(str(tmp_path), "segmentation")
    assert "3.tif" in str(caught.value)


def test_numbers_are_labels_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image,label\n" + "\n".join(f"{k}.tif,{k}" for k in (10, 9, 2)))
    assert list(class_names(read_samples(str(tmp_path / "a.csv"), "classification"))) == ["2", "9", "10"]


BAD = {
    "no column": ("picture,label\na,b\n", "there is no column 'image'", "a.csv:1"),
    "no label": ("image,label\na.tif,x\nb.tif,\n", "the label is missing", "a.csv:3"),
    "short line": ("image,label\na.tif\n", "the label is missing", "a.csv:2"),
    "empty": ("image,label\n", "there are no images", "a.csv"),
    "nothing": ("", "there is no column", "a.csv:1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_csvs(case: str, tmp_path: Path) -> None:
    text, message, where = BAD[case]
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_samples(str(tmp_path / "a.csv"), "classification")
    assert where in str(caught.value)


def test_what_is_no_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe" + np.arange(9).tobytes())
    with pytest.raises(FormatError, match="not a CSV"):
        read_samples(str(tmp_path / "a.csv"), "classification")
    with pytest.raises(InputError, match="no file or folder"):
        read_samples(str(tmp_path / "b.csv"), "classification")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no folders with the names of labels"):
        read_samples(str(tmp_path / "empty"), "classification")


def test_a_share_is_held_back(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image,label\n" + "\n".join(f"{k}.tif,a" for k in range(10)))
    samples = read_samples(str(tmp_path / "a.csv"), "classification")
    kept, back = split(samples, 0.3, seed=1)
    assert (len(kept), len(back)) == (7, 3)
    assert {*kept, *back} == {*samples}
    assert split(samples, 0.3, seed=1) == (kept, back) != split(samples, 0.3, seed=2)
    assert fingerprint(kept) != fingerprint(samples)
    with pytest.raises(InputError, match="is 0"):
        split(samples, 0.01, seed=1)
