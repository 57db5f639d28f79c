"""Other libraries that train in tiles, where they are installed: time, memory, and how far gradients are from plain's.

    python bench/peers.py                                           on the CPU, float32
    python bench/peers.py --device cuda --size 4096 --tile 1024 --json bench/results/h200_peers.json

The network is VGG-16's convolutions, which all of them can stream; the mean of the last map is the loss. lightstream
(`pip install lightstream`) and StreamingCNN (github.com/DIAGNijmegen/StreamingCNN, on the path) are called as their
documentation has it. Full precision everywhere, which they are written for.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tilegrad
from measure import Memory, in_turns, write
from tilegrad.models import vgg16

Step = Callable[[Tensor], None]
PEERS = {"lightstream": "lightstream.core.scnn.scnn", "StreamingCNN": "scnn"}  # where each has its class StreamingCNN


@dataclass(frozen=True)
class Row:
    """One library."""

    way: str
    size: int
    tile: int
    ratio: float  # to plain's time
    bytes: int
    peak: float  # of plain's
    error: float  # the largest difference of a gradient from plain's, relative to that gradient's largest entry


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--tile", type=int, default=512)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    net = vgg16(width=args.width, head=None).features.to(args.device)
    image = torch.randn(1, 3, args.size, args.size, device=args.device)
    rows = compare(net, image, args.tile, args.rounds, installed())
    write(args.json, rows, args.device)


def installed() -> dict[str, type[Any]]:
    found = {}
    for name, module in PEERS.items():
        try:
            found[name] = import_module(module).StreamingCNN
        except ImportError as error:
            print(f"{name} is left out: {error}")
    return found


def loss_of(net: nn.Module, image: Tensor) -> None:
    net(image).mean().backward()


def streamed(peer: Any, image: Tensor) -> None:
    """A step as their documentation has it: the streamed part has a forward and a backward of its own."""
    out = peer.forward(image).detach().requires_grad_()
    out.mean().backward()
    peer.backward(image, out.grad)


def compare(net: nn.Module, image: Tensor, tile: int, rounds: int, peers: dict[str, type[Any]]) -> list[Row]:
    nets = {name: copy.deepcopy(net) for name in ("plain", "tilegrad", *peers)}
    steps: dict[str, Step] = {"plain": partial(loss_of, nets["plain"])}
    steps["tilegrad"] = partial(loss_of, tilegrad.tile(nets["tilegrad"], tile=tile))
    for name, kind in peers.items():
        peer = kind(_not_in_place(nets[name]), tile_shape=(1, 3, tile, tile))
        steps[name] = partial(streamed, peer)
    memory: dict[str, int] = {}
    for name, step in steps.items():
        step(image)  # what is only made once
        with Memory(nets[name], image) as found:  # and gradients of a single step
            step(image)
        memory[name] = found.allocated
    errors = {name: _error(nets[name], nets["plain"]) for name in nets}
    spent = in_turns([partial(step, image) for step in steps.values()], rounds, image.device)
    rows = []
    for name, took in zip(steps, spent, strict=True):
        figures = took / spent[0], memory[name], memory[name] / memory["plain"], errors[name]
        rows.append(Row(name, image.shape[-1], tile, *figures))
        ratio, _, peak, error = figures
        print(f"{name:14} {ratio:6.3f} x plain, {peak:6.1%} of its memory, gradients differ by {error:.1e}", flush=True)
    return rows


def _not_in_place(net: nn.Module) -> nn.Module:
    """Peers hook modules, and torch forbids to change in place what comes through a hook."""
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return net


def _error(net: nn.Module, plain: nn.Module) -> float:
    """In the order of the parameters: a peer may put modules of its own in place of ours."""
    pairs = zip(net.parameters(), plain.parameters(), strict=True)
    gaps = [(p.grad - q.grad).abs().max() / q.grad.abs().max() for p, q in pairs if p.grad is not None is not q.grad]
    return float(max(gaps, default=torch.tensor(float("nan"))))


if __name__ == "__main__":
    main()
