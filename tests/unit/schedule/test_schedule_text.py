"""Plans in words and as data."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from thorough import crossed
from tilegrad.bounds import lower_graph
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.models import NETWORKS
from tilegrad.planners import TrainingStep
from tilegrad.planners.tiling import plan_plain, plan_tiles
from tilegrad.schedule import Schedule, format_plan, plan_to_json
from tilegrad.schedule.text import format_rows
from tilegrad.sim.machine import CPU


def without_inputs() -> Graph:
    """As in a profile that does not say what came from outside."""
    graph = lower_graph(export_module(torch.nn.Conv2d(1, 2, 3, padding=1), ((1, 1, 16, 16),), {}).graph)
    return replace(
        graph, values=tuple(replace(v, kind=Kind.PARAMETER) if not v.kind.computed else v for v in graph.values)
    )


@pytest.mark.parametrize("plan", ["keep", "plain", "tiles"])
def test_a_graph_without_inputs(plan: str) -> None:
    graph = without_inputs()
    assert not graph.inputs
    made: dict[str, Schedule] = {
        "keep": TrainingStep(graph, CPU).keep.schedule,
        "plain": plan_plain(graph),
        "tiles": plan_tiles(graph, "stream", {"h": 8}),
    }
    assert plan_to_json(made[plan])["mode"] == made[plan].mode
    assert format_plan(made[plan])


SHAPES = {"unet3d": (1, 3, 100, 100, 100), "wavenet1d": (1, 1, 512)}
GRAY = ("unet", "unet_valid")
EVERYTHING = dict.fromkeys(("peak_bytes", "total_bytes", "halo_bytes", "recorded_bytes", "process_bytes"), 1 << 20)
NOTES = ("one", "two", "three", "four")


def smp_like() -> torch.nn.Module:
    """A U-Net with 28 batch norms, as segmentation libraries make them: 56 phases."""
    return BatchNormUNet((8, 8, 16, 16, 32), 3)


class BatchNormUNet(torch.nn.Module):
    def __init__(self, widths: tuple[int, ...], convs: int) -> None:
        super().__init__()
        pairs = [*zip((3, *widths), widths, strict=False)]
        self.down = torch.nn.ModuleList(self.block(before, width, convs) for before, width in pairs)
        back = [*zip(widths[:0:-1], widths[-2::-1], strict=True)]
        self.up = torch.nn.ModuleList(self.block(deep + wide, wide, convs) for deep, wide in back)
        self.head = torch.nn.Sequential(self.block(widths[0], widths[0], 1), torch.nn.Conv2d(widths[0], 2, 1))

    @staticmethod
    def block(before: int, width: int, convs: int) -> torch.nn.Sequential:
        sizes = [(before if at == 0 else width, width) for at in range(convs)]
        return torch.nn.Sequential(
            *(
                torch.nn.Sequential(torch.nn.Conv2d(a, b, 3, padding=1), torch.nn.BatchNorm2d(b), torch.nn.ReLU())
                for a, b in sizes
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for at, block in enumerate(self.down):
            x = block(torch.nn.functional.max_pool2d(x, 2) if at else x)
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            x = block(torch.cat([torch.nn.functional.interpolate(x, scale_factor=2.0), skip], 1))
        return self.head(x)


def lines_of(module: torch.nn.Module, shape: tuple[int, ...], tile: dict[str, int]) -> list[str]:
    """With all that a plan can say."""
    graph = lower_graph(export_module(module, (shape,), {}).graph)
    schedule = replace(plan_tiles(graph, "stream", tile), notes=NOTES, predicted=EVERYTHING)
    return format_plan(schedule, 1 << 20, 1 << 30).splitlines()


@pytest.mark.parametrize(("name", "training"), crossed(NETWORKS, [True, False]))
def test_a_plan_is_read_at_a_glance(name: str, training: bool) -> None:
    shape = SHAPES.get(name, (1, 1 if name in GRAY else 3, 192, 192))
    axis = "w" if name == "wavenet1d" else "h"
    found = lines_of(NETWORKS[name](width=0.125).train(training), shape, {axis: shape[-1] // 4})
    assert len(found) <= 25
    assert max(map(len, found)) <= 160


def test_phases_for_statistics_are_folded_in_and_repeats_are_counted() -> None:
    graph = lower_graph(export_module(smp_like(), ((1, 3, 128, 128),), {}).graph)
    schedule = plan_tiles(graph, "stream", {"h": 32})
    text = format_plan(schedule)
    assert len(schedule.phases) >= 56
    assert len(text.splitlines()) <= 25
    assert "running_stat" not in text
    numbers = [line.split()[0] for line in text.splitlines()[1:] if line.startswith("  ")]
    times = [int(found) for found in re.findall(r" × (\d+)", text)]
    hidden = int(re.findall(r", (\d+) more for running statistics", text)[0])
    singles = sum("-" not in number for number in numbers)
    assert sum(times) + singles + hidden == len(schedule.phases)


def test_what_runs_whole_says_why() -> None:
    class Summed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.nn.functional.avg_pool2d(torch.cumsum(torch.nn.functional.avg_pool2d(x, 1), 2), 1)
            return x.mean((2, 3)) * 2

    text = "\n".join(lines_of(Summed(), (1, 3, 64, 64), {"h": 16}))
    assert "whole      1 node: cumsum; needs all along h" in text
    assert "no axis to cut is left" in text


def test_many_kinds_of_phases_are_not_all_listed() -> None:
    graph = lower_graph(export_module(smp_like(), ((1, 3, 128, 128),), {}).graph)
    phases = plan_tiles(graph, "stream", {"h": 32}).phases
    other = plan_tiles(graph, "stream", {"h": 16}).phases
    both = tuple(two if at % 4 else one for at, (one, two) in enumerate(zip(phases, other, strict=True)))
    rows = format_rows(replace(plan_tiles(graph, "stream", {"h": 32}), phases=both), 2)
    assert len(rows) <= 3
