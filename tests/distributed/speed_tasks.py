"""What ranks count of their own steps, for tests."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from typing import Any
from unittest import mock

import torch
from tasks import Case, Found, step
from torch import nn

import tilegrad
from tilegrad.distributed import part
from tilegrad.planners.mesh import RankPlan


def count_step(mesh: Any, payload: tuple[nn.Module, tuple[int, ...]]) -> dict[str, float]:
    """Of a step in training, once everything is made: calls of functions in Python, and all that is sent."""
    net, shape = payload
    torch.manual_seed(0)
    tiled, x = tilegrad.tile(net, mesh=mesh), part(torch.randn(shape), mesh)
    made, events = None, Counter[str]()
    for last in (False, False, True):  # in the first, second, fourth, … ranks compare their parameters
        tiled.traffic.clear()
        sys.setprofile((lambda frame, event, arg: events.update((event,))) if last else None)
        made = tiled(x)
        made.sum().backward()
        sys.setprofile(None)
    return asdict(tiled.traffic) | {"calls": events["call"]}


def step_by_step(mesh: Any, case: Case) -> Found:
    """A step that keeps everything, by the walk over its schedule instead of its program."""
    with mock.patch.object(RankPlan, "replays", False):
        return step(mesh, case)
