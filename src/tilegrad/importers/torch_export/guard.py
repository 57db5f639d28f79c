"""Sees every call of torch that a forward pass makes while it is traced, and refuses what a graph would not do."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...torch_private import pytree
from .explain import is_ours, refused, user_line
from .session import Session, is_fake

_NO_HOOKS = "a hook on the gradient of a tensor"


_TENSOR: Any = Tensor


_NUMBERS = {
    _TENSOR.item, _TENSOR.tolist, _TENSOR.__bool__, _TENSOR.__int__, _TENSOR.__float__, _TENSOR.__index__,
}  # fmt: skip


_REFUSED: dict[Any, tuple[str, str]] = {
    Tensor.register_hook: (_NO_HOOKS, "return the tensor from forward and hook it there, or an autograd.Function"),
    Tensor.register_post_accumulate_grad_hook: (_NO_HOOKS, "hook the parameter outside of forward"),
    Tensor.retain_grad: ("the gradient of a tensor inside", "return the tensor from forward, and retain it there"),
    Tensor.requires_grad_: ("a change of what needs a gradient", "requires_grad_() outside of forward"),
    _TENSOR.requires_grad.__set__: ("a change of what needs a gradient", "requires_grad_() outside of forward"),
    Tensor.backward: ("backward", "backward outside of forward"),
    _TENSOR.grad.__get__: ("a gradient", "gradients outside of forward"),
    Tensor.numpy: ("a NumPy array of a tensor", "torch operators"),
    torch.autograd.grad: ("a gradient", "gradients outside of the tiled module"),
    torch.autograd.backward: ("backward", "backward outside of forward"),
}


class Guard(TorchFunctionMode):
    """Sees every call of torch that the user's forward pass makes."""

    def __init__(self, session: Session):
        super().__init__()
        self.session, self.inference = session, torch.is_inference_mode_enabled()
        self.batches: Tensor | None = None  # how many a norm layer has seen that averages over all of them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _REFUSED:
            what, hint = _REFUSED[func]
            name = getattr(func, "__name__", "").strip("_")
            raise refused(f"the model uses {what} in forward ('{name}')", hint)
        if torch.is_inference_mode_enabled() != self.inference:
            hint = "torch.no_grad inside, or inference_mode around the call"
            raise refused("torch.inference_mode inside of forward", hint)
        args, kwargs = pytree.tree_map(self.session.fake, (args, kwargs or {}))
        _check_outside(args, kwargs)
        if func in _NUMBERS and is_fake(args[0]) and args[0].constant is None:
            return self._number(func, args[0])
        if func is F.batch_norm and self.batches is not None:
            batches, self.batches = self.batches, None
            return _average_norm(batches, *args, **kwargs)
        if func == _TENSOR.data.__get__:
            return args[0].detach()
        if func == _TENSOR.data.__set__:
            return _put(*args)
        found = func(*args, **kwargs)
        for item in pytree.tree_leaves(found):
            if is_fake(item):
                self.session.seen.append((weakref.ref(item), user_line()))
        return found

    def _number(self, func: Any, tensor: Tensor) -> Any:
        if func is _TENSOR.__float__ and _counts_batches():
            self.batches = tensor
            return 1.0
        if func is _TENSOR.__bool__:
            hint = "torch.where instead of if, or keep this part outside the wrapped module"
            raise refused("the model branches on the content of a tensor", hint)
        what = f"the model takes a number out of a tensor ('{func.__name__.strip('_')}')"
        raise refused(what, "keep it a tensor: no .item(), .tolist() or float() in forward")


def _put(tensor: Tensor, data: Tensor) -> None:
    """`tensor.data = data`."""
    if tensor.shape != data.shape or tensor.dtype != data.dtype:
        raise refused("the model gives a tensor a content of another type (.data = …)", "a new tensor")
    with torch.no_grad():
        tensor.copy_(data)


def _counts_batches() -> bool:
    """Is it torch's own norm layer that asks, to weigh the newest batch?"""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and is_ours(frame.f_code.co_filename):
        if frame.f_code is nn.modules.batchnorm._BatchNorm.forward.__code__:
            return True
        frame = frame.f_back
    return False


def _average_norm(
    batches: Tensor,
    x: Tensor, mean: Tensor, var: Tensor, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Batch norm whose running statistics are averages over all batches: torch wants their share as a number."""
    assert training
    found = F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
    with torch.no_grad():
        wide = x.to(mean.dtype)
        over = [d for d in range(x.dim()) if d != 1]
        share = 1.0 / batches.to(mean.dtype)
        mean.add_((wide.mean(over) - mean) * share)
        var.add_((wide.var(over) - var) * share)
    return found


def _check_outside(args: Any, kwargs: Any) -> None:
    for item in pytree.tree_leaves((args, kwargs)):
        if isinstance(item, Tensor) and not is_fake(item) and item.requires_grad:
            what = "the model uses a tensor that needs a gradient, and that the module does not hold"
            raise refused(what, "make it an attribute of the module, or pass it as an input")
