"""What backward needs as it was must not be written to before it runs."""

from __future__ import annotations

from torch import Tensor

from ..errors import RunError


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to in place, as autograd counts."""
    return 0 if tensor.is_inference() else tensor._version


def was_changed(what: str) -> RunError:
    return RunError(
        f"{what} was written to after the forward pass, and backward needs it as it was",
        hint="backward before optimizer.step() and before writing in place to inputs and outputs",
    )
