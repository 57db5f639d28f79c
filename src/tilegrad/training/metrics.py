"""What a run writes down: a line of JSON for each step and each validation, and the same for TensorBoard."""

from __future__ import annotations

import json
import logging
import os
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import InputError
from ..extras import install_hint

NAME = "metrics.jsonl"
_log = logging.getLogger("tilegrad")


class MetricLog:
    """`metrics.jsonl`, going on behind the first `begin` bytes: what came later was of steps that are made again. Of
    the ranks of a mesh one has it `on`."""

    def __init__(self, folder: Path, begin: int, step: int, *, tensorboard: bool, on: bool = True):
        self.path, self.size, self._on = folder / NAME, begin, on
        self._board = _board(folder, step) if tensorboard and on else None
        if not on:
            return
        with open(self.path, "ab") as file:
            if file.tell() < begin:
                raise InputError("lines are missing that the checkpoint knows of", where=str(self.path))
            file.truncate(begin)

    def add(self, **line: Any) -> None:
        """Numbers that are not finite are null, as JSON has none."""
        if not self._on:
            return
        words = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in line.items()}
        text = json.dumps(words, allow_nan=False).encode() + b"\n"
        try:
            with open(self.path, "r+b") as file:
                file.seek(self.size)
                file.truncate()  # half a line of an attempt that failed
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            _log.warning("%s cannot be written: %s", self.path, error.strerror)
            return
        self.size += len(text)
        if self._board is not None:
            for name, value in words.items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self._board.add_scalar(name, value, line["step"])

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        hint = install_hint(error, "pip install 'tilegrad[tensorboard]'")
        raise InputError("tensorboard is not installed", where="key 'tensorboard'", hint=hint) from None
    return SummaryWriter(str(folder), purge_step=step + 1)


def scores(counts: Tensor) -> dict[str, float]:
    """Of the counts of an `Objective`: which share is right, and the mean over classes of intersection over union."""
    right, said, there = counts.double()
    either = said + there - right
    seen = either > 0
    return {
        "accuracy": float(right.sum() / there.sum().clamp(min=1)),
        "iou": float((right[seen] / either[seen]).mean()) if bool(seen.any()) else 0.0,
    }
