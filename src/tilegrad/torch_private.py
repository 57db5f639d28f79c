"""All that we use of torch beyond its public API, in one place; a test asks each torch whether it still has it.

Beside these, modules are read by their dictionaries (`_parameters`, `_buffers`, `_forward_hooks`), operators
by their schemas (`_schema`), and storages are told apart by their address in C (`_cdata`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules import module as _module
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "OpOverload",
    "TorchDispatchMode",
    "add_each",
    "backward_hooks_everywhere",
    "backward_node",
    "backward_task",
    "begin_batch",
    "begin_broadcast",
    "begin_gather",
    "begin_messages",
    "begin_sum",
    "clone_each",
    "compiled_asks",
    "copy_each",
    "end_pool",
    "expand_segments",
    "exporting",
    "know_compiler",
    "next_number",
    "operators_are_watched",
    "pytree",
    "saving_is_hooked",
    "transforms_active",
    "uncompiled",
    "without_modes",
    "without_overrides",
]

NAMES = (  # what must be there
    "_C._are_functorch_transforms_active",
    "_C.DisableTorchFunction",
    "_C._autograd._top_saved_tensors_default_hooks",
    "_C._current_graph_task_id",
    "_foreach_add_",
    "_foreach_mul",
    "_foreach_copy_",
    "_C._accelerator_setAllocatorSettings",
    "nn.modules.module._global_backward_hooks",
    "nn.modules.module._global_backward_pre_hooks",
    "ops.aten.add.Tensor._schema",
    "_dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers",
    "compiler._is_exporting_flag",
    "distributed.ProcessGroup.allreduce",
    "distributed.ProcessGroup._allgather_base",
    "distributed.ProcessGroup.send",
    "distributed.ProcessGroup.recv",
)

without_modes = _disable_current_modes
without_overrides: Callable[[], Any] = torch._C.DisableTorchFunction
transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active  # torch.func.grad, vmap, …
backward_task: Callable[[], int] = torch._C._current_graph_task_id  # -1 outside of backward
backward_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
next_number: Callable[[], int] = getattr(torch.autograd, "_get_sequence_nr", lambda: 0)


def saving_is_hooked() -> bool:
    """Does somebody (a checkpoint, `save_on_cpu`) handle what autograd saves?"""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def operators_are_watched() -> bool:
    """Does somebody (a profile, a count of bytes) see every operator that runs?"""
    return bool(_get_current_dispatch_mode_stack())


def uncompiled(module: Any) -> tuple[Any, bool]:
    """The module inside of what `torch.compile` made, and whether it, or `module.compile()`, has been asked for."""
    found = sys.modules.get("torch._dynamo.eval_frame")  # nobody compiles without it
    if found is not None and isinstance(module, found.OptimizedModule):
        return module._orig_mod, True
    return module, getattr(module, "_compiled_call_impl", None) is not None


def know_compiler() -> None:
    """Let torch.compile write down which functions of torch's it knows, which it does once: not while one of them is
    replaced, or it would take the replacement for it ever after."""
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    TorchInGraphFunctionVariable._get_handlers()


def exporting() -> bool:
    """`torch.compiler.is_exporting()`, which torch.compile in 2.11 takes to be true of all that it compiles."""
    return torch.compiler.is_exporting() and (
        torch.compiler._is_exporting_flag or not torch.compiler.is_dynamo_compiling()
    )


def compiled_asks(caller: FrameType) -> bool:
    """Is this what `torch.compile` put around a function, which is compiled unless something is being exported?"""
    return caller.f_globals.get("__name__") == "torch._dynamo.eval_frame"


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Many of a type at once, on a GPU."""
    kinds: dict[object, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        alike = kinds.setdefault((target.dtype, target.device, source.dtype, source.device), ([], []))
        alike[0].append(target)
        alike[1].append(source)
    for these, those in kinds.values():
        torch._foreach_copy_(these, those)


def add_each(targets: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """All at once, on a GPU, if they are of one type."""
    torch._foreach_add_(list(targets), list(others))


def clone_each(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """All at once, on a GPU, if they are of one type."""
    return torch._foreach_mul(list(tensors), 1)


def backward_hooks_everywhere() -> bool:
    """Has someone hooked the backward pass of all modules?"""
    return bool(_module._global_backward_hooks or _module._global_backward_pre_hooks)


def end_pool(device: torch.device, handle: Any) -> None:
    """Of a recording that failed: the allocator goes on filling its pool otherwise."""
    with torch.cuda.device(device):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), handle)
        torch._C._cuda_releasePool(torch.cuda.current_device(), handle)


def expand_segments() -> None:
    """Let the allocator of GPUs enlarge what it holds instead of taking another piece, unless the user has set it up:
    what it holds is then little more than what it has handed out."""
    if not any(os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def allocated_bytes(device: torch.device) -> int:
    """Handed out by a GPU's allocator now; `torch.cuda.memory_allocated` sorts a hundred figures for that."""
    index = torch.cuda.current_device() if device.index is None else device.index
    found: int = torch._C._cuda_memoryStats(index)["allocated_bytes"]["all"]["current"]
    return found


# -- collectives -------------------------------------------------------------------------------------------------------
# A process group's own methods: `torch.distributed` makes forty calls in Python around each.


def begin_sum(group: Any, tensor: Tensor) -> Any:
    return group.allreduce([tensor])


def begin_broadcast(group: Any, tensor: Tensor, source: int) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = source
    return group.broadcast([tensor], options)


def begin_gather(group: Any, rows: Tensor, tensor: Tensor) -> Any:
    return group._allgather_base(rows, tensor)


Tensors = Mapping[int, Tensor]  # by rank


def begin_messages(group: Any, places: Mapping[int, int], sends: Tensors, receives: Tensors) -> list[Any]:
    """`places`: of ranks in the group."""
    works = [group.recv([tensor], places[rank], 0) for rank, tensor in receives.items()]
    works += [group.send([tensor], places[rank], 0) for rank, tensor in sends.items()]
    return works


def begin_batch(group: Any, places: Mapping[int, int], sends: Tensors, receives: Tensors) -> list[Any]:
    """The same for NCCL, which wants all messages at once."""
    calls = [dist.P2POp(dist.irecv, tensor, rank, group) for rank, tensor in receives.items()]
    calls += [dist.P2POp(dist.isend, tensor, rank, group) for rank, tensor in sends.items()]
    return dist.batch_isend_irecv(calls) if calls else []
