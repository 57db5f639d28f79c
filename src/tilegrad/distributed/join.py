"""From a `DeviceMesh` to our own mesh and group, made once and kept."""

from __future__ import annotations

import atexit
import multiprocessing.util
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..bounds.mesh import Mesh, name_axes
from ..errors import InputError
from .group import Group

TIMEOUT_S = 300.0
_groups: dict[DeviceMesh, Group] = {}  # meshes of the same ranks and names are equal, and share a group


def mesh_of(mesh: Any) -> Mesh:
    """Our view of a `DeviceMesh`: the axes of the graph that it cuts, and its ranks."""
    if not isinstance(mesh, DeviceMesh):
        hint = 'init_device_mesh("cpu", (2, 2), mesh_dim_names=("h", "w"))'
        raise InputError(f"a mesh must be a torch DeviceMesh, not {type(mesh).__name__}", hint=hint)
    return Mesh(name_axes(mesh.mesh_dim_names), tuple(mesh.mesh.shape), tuple(mesh.mesh.flatten().tolist()))


def group_of(mesh: DeviceMesh, timeout_s: float | None = None) -> Group:
    """The group of a mesh. All ranks of the mesh make it together, the first time one of them asks.

    timeout_s: how long a rank waits for another before it stops with an error.
    """
    if mesh not in _groups:
        if not _groups:  # processes of multiprocessing end without a call of what atexit knows
            multiprocessing.util.Finalize(None, close, exitpriority=0)
        _groups[mesh] = Group(mesh_of(mesh), rank_in(mesh), device_of(mesh), timeout_s or TIMEOUT_S)
    found = _groups[mesh]
    if timeout_s is not None and found.timeout.total_seconds() != timeout_s:
        what = f"this mesh has a timeout of {found.timeout.total_seconds():g} s already"
        raise InputError(what, hint="the same timeout= for all that uses the mesh, given first")
    return found


def rank_in(mesh: DeviceMesh) -> int:
    """This process's rank, which must be one of the mesh."""
    rank = dist.get_rank()
    if rank not in mesh_of(mesh).ranks:
        raise InputError(f"rank {rank} is not part of the mesh", hint="only ranks of the mesh take part")
    return rank


def device_of(mesh: DeviceMesh) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if mesh.device_type == "cuda" else torch.device("cpu")


def close(mesh: DeviceMesh | None = None) -> None:
    """Take leave of the ranks of a mesh, or of all: to be called before the process groups are destroyed."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)  # on its way up, or what ended the program
    for each in [mesh] if mesh is not None else list(_groups):
        if each in _groups:
            _groups.pop(each).close(error)


atexit.register(close)
