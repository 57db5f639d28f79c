"""A rank of some that share one card: sample networks on a mesh, against one process, all on the card.

python ranks_on_a_card.py DEVICE BACKEND AXIS=RANKS[,AXIS=RANKS] RANK STORE

Prints what differs, a line each, and how many networks there were.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from math import prod

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from sample_nets import CLOSE, EXACT, WINDOWS
from tasks import Case, Found, plain_step, step
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from tilegrad.testing import assert_same


def on(device: str, case: Case) -> Case:
    inputs = pytree.tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, case.inputs)
    return replace(case, net=copy.deepcopy(case.net).to(device), inputs=inputs)


def mine(gradients: Mapping[str, Tensor | None], found: Found) -> dict[str, Tensor | None]:
    """Of parameters that are cut this rank's boxes."""
    boxes = {name: box for name, (box, _) in found.boxes.items()}
    return {name: g[boxes[name].slices] if g is not None and name in boxes else g for name, g in gradients.items()}


def main() -> None:
    device, backend, axes, rank, store = sys.argv[1:]
    shape = {name: int(size) for name, size in (pair.split("=") for pair in axes.split(","))}
    ranks = prod(shape.values())
    torch.backends.cudnn.deterministic = True
    dist.init_process_group(
        backend, rank=int(rank), world_size=ranks, store=dist.FileStore(store, ranks), timeout=timedelta(seconds=60)
    )
    mesh = DeviceMesh(device, torch.arange(ranks).view(*shape.values()), mesh_dim_names=tuple(shape))
    count = 0
    for exact, nets in ((True, EXACT), (True, WINDOWS), (False, CLOSE)):
        for name, make in nets.items():
            case = make()
            if case.autocast is not None or case.tiles is not None:
                continue  # of the CPU's own
            count += 1
            plain = plain_step(on(device, case))
            try:
                found = step(mesh, on(device, case))
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            try:
                assert_same(found.step, replace(plain, gradients=mine(plain.gradients, found)), exact=exact)
            except AssertionError as error:
                print(f"{name}: {' '.join(str(error).split())}", flush=True)
    print(f"{count} networks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
