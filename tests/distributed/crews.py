"""Ranks of their own for tests of faults: one of them goes wrong in the middle of training."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rank_pool import MeshSpec, free_port, join_world, make_device_mesh, server

TIMEOUT_S = 12.0  # of the mesh: on a busy machine a sound step may take seconds
LIMIT_S = TIMEOUT_S + 10  # until all have stopped
EXIT_S = 10.0  # and have ended


@dataclass(frozen=True)
class Fault:
    """What happens to which rank, and when: before a forward pass, or between it and its backward pass."""

    mesh: MeshSpec
    rank: int
    how: str  # exit, kill, raise, sleep, skip
    when: str = "forward"

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.mesh}: {self.how} before {self.when}"


@dataclass(frozen=True)
class Report:
    """What a rank that is left says."""

    kind: str
    text: str
    blamed: tuple[int, ...]
    seconds: float  # since it was ready for the step in which the fault happens
    exit_code: int | None = None


class Crew:
    """The ranks of one fault."""

    def __init__(self, fault: Fault):
        self.fault = fault
        context, port = server(), free_port()
        self._ranks: dict[int, tuple[Any, Connection]] = {}
        for rank in range(fault.mesh.world):
            ours, theirs = context.Pipe()
            process = context.Process(target=live, args=(rank, port, fault, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ranks[rank] = (process, ours)

    def reports(self, patience_s: float = 90.0) -> dict[int, Report]:
        """Of all ranks but the one that goes wrong. Those that say nothing for so long are missing."""
        found = {}
        for rank, (process, pipe) in self._ranks.items():
            if rank == self.fault.rank:
                continue
            if pipe.poll(patience_s) and (said := self._said(pipe)):
                process.join(EXIT_S)
                found[rank] = Report(*said, exit_code=process.exitcode)
        for process, pipe in self._ranks.values():
            process.kill()
            process.join()
            pipe.close()
        return found

    @staticmethod
    def _said(pipe: Connection) -> Any:
        try:
            return pipe.recv()
        except EOFError:
            return None


def live(rank: int, port: int, fault: Fault, pipe: Connection) -> None:
    """Train; go wrong in the third step; or say what happened."""
    import torch
    from torch import nn

    import tilegrad
    from tilegrad.distributed import close, part

    join_world(rank, fault.mesh.world, port)
    mesh = make_device_mesh(fault.mesh)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1)).double()
    tiled = tilegrad.tile(net, mesh=mesh, timeout=TIMEOUT_S)
    begin = time.monotonic()
    try:
        for step in range(100):
            begin = begin if step > 2 else time.monotonic()
            x = part(torch.randn(2, 1, 12, 12, dtype=torch.float64), mesh)
            _go_wrong(rank, fault, step, "forward")
            loss = tiled(x).sum()
            if _go_wrong(rank, fault, step, "backward"):
                loss.backward()
    except tilegrad.errors.TilegradError as error:
        said = (type(error).__name__, str(error), tuple(getattr(error, "ranks", ())), time.monotonic() - begin)
        pipe.send(said)
    close()


def _go_wrong(rank: int, fault: Fault, step: int, when: str) -> bool:
    """Does it go on?"""
    if (rank, step, when) != (fault.rank, 2, fault.when):
        return True
    match fault.how:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("a mistake of one rank alone")
        case "sleep":
            time.sleep(1200)
    return fault.how != "skip"
