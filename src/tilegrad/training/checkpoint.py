"""All that a run needs to go on as if it had never stopped, in one file: written whole or not at all, read without
running anything that is in it (`weights_only`)."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import FormatError, InputError
from ..files import whole_file

SCHEMA = 1
LAST, BEST = "last.pt", "best.pt"


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """A disk that is full leaves the old file as it was."""
    draft = io.BytesIO()  # torch's own writer ends the process where a disk is full
    torch.save({"schema": SCHEMA, **state}, draft)
    with whole_file(path, "the checkpoint", "make room: the one before it is untouched") as file:
        file.write(draft.getbuffer())


def load_checkpoint(path: Path, device: str = "cpu") -> dict[str, Any]:
    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise InputError("there is no checkpoint", where=str(path), hint="the same command without --resume") from None
    except Exception as error:  # whatever is in the file
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FormatError(f"this is not a checkpoint: {said}", where=str(path)) from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise FormatError("this is not a checkpoint of tilegrad train", where=str(path))
    return found


def remove_drafts(folder: Path) -> None:
    """What a process that was killed in the middle of a write has left."""
    for draft in folder.glob(".tilegrad-*.tmp"):
        draft.unlink(missing_ok=True)


def random_state() -> dict[str, Any]:
    """Of all generators, as plain data and tensors."""
    name, keys, at, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": (name, torch.tensor(np.asarray(keys).astype(np.int64)), int(at), int(has_gauss), float(gauss)),
    }


def set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)  # CUDA's too
    random.seed(seed)
    np.random.seed(seed % 2**32)
