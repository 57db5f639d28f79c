"""No option of `tilegrad.tile` is ignored silently: in any company it changes the plan, or it is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import tilegrad
from tilegrad.errors import BudgetError, InputError
from tilegrad.importers import Captured, export_module
from tilegrad.modules import tiled
from tilegrad.schedule import format_schedule

SAMPLES: dict[str, tuple[Any, ...]] = {
    "budget": ("20KiB", "100KiB", "1GiB"),  # nothing fits, tiles do, plain does
    "tile": (8, (("h", 8), ("w", 16))),  # the second is a dict
    "axes": ("w", "q"),
    "mode": ("gather", "scatter", "none"),
    "halos": ("disk",),
    "planner": ("keep", "segments", "recompute", "offload"),
    "cuda_graphs": (True,),
    "exchange": ("layer",),
    "timeout": (5.0,),
}
SHAPE = (1, 2, 32, 32)


@cache
def net() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 8, 3, padding=1), nn.Sigmoid(), nn.Conv2d(8, 8, 3, padding=1), nn.Sigmoid())
    return nn.Sequential(*layers, nn.Conv2d(8, 1, 3, padding=1))


@pytest.fixture(autouse=True)
def captured_once() -> Iterator[None]:
    """All plans are of one network and one shape."""
    with mock.patch.object(tiled, "export_call", return_value=captured()):
        yield


@cache
def captured() -> Captured:
    return export_module(net(), [SHAPE])


def planned(*options: tuple[str, Any]) -> str:
    """The plan, or why there is none."""
    return _planned(*sorted(options))


@cache
def _planned(*options: tuple[str, Any]) -> str:
    given = {name: dict(value) if isinstance(value, tuple) else value for name, value in options}
    try:
        plan = tilegrad.tile(net(), **given).plan_for(SHAPE)
    except BudgetError as error:
        return str(error)
    except InputError as error:
        assert error.hint, error  # what to try
        return f"refused: {error}"
    return f"{plan.schedule.mode} {plan.schedule.storage} {format_schedule(plan.schedule)}"


def contexts(option: str) -> list[tuple[tuple[str, Any], ...]]:
    """Up to two other options, each of their values."""
    found: list[tuple[tuple[str, Any], ...]] = []
    for count in (0, 1, 2):
        for names in combinations([name for name in SAMPLES if name != option], count):
            found += [tuple(zip(names, values, strict=True)) for values in product(*(SAMPLES[name] for name in names))]
    return [context for context in found if not planned(*context).startswith(("refused", "nothing fits"))]


@pytest.mark.parametrize("option", SAMPLES)
def test_it_changes_the_plan_or_is_refused(option: str) -> None:
    idle = []
    for context in contexts(option):
        if option in ("tile", "axes", "mode", "halos", "planner") and ("budget", "1GiB") in context:
            continue  # where plain fits, plain is the plan, whatever else could be
        if (option, context) == ("mode", ()):
            continue  # "none" says what is done anyway
        found = [planned(*context, (option, value)) for value in SAMPLES[option]]
        accepted = [plan for plan in found if not plan.startswith("refused")]
        if accepted and all(plan == planned(*context) for plan in accepted):
            idle.append(context)
    assert idle == []


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an axis that is none": ({"tile": 8, "axes": "q"}, "there is no axis 'q'"),
    "an axis of the tile that is none": ({"tile": {"q": 8}}, "there is no axis 'q'"),
    "an axis twice": ({"tile": 8, "axes": "hh"}, "one of them twice"),
    "no axis": ({"tile": 8, "axes": ""}, "are none"),
    "an axis that this network lacks": ({"budget": "1GiB", "axes": "d"}, "has no axis 'd'"),
    "a mode over a planner": ({"budget": "1MiB", "mode": "stream", "planner": "recompute"}, "planner has no effect"),
    "a tile of words": ({"tile": "128"}, "a tile of '128' is not possible"),
    "a tile of halves": ({"tile": 1.5}, "a tile of 1.5 is not possible"),
    "a typo": ({"tile": 8, "mode": "steam"}, "did you mean 'stream'?"),
    "another": ({"budget": "1MiB", "planner": "recompte"}, "did you mean 'recompute'?"),
    "graphs without a GPU": ({"tile": 8, "cuda_graphs": True}, "cuda_graphs has no effect on cpu"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(InputError, match=f"(?s){re.escape(message)}|  try  .*{re.escape(message)}") as caught:
        tilegrad.tile(net(), **options).plan_for(SHAPE)
    assert caught.value.hint


def test_verify_is_typed() -> None:
    image = torch.zeros(SHAPE)
    with pytest.raises(TypeError, match="unexpected keyword argument 'mesh'"):
        tilegrad.verify(net(), image, mesh=None)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="a tolerance of -1 is not possible"):
        tilegrad.verify(net(), image, tile=8, tolerance=-1)
