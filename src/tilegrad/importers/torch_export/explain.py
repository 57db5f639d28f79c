"""One message for whatever goes wrong in a capture: which line of the user's model, and what to do."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from ...errors import CaptureError, ModelError, TilegradError

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parents[2]) + os.sep
_MODELS = str(Path(__file__).parents[2] / "models") + os.sep
_TRACE = str(Path(__file__).with_name("trace.py"))
_STDLIB = str(Path(sysconfig.get_path("stdlib"))) + os.sep
_SITE = tuple(sysconfig.get_path(each) + os.sep for each in ("purelib", "platlib"))


def is_ours(file: str) -> bool:
    """Torch's, Python's or our own code, and not a model's."""
    if file.startswith(_MODELS):
        return False
    return file.startswith((_TORCH, _OURS, "<")) or (file.startswith(_STDLIB) and not file.startswith(_SITE))


def explain(module: nn.Module, error: Exception) -> TilegradError:
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not is_ours(f.filename)]
    users = _without_caller(frames, users)
    where = f"{users[-1].filename}:{users[-1].lineno}: {users[-1].line}" if users else type(module).__name__
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    kind = type(error).__name__
    if "DataDependent" in kind or "data-dependent" in str(error) or "GuardOnData" in kind:
        return CaptureError(
            f"the model branches on the content of a tensor: {reason}",
            where=where,
            hint="torch.where instead of if, or keep this part outside the wrapped module",
        )
    inside = any(f.filename == _TRACE and f.name == "run" for f in frames)
    if inside or isinstance(error, TypeError):
        return ModelError(f"the model does not run on these inputs: {reason}", where=where, hint=_hint(str(error)))
    return CaptureError(
        f"torch.export cannot capture the model: {reason}",
        where=where,
        hint="tile the part of the model that it can: model.backbone = tilegrad.tile(model.backbone, …)",
    )


def _without_caller(
    frames: list[traceback.FrameSummary], users: list[traceback.FrameSummary]
) -> list[traceback.FrameSummary]:
    """Only frames inside the model: those below the trace, not the user's own call of the tiled module."""
    starts = [at for at, f in enumerate(frames) if f.filename.startswith(_TORCH) and "export" in f.filename]
    inside = frames[starts[0] :] if starts else []
    return [f for f in users if f in inside]


def _hint(message: str) -> str:
    """What to try, from what torch says; the number of channels is blamed only if it is that."""
    if "unsigned char" in message or "Byte" in message:
        return "tilegrad.open(image, scale=1/255): bytes become floats, tile by tile"
    if "channels" in message:
        return "check the number of channels of the input"
    if "size of tensor" in message or "Sizes of tensors must match" in message:
        return "an input size that the model's strides divide"
    if "expected scalar type" in message or "same dtype" in message or "same type" in message:
        return "an input of the same dtype as the parameters"
    if "mat1 and mat2" in message or "Kernel size" in message or "invalid for input" in message:
        return "check the size of the input"
    if "argument" in message:
        return "check the arguments of the call"
    return "check that the model runs on inputs of this shape and dtype without tilegrad"


def forward_line(module: nn.Module) -> str:
    """Where the module's forward is written."""
    code = getattr(type(module).forward, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else type(module).__name__


def user_line() -> str:
    """The innermost line that is not torch's or ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_ours(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def refused(what: str, hint: str) -> CaptureError:
    """The error for what the line that runs now does."""
    return CaptureError(what, where=user_line(), hint=hint)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """torch's own logs and warnings about the trace are not the user's business: errors are explained."""

    def drop(record: logging.LogRecord) -> bool:
        return not record.name.startswith("torch")

    loggers = [x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger)]
    handlers = [h for each in (logging.root, *loggers) for h in each.handlers]
    handlers += [logging.lastResort] if logging.lastResort else []
    for handler in handlers:
        handler.addFilter(drop)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\b")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(drop)
