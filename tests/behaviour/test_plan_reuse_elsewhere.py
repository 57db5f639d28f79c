"""The same model with other types, layouts, sizes and modes: a plan is used only for what it was made for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import Net, backward, compare, image, once
from torch import Tensor, nn


def test_other_types_and_back() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for dtype in (torch.float64, torch.float32, torch.float64, torch.float32):
            model.to(dtype)
            found.append((backward(model(image().to(dtype))), model.first.weight.dtype))
            model.zero_grad()
        return found

    compare(Net, loop)


def test_channels_last_and_back() -> None:
    def loop(model: nn.Module) -> Any:
        found = []
        for layout in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
            model.to(memory_format=layout)
            out = model(image(2, 2, 16, 16).contiguous(memory_format=layout))
            found.append((out.is_contiguous(memory_format=layout), backward(out)))
        return found

    compare(Net, loop)


def test_the_default_type_of_new_tensors() -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y + torch.full((1,), 1 / 3)

    def loop(model: nn.Module) -> Any:
        found = []
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            try:
                found.append(backward(model(image())))
            finally:
                torch.set_default_dtype(torch.float32)
        return found

    compare(Model, loop, tolerance=1e-12)


def test_many_sizes_back_and_forth() -> None:
    def loop(model: nn.Module) -> Any:
        sizes = [(8 + n % 7, 8 + n % 5) for n in range(40)]
        return [backward(model(image(1, 2, *size))) for size in sizes]

    compare(Net, loop)


@pytest.mark.parametrize("seen", ["grad mode", "training", "inference", "input"])
def test_a_model_that_asks_how_it_is_called(seen: str) -> None:
    ask: dict[str, Callable[[nn.Module, Tensor], bool]] = {
        "grad mode": lambda m, y: torch.is_grad_enabled(),
        "training": lambda m, y: m.training,
        "inference": lambda m, y: torch.is_inference_mode_enabled(),
        "input": lambda m, y: y.requires_grad,
    }

    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return y.relu() * (3 if ask[seen](self, y) else 5)

    def loop(model: nn.Module) -> Any:
        found = [once(model)]
        with torch.no_grad():
            found.append(model(image()))
        with torch.inference_mode():
            found.append(model(image()).clone())
        found.append(model.eval()(image()).detach())
        return [*found, once(model.train())]

    compare(Model, loop)


@pytest.mark.parametrize("ask", ["torch.compiler.is_compiling", "torch.compiler.is_exporting", "torch.jit.is_tracing"])
def test_a_model_that_asks_whether_it_is_compiled(ask: str) -> None:
    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            module, name = ask.removeprefix("torch.").split(".")
            return y if getattr(getattr(torch, module), name)() else y.relu()

    compare(Model, once)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch.compile's own, around plain
def test_a_model_with_a_compiled_function_inside() -> None:
    """Which runs in tiles as it was written. What torch.compile knows of torch is what it knew before."""
    compiled = torch.compile(lambda y: y.relu() * 2, backend="eager", fullgraph=True)

    class Model(Net):
        def middle(self, y: Tensor) -> Tensor:
            return compiled(y)

    compare(Model, once)


def test_the_compiler_first_met_in_a_capture() -> None:
    """Branches of a condition are compiled while the model is captured, where torch's questions are ours to answer."""
    capture = """
import torch, tilegrad, tilegrad.errors
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 1, lambda y: y * 2, lambda y: y * 3, (x.relu(),))

try:
    tilegrad.tile(Model(), tile=4)(torch.randn(1, 2, 8, 8))
except tilegrad.errors.TilegradError as refused:
    assert type(refused).__name__ == "ModelError"
"""
    ask = """
import torch
asks = torch.compile(lambda x: x if torch.compiler.is_exporting() else x + 1, backend="eager", fullgraph=True)
print(asks(torch.zeros(1)).item())
"""
    after, alone = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        for program in (capture + ask, ask)
    )
    assert after.returncode == 0 == alone.returncode, after.stderr
    assert after.stdout == alone.stdout != ""
