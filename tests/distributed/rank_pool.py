"""Real processes for tests: ranks that stay up, take tasks, and are killed when they hang.

A task is the name of a function `f(mesh, payload)` in `tasks.py`; every rank of the mesh runs it, and what it returns,
or raises, comes back. Ranks are forked from a server that has imported torch already, and talk over gloo.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import multiprocessing
import os
import pickle
import random
import signal
import socket
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import drawn_layers

HANG_S = 60.0  # for a task, in which nobody works
WORK = 0.05  # of a core: more than ranks need that only wait; on a busy machine a sound task takes long, too
SAYING_S = 1.0  # in which a rank that hangs says where it is
GRACE_S = 20.0  # for the others, once a rank has failed
TIMEOUT_S = 30.0  # of tilegrad's own watch
MESHES = 12  # that a rank keeps
NAMED = {name: getattr(drawn_layers, name) for name in ("POINTWISE", "JOINS", "CHANNELS")}  # functions without a name


@dataclass(frozen=True)
class MeshSpec:
    """A mesh: its shape, the names of its axes, and its ranks in raster order."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    world: int  # how many ranks there are, perhaps more than are in the mesh

    def __str__(self) -> str:
        usual = self.ranks == tuple(range(len(self.ranks)))
        return " x ".join(f"{n} {name}" for n, name in zip(self.shape, self.names, strict=True)) + (
            "" if usual else f" on {','.join(map(str, self.ranks))}"
        )


def mesh_of(*, ranks: Sequence[int] | None = None, world: int | None = None, **axes: int) -> MeshSpec:
    """mesh_of(batch=2, h=2)"""
    ranks = tuple(ranks or range(prod(axes.values())))
    return MeshSpec(tuple(axes.values()), tuple(axes), ranks, world or len(ranks))


@dataclass(frozen=True)
class Failure:
    """What a rank raised."""

    kind: str
    text: str
    trace: str


class RanksFailed(AssertionError):
    """A task failed somewhere. `failures`: by rank."""

    def __init__(self, what: str, failures: dict[int, Failure]):
        self.failures = failures
        ranks: dict[str, list[int]] = {}  # the same trace is shown once
        for rank, failure in failures.items():
            ranks.setdefault(failure.trace, []).append(rank)
        traces = "\n".join(f"--- rank {', '.join(map(str, who))}\n{trace}" for trace, who in ranks.items())
        super().__init__(f"{what}\n{traces}")


class Pool:
    """Worlds of 1, 2, 3 and 4 ranks, each started when its first task comes."""

    def __init__(self) -> None:
        self.worlds: dict[int, World] = {}
        self.starts = 0

    def run(self, mesh: MeshSpec, task: str, payload: Any, *, hang_s: float = HANG_S) -> list[Any]:
        """What every rank of the mesh returns. Raises RanksFailed where one raises or hangs; after a hang all ranks of
        that world are killed, and the next task finds new ones."""
        if mesh.world not in self.worlds:
            self.starts += 1
            self.worlds[mesh.world] = World(mesh.world)
        answers, usable = self.worlds[mesh.world].run(mesh, task, payload, hang_s)
        failures = {rank: a for rank, a in answers.items() if isinstance(a, Failure)}
        if not usable:
            self.worlds.pop(mesh.world).kill()
        if failures:
            kinds = ", ".join(f"rank {rank}: {f.kind}" for rank, f in failures.items())
            raise RanksFailed(f"{task} on {mesh} failed ({kinds})", failures)
        return [answers[rank] for rank in mesh.ranks]

    def close(self) -> dict[int, list[int | None]]:
        """Shut down in order. The exit codes by world, which should be 0."""
        return {world.size: world.close() for world in self.worlds.values()}


class World:
    """Ranks 0 to size - 1, waiting for tasks."""

    def __init__(self, size: int):
        self.size = size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        context, port = server(), free_port()
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, size, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def run(self, mesh: MeshSpec, task: str, payload: Any, hang_s: float) -> tuple[dict[int, Any], bool]:
        """The answers by rank, and whether the ranks can go on."""
        message = dumps((mesh, task, payload))
        for pipe in self._pipes:  # those that are not in the mesh take part in making it
            pipe.send_bytes(message)
        end, found, spent = time.monotonic() + hang_s, dict[int, Any](), self._cpu_s()
        while len(found) < self.size:
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in found}
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                before, spent = spent, self._cpu_s()
                if any(isinstance(answer, Failure) for answer in found.values()) or spent - before < WORK * hang_s:
                    break
                end = time.monotonic() + hang_s
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                found[rank] = self._answer(rank)
                if isinstance(found[rank], Failure):
                    end = min(end, time.monotonic() + GRACE_S)
        late = [rank for rank in range(self.size) if rank not in found]
        self._ask_where(late)
        found |= {rank: Failure("Hang", "hangs", f"rank {rank} hangs") for rank in late}
        lost = ("Hang", "Exit", "RankError")
        return found, not any(isinstance(a, Failure) and a.kind in lost for a in found.values())

    def _cpu_s(self) -> float:
        """What all ranks have worked so far; 0 where that cannot be known."""
        found = 0.0
        for process in self._processes:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
                found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def _ask_where(self, ranks: Sequence[int]) -> None:
        """Ranks that hang say where they are, on their standard error. No sooner: what looks at the frames of a thread
        that runs may crash it."""
        for rank in ranks:
            if (pid := self._processes[rank].pid) is not None and self._processes[rank].is_alive():
                os.kill(pid, signal.SIGUSR1)
        time.sleep(SAYING_S if ranks else 0.0)

    def _answer(self, rank: int) -> Any:
        try:
            return loads(self._pipes[rank].recv_bytes())
        except EOFError:
            self._processes[rank].join(5)
            code = self._processes[rank].exitcode
            return Failure("Exit", f"exit code {code}", f"rank {rank} is gone: exit code {code}")

    def kill(self) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()

    def close(self) -> list[int | None]:
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send_bytes(dumps(None))
        for process in self._processes:
            process.join(30)
        codes = [process.exitcode for process in self._processes]
        self.kill()
        return codes


def server() -> Any:
    """Makes processes that begin with torch imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm_start"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([before] if before else [])])
    try:
        forkserver.ensure_running()  # it has no other way to know where modules are
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ.update({"PYTHONPATH": before} if before else {})
    return context


_ports = iter(random.SystemRandom().sample(range(20000, 32000), 12000))


def free_port() -> int:
    """A port that nobody has, that nobody will be given (systems hand out those from 32768 on), and never twice."""
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


# -- in a rank ---------------------------------------------------------------------------------------------------------


def join_world(rank: int, world: int, port: int, timeout_s: float = HANG_S) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s))


def find_task(name: str) -> Any:
    """`"function"` of tasks.py, or `"module:function"`."""
    module, _, function = name.rpartition(":")
    return getattr(importlib.import_module(module or "tasks"), function)


def leave_world() -> None:
    import torch.distributed as dist

    import tilegrad.distributed

    tilegrad.distributed.close()
    dist.barrier()
    dist.destroy_process_group()


def serve(rank: int, world: int, port: int, pipe: Connection) -> None:
    """The life of a rank: tasks, one after another, until None comes."""
    import tilegrad.distributed

    faulthandler.enable()  # a crash says where
    faulthandler.register(signal.SIGUSR1)
    join_world(rank, world, port)
    importlib.import_module("tasks")
    meshes: dict[MeshSpec, Any] = {}
    while (message := loads(pipe.recv_bytes())) is not None:
        spec, task, payload = message
        try:
            if spec not in meshes:
                if len(meshes) == MESHES:  # each has a thread that looks after it
                    tilegrad.distributed.close(meshes.pop(next(iter(meshes))))
                meshes[spec] = make_mesh(spec, rank)
            answer = find_task(task)(meshes[spec], payload) if rank in spec.ranks else None
        except Exception as error:
            answer = Failure(type(error).__name__, str(error), traceback.format_exc())
        pipe.send_bytes(dumps(answer))
    leave_world()


def make_mesh(spec: MeshSpec, rank: int) -> Any:
    from tilegrad.distributed.join import group_of
    from tilegrad.distributed.replicas import split_mesh

    mesh = make_device_mesh(spec)
    if rank in spec.ranks:
        group_of(split_mesh(mesh, "leave")[0], TIMEOUT_S)
    return mesh


def make_device_mesh(spec: MeshSpec) -> Any:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh("cpu", torch.tensor(spec.ranks).reshape(spec.shape), mesh_dim_names=spec.names)


# -- messages ----------------------------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    def persistent_id(self, item: Any) -> Any:
        for name, table in NAMED.items():
            for key, value in table.items():
                if value is item:
                    return name, key
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return NAMED[pid[0]][pid[1]]


def dumps(item: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(item)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()
