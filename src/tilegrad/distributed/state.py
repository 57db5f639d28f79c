"""Save what was trained under one number of ranks, go on under another.

A state is a folder: `index.json`, and one .npy file for every tensor, whole, whoever owned it. Each rank writes its own
boxes straight into the files and reads its own boxes from them; no rank ever holds a whole weight that lives on space.
The folder is written beside the target and renamed when all ranks are done. No pickle anywhere.

Limits: all ranks see the same file system. Of an optimizer, what `state_dict` tells: numbers, and tensors that are as
large as their parameter or the same on all ranks.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import FormatError, InputError
from ..region import Box
from .group import Group
from .module import DistributedModule

SCHEMA = 1
_LARGEST_INDEX = 1 << 26
_AS_INTEGERS = {torch.bfloat16: torch.int16}  # what NumPy has no name for


class _Item:
    """A tensor of the state: the whole shape, and the box of it that is here."""

    def __init__(self, tensor: Tensor, shape: tuple[int, ...], box: Box):
        self.tensor, self.shape, self.box = tensor, shape, box

    @property
    def cut(self) -> bool:
        return self.box.shape != self.shape


def save_state(module: nn.Module, path: str | Path, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Write parameters, buffers and the optimizer's state. On a mesh all ranks call this together."""
    group = _group(module)
    items, extra = _items(module), dict[str, Any]()
    if optimizer is not None:
        extra = _optimizer_items(module, optimizer, items)
    path = Path(path)
    draft = path.with_name(f".{path.name}-{_agree(group, secrets.token_hex(6))}.tmp")
    try:
        if _leads(group):
            draft.mkdir(parents=True)
            index = {"schema": SCHEMA, "tensors": {}, **extra}
            for at, (key, item) in enumerate(items.items()):
                dtype = str(item.tensor.dtype).removeprefix("torch.")
                index["tensors"][key] = {"file": f"{at}.npy", "shape": list(item.shape), "dtype": dtype}
                _make(draft / f"{at}.npy", item)
            (draft / "index.json").write_text(json.dumps(index))
        _agree(group, "made")
        for at, item in enumerate(items.values()):
            if item.cut or _leads(group):
                _write(draft / f"{at}.npy", item)
        _agree(group, "written")
        if _leads(group):
            _replace(draft, path)
        _agree(group, "in place")
    except OSError as error:
        raise InputError(f"the state cannot be written: {error.strerror or error}", where=str(path)) from error
    finally:
        if _leads(group) and draft.exists():
            shutil.rmtree(draft, ignore_errors=True)


def load_state(module: nn.Module, path: str | Path, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Read a state into a module, on any number of ranks; one whose weights are cut must be planned (`plan_for`)."""
    path = Path(path)
    index = _read_index(path)
    items = _items(module)
    tensors = index["tensors"]
    missing, extra = items.keys() - tensors.keys(), {k for k in tensors if k.startswith("model/")} - items.keys()
    if missing or extra:
        what = f"{len(missing)} tensors are missing and {len(extra)} unknown, such as '{min(missing | extra)}'"
        raise FormatError(f"the state is of another module: {what}", where=str(path))
    with torch.no_grad():
        for key, item in items.items():
            item.tensor.copy_(_read(path, key, tensors[key], item.shape, item.box))
    if optimizer is not None:
        _load_optimizer(module, optimizer, path, index, items)


# Tensors and their boxes ----------------------------------------------------------------------------------------------


def _group(module: nn.Module) -> Group | None:
    return module._state.group if isinstance(module, DistributedModule) else None


def _leads(group: Group | None) -> bool:
    return group is None or group.rank == group.mesh.ranks[0]


def _agree(group: Group | None, text: str) -> str:
    """What the first rank says; all wait for all."""
    return text if group is None else group.tell("a state", text)[0]


def _items(module: nn.Module) -> dict[str, _Item]:
    boxes: Mapping[str, Box] = module.cut_parameters if isinstance(module, DistributedModule) else {}
    wholes = module.whole_parameters if isinstance(module, DistributedModule) else {}
    found = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if name in boxes:
            found[f"model/{name}"] = _Item(tensor.data, tuple(wholes[name].shape), boxes[name])
        else:
            found[f"model/{name}"] = _Item(tensor.data, tuple(tensor.shape), Box.full(tensor.shape))
    return found


def _names(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """The optimizer's numbers of parameters, by their names."""
    known = {id(p): name for name, p in module.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    unknown = [p for p in parameters if id(p) not in known]
    if unknown:
        raise InputError("the optimizer has parameters that the module has not", hint="the optimizer of this module")
    return {at: known[id(p)] for at, p in enumerate(parameters)}


def _optimizer_items(module: nn.Module, optimizer: torch.optim.Optimizer, items: dict[str, _Item]) -> dict[str, Any]:
    """Adds the tensors of an optimizer's state to `items`; what is no tensor is returned."""
    state, names = optimizer.state_dict(), _names(module, optimizer)
    numbers: dict[str, dict[str, Any]] = {}
    for at, entries in state["state"].items():
        model = items[f"model/{names[at]}"]
        for key, entry in entries.items():
            if not isinstance(entry, Tensor):
                numbers.setdefault(names[at], {})[key] = entry
            elif entry.shape == model.tensor.shape and entry.dim():
                items[f"optimizer/{names[at]}/{key}"] = _Item(entry, model.shape, model.box)
            else:
                items[f"optimizer/{names[at]}/{key}"] = _Item(entry, tuple(entry.shape), Box.full(entry.shape))
    groups = [{**group, "params": [names[at] for at in group["params"]]} for group in state["param_groups"]]
    return {"numbers": numbers, "groups": groups}


def _load_optimizer(
    module: nn.Module, optimizer: torch.optim.Optimizer, path: Path, index: dict[str, Any], items: dict[str, _Item]
) -> None:
    if "groups" not in index:
        raise FormatError(
            "the state has no optimizer in it", where=str(path), hint="save_state(module, path, optimizer)"
        )
    numbers = {name: at for at, name in _names(module, optimizer).items()}
    state: dict[int, dict[str, Any]] = {numbers[n]: dict(v) for n, v in index["numbers"].items() if n in numbers}
    for key, entry in index["tensors"].items():
        if not key.startswith("optimizer/"):
            continue
        name, _, short = key.removeprefix("optimizer/").rpartition("/")
        if name not in numbers:
            continue
        model, shape = items[f"model/{name}"], tuple(entry["shape"])
        box = model.box if shape == model.shape else Box.full(shape)
        state.setdefault(numbers[name], {})[short] = _read(path, key, entry, shape, box)
    groups = [{**g, "params": [numbers[name] for name in g["params"]]} for g in index["groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


# Files ----------------------------------------------------------------------------------------------------------------


def _make(file: Path, item: _Item) -> None:
    plain = _plain(torch.empty(0, dtype=item.tensor.dtype)).numpy()
    np.lib.format.open_memmap(file, mode="w+", dtype=plain.dtype, shape=item.shape).flush()


def _write(file: Path, item: _Item) -> None:
    if not item.tensor.numel():
        return
    whole = np.lib.format.open_memmap(file, mode="r+")
    whole[item.box.slices] = _plain(item.tensor.detach().cpu()).numpy()
    whole.flush()


def _plain(tensor: Tensor) -> Tensor:
    return tensor.view(_AS_INTEGERS[tensor.dtype]) if tensor.dtype in _AS_INTEGERS else tensor


def _replace(draft: Path, path: Path) -> None:
    """Put the folder in its place; an old one is away for a moment only."""
    old = path.with_name(f".{path.name}-{secrets.token_hex(6)}.old")
    if path.exists():
        os.replace(path, old)
    os.replace(draft, path)
    shutil.rmtree(old, ignore_errors=True)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        raw = (path / "index.json").read_bytes()[: _LARGEST_INDEX + 1]
        index = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"not a saved state: {reason}", where=str(path), hint="what save_state wrote") from None
    if not isinstance(index, dict) or not isinstance(index.get("tensors"), dict):
        raise FormatError("not a saved state: no tensors in its index", where=str(path))
    if index.get("schema") != SCHEMA:
        raise FormatError(f"a state of schema {index.get('schema')!r}, where {SCHEMA} is known", where=str(path))
    return index


def _read(path: Path, key: str, entry: Any, shape: tuple[int, ...], box: Box) -> Tensor:
    where = f"{path}: {key}"
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str) or not entry["file"][:-4].isdigit():
        raise FormatError("an entry of the index that names no file", where=where)
    dtype = getattr(torch, str(entry.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise FormatError(f"{entry.get('dtype')!r} is not a type of tensors", where=where)
    try:
        whole = np.load(path / entry["file"], mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FormatError(f"a file that cannot be read: {error}", where=where) from None
    if whole.shape != shape:
        raise FormatError(f"a tensor of {whole.shape}, where {shape} is due", where=where)
    found = torch.from_numpy(np.array(whole[box.slices]))  # a copy: the file may be replaced
    return found.view(dtype) if dtype in _AS_INTEGERS else found
