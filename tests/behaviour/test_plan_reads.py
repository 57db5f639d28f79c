"""A plan as people see it: in words, in a notebook, in short; and its figures agree."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import tilegrad
from tilegrad.models import SegmentationLoss, resnet18, unet, wavenet1d
from tilegrad.modules import planned
from tilegrad.sim.predict import predict
from tilegrad.units import parse_bytes

SIZE = r"[\d.]+(?:[KMG]i)?B"


def losses() -> nn.Module:
    return SegmentationLoss(unet(depth=2, width=0.0625))


IMAGE = (torch.zeros(1, 1, 128, 128), torch.zeros(1, 128, 128, dtype=torch.long))
PLANS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "tiles and a fold": (losses, IMAGE, {"tile": 32}),
    "tiles in a budget": (losses, IMAGE, {"budget": "2MiB", "planner": "tile"}),
    "statistics": (lambda: resnet18(width=0.125), ((1, 3, 128, 96),), {"tile": 32}),
    "elsewhere": (lambda: resnet18(width=0.125), ((1, 3, 128, 128),), {"tile": 32, "halos": "disk"}),
    "one axis": (lambda: wavenet1d(width=0.125), ((1, 1, 512),), {"tile": 128}),
    "run again": (losses, IMAGE, {"budget": "3MiB", "planner": "recompute"}),
    "plain": (losses, IMAGE, {"budget": "1GiB"}),
}


@pytest.fixture(params=PLANS, scope="module")
def plan(request: pytest.FixtureRequest) -> tilegrad.Plan:
    make, inputs, options = PLANS[request.param]
    return tilegrad.tile(make(), **options).plan_for(*inputs)


def test_no_part_is_larger_than_the_peak(plan: tilegrad.Plan) -> None:
    text, total = str(plan), plan.schedule.predicted["total_bytes"]
    assert len(text.splitlines()) <= 25
    parts = re.findall(rf"({SIZE})(?: at once| on device| beyond)", text)
    parts += re.findall(rf"halos +({SIZE}) at most, kept on device", text)
    assert all(parse_bytes(part) <= 1.005 * total for part in parts if part != "0B")


def test_a_notebook_shows_the_same_peak(plan: tilegrad.Plan) -> None:
    found = plan._repr_html_()
    page = ElementTree.fromstring(found)  # well formed, whatever names are in it
    pictures = page.findall(".//svg")
    assert bool(pictures) == (plan.schedule.mode != "none")
    said = re.findall(rf"peak +({SIZE})", found)
    assert len(said) == 1 + ("tensors, step by step" in found) and len(set(said)) == 1
    assert ("budget " in "".join(page.itertext())) == (plan.budget is not None)
    if plan.schedule.mode != "none":
        assert plan._memory is not None
        assert plan._memory.peak_bytes == plan.schedule.predicted["total_bytes"]


def test_in_short(plan: tilegrad.Plan) -> None:
    assert len(repr(plan)) < 120 and "\n" not in repr(plan)
    assert str(plan).splitlines()[0].split(": ")[1] in repr(plan)


def test_names_in_a_notebook_are_text() -> None:
    class Net(nn.Conv2d):
        pass

    Net.__name__ = "<b>&"
    ElementTree.fromstring(tilegrad.tile(Net(1, 1, 3), tile=16).plan_for((1, 1, 64, 64))._repr_html_())


def test_bytes_are_printed_in_the_units_of_the_budget() -> None:
    make, inputs, _ = PLANS["tiles in a budget"]
    for budget, other in (("2MB", "iB"), ("1953KiB", "MB")):
        plan = tilegrad.tile(make(), budget=budget).plan_for(*inputs)
        for text in (str(plan), repr(plan), plan._repr_html_()):
            assert other not in text, text
    assert "budget      2.00MB" in str(tilegrad.tile(make(), budget="2MB").plan_for(*inputs))


def test_tiles_of_a_given_size_wait_for_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made once, for who asks."""
    made = []
    monkeypatch.setattr(planned, "predict", lambda *args: made.append(predict(*args)) or made[-1])
    tiled = tilegrad.tile(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 3)), tile=8)
    tiled(torch.zeros(1, 1, 24, 24)).sum().backward()
    assert not made
    assert "of tensors predicted" in str(tiled.plan) and "peak" in repr(tiled.plan)
    assert len(made) == 1 and tiled.plan.schedule.predicted == made[0].figures
