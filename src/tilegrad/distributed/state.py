"""Save what was trained under one number of ranks, go on under another.

A state is a folder: `index.json`, and beside it a folder with one .npy file for every tensor, whole, whoever owned it.
Each rank writes its own boxes straight into the files and reads its own boxes from them; no rank ever holds a whole
weight that lives on space. No pickle anywhere.

Rule K1  There is always one state on disk: tensors are written into a new folder, and when all ranks are done the
         index, which names that folder, is replaced at once. What it named before goes last.
Rule K2  What goes wrong on one rank is an error on all, with the same words.

Limits: all ranks see the same file system. Of an optimizer, what `state_dict` tells: numbers, and tensors that are as
large as their parameter or the same on all ranks.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import errors
from ..errors import FormatError, InputError, TilegradError
from ..region import Box
from .cut_weights import like, local_of
from .group import Group
from .module import DistributedModule

SCHEMA = 2  # 1 had the tensors beside the index
_LARGEST_INDEX = 1 << 26
_FOLDER, _LEFT = re.compile("[0-9a-f]{12}"), re.compile(r"[0-9]+\.npy|\.index-[0-9a-f]{12}\.json")
_AS_INTEGERS = {torch.bfloat16: torch.int16}  # what NumPy has no name for


class _Item:
    """A tensor of the state: the whole shape, and the box of it that is here."""

    def __init__(self, tensor: Tensor, shape: tuple[int, ...], box: Box):
        self.tensor, self.shape, self.box = tensor, shape, box

    @property
    def cut(self) -> bool:
        return self.box.shape != self.shape

    def entry(self, file: str) -> dict[str, Any]:
        return {"file": file, "shape": list(self.shape), "dtype": str(self.tensor.dtype).removeprefix("torch.")}


def save_state(module: nn.Module, path: str | Path, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Write parameters, buffers and the optimizer's state. On a mesh all ranks call this together."""
    group, path = _group(module), Path(path)
    items, extra = dict[str, _Item](), dict[str, Any]()
    name = secrets.token_hex(6) if group is None else group.tell("a state", secrets.token_hex(6))[0]
    folder = path / name

    def collect() -> None:
        items.update(_items(module))
        if optimizer is not None:
            extra.update(_optimizer_items(module, optimizer, items))

    def make() -> None:
        folder.mkdir(parents=True)
        for at, item in enumerate(items.values()):
            _make(folder / f"{at}.npy", item)

    def write() -> None:
        for at, item in enumerate(items.values()):
            if item.cut or _leads(group):
                _write(folder / f"{at}.npy", item)

    def put_in_place() -> None:
        tensors = {key: item.entry(f"{at}.npy") for at, (key, item) in enumerate(items.items())}
        _replace_index(path, {"schema": SCHEMA, "folder": name, "tensors": tensors, **extra})

    try:
        _together(group, path, "written", collect)
        _together(group, path, "written", make if _leads(group) else None)
        _together(group, path, "written", write)
        _together(group, path, "written", put_in_place if _leads(group) else None)
    except BaseException:
        if _leads(group):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def load_state(module: nn.Module, path: str | Path, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Read a state into a module, on any number of ranks, which call this together; one whose weights are cut must be
    planned (`plan_for`)."""
    path, group = Path(path), _group(module)
    items, found, state = dict[str, _Item](), dict[str, Tensor](), dict[str, Any]()

    def read() -> None:
        index = _read_index(path)
        folder, tensors = path / index["folder"], index["tensors"]
        items.update(_items(module))
        missing, extra = items.keys() - tensors.keys(), {k for k in tensors if k.startswith("model/")} - items.keys()
        if missing or extra:
            what = f"{len(missing)} tensors are missing and {len(extra)} unknown, such as '{min(missing | extra)}'"
            raise FormatError(f"the state is of another module: {what}", where=str(path))
        found.update({key: _read(folder, key, tensors[key], item.shape, item.box) for key, item in items.items()})
        if optimizer is not None:
            state.update(_optimizer_state(module, optimizer, folder, index, items))

    _together(group, path, "read", read)
    with torch.no_grad():  # nothing is changed before all ranks have read all
        for key, item in items.items():
            item.tensor.copy_(found[key])
    if optimizer is not None:
        optimizer.load_state_dict(state)


def _together(group: Group | None, path: Path, done: str, work: Callable[[], None] | None) -> None:
    """Rule K2: a piece of work that all ranks wait for. None: another rank does it."""
    kind = what = where = ""
    cause: Exception | None = None
    try:
        if work is not None:
            work()
    except TilegradError as error:
        kind, what, where, cause = type(error).__name__, error.what, error.where or "", error
    except OSError as error:
        what, cause = f"the state cannot be {done}: {error.strerror or error}", error
        kind, where = "InputError", str(error.filename or path)
    said = json.dumps([kind, what, where])
    every = [said] if group is None else group.tell("a state", said)
    ranks = (0,) if group is None else group.mesh.ranks
    failed = {rank: json.loads(text) for rank, text in zip(ranks, every, strict=True) if json.loads(text)[0]}
    if failed:
        rank, (kind, what, where) = next(iter(failed.items()))
        alone = f"rank {rank}: " if len(failed) < len(every) else ""
        raise getattr(errors, kind)(alone + what, where=where or None) from cause


# Tensors and their boxes ----------------------------------------------------------------------------------------------


def _group(module: nn.Module) -> Group | None:
    return module._state.group if isinstance(module, DistributedModule) else None


def _leads(group: Group | None) -> bool:
    return group is None or group.rank == group.mesh.ranks[0]


def _items(module: nn.Module) -> dict[str, _Item]:
    boxes: Mapping[str, Box] = module.cut_parameters if isinstance(module, DistributedModule) else {}
    found = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            what = f"'{name}' of the state dict is no tensor, but a {type(tensor).__name__}"
            raise InputError(what, hint="a buffer (register_buffer) instead of extra state")
        box = boxes.get(name, Box.full(tensor.shape))
        found[f"model/{name}"] = _Item(local_of(tensor.detach()), tuple(tensor.shape), box)
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
            elif tuple(entry.shape) == model.shape and entry.dim():
                items[f"optimizer/{names[at]}/{key}"] = _Item(local_of(entry.detach()), model.shape, model.box)
            else:
                items[f"optimizer/{names[at]}/{key}"] = _Item(entry, tuple(entry.shape), Box.full(entry.shape))
    groups = [{**group, "params": [names[at] for at in group["params"]]} for group in state["param_groups"]]
    return {"numbers": numbers, "groups": groups}


def _optimizer_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, index: dict[str, Any], items: dict[str, _Item]
) -> dict[str, Any]:
    if "groups" not in index:
        hint = "save_state(module, path, optimizer)"
        raise FormatError("the state has no optimizer in it", where=str(folder.parent), hint=hint)
    numbers = {name: at for at, name in _names(module, optimizer).items()}
    parameters = dict(module.named_parameters())
    state: dict[int, dict[str, Any]] = {numbers[n]: dict(v) for n, v in index["numbers"].items() if n in numbers}
    for key, entry in index["tensors"].items():
        name, _, short = key.removeprefix("optimizer/").rpartition("/")
        if not key.startswith("optimizer/") or name not in numbers:
            continue
        model, shape = items[f"model/{name}"], tuple(entry["shape"])
        same = shape == model.shape
        found = _read(folder, key, entry, shape, model.box if same else Box.full(shape))
        state.setdefault(numbers[name], {})[short] = like(found, parameters[name]) if same and shape else found
    groups = [{**g, "params": [numbers[name] for name in g["params"]]} for g in index["groups"]]
    return {"state": state, "param_groups": groups}


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


def _replace_index(path: Path, index: dict[str, Any]) -> None:
    """Rule K1. What earlier states have left goes, also of those that were interrupted."""
    draft = path / f".index-{index['folder']}.json"
    with draft.open("w") as file:
        json.dump(index, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path / "index.json")
    for old in path.iterdir():
        if _FOLDER.fullmatch(old.name) and old.name != index["folder"]:
            shutil.rmtree(old, ignore_errors=True)
        elif _LEFT.fullmatch(old.name):
            old.unlink(missing_ok=True)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        raw = (path / "index.json").read_bytes()[: _LARGEST_INDEX + 1]
        index = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"not a saved state: {reason}", where=str(path), hint="what save_state wrote") from None
    if not isinstance(index, dict) or not isinstance(index.get("tensors"), dict):
        raise FormatError("not a saved state: no tensors in its index", where=str(path))
    if index.get("schema") not in (1, SCHEMA):
        raise FormatError(f"a state of schema {index.get('schema')!r}, where {SCHEMA} is known", where=str(path))
    folder = index.setdefault("folder", "")
    if folder != "" and not (isinstance(folder, str) and _FOLDER.fullmatch(folder)):
        raise FormatError("an index that names no folder", where=str(path))
    return index


def _read(path: Path, key: str, entry: Any, shape: tuple[int, ...], box: Box) -> Tensor:
    where, file = f"{path}: {key}", _file(path, entry)
    dtype = getattr(torch, str(entry.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise FormatError(f"{entry.get('dtype')!r} is not a type of tensors", where=where)
    try:
        whole = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FormatError(f"a file that cannot be read: {error}", where=where) from None
    if whole.shape != shape:
        raise FormatError(f"a tensor of {whole.shape}, where {shape} is due", where=where)
    found = torch.from_numpy(np.array(whole[box.slices]))  # a copy: the file may be replaced
    return found.view(dtype) if dtype in _AS_INTEGERS else found


def _file(folder: Path, entry: Any) -> Path:
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str) or not entry["file"][:-4].isdigit():
        raise FormatError("an entry of the index that names no file", where=str(folder))
    return folder / entry["file"]
