"""A network together with what it is trained for: its loss, and counts of what it gets right.

Both are part of the module, so that neither a dense output nor its gradient is ever whole in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ModelError


class Objective(nn.Module):
    """`forward(image, target)` is the mean cross entropy in training. In evaluation there are, beside it, for each
    class how often it was predicted rightly, predicted, and there: a tensor [3, classes].

    target: class indices [n], or a mask [n, 1, ...] in which class `k` has the value `values[k]`.
    """

    weights: Tensor | None

    def __init__(
        self, net: nn.Module, values: Sequence[int], weights: Sequence[float] | None, ignore_index: int, masks: bool
    ):
        super().__init__()
        self.net, self.values, self.ignore_index, self.masks = net, tuple(values), ignore_index, masks
        dtype = next((p.dtype for p in net.parameters()), torch.float32)
        self.register_buffer("weights", None if weights is None else torch.tensor(weights, dtype=dtype))

    def forward(self, image: Tensor, target: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        logits: Tensor = self.net(image)
        if logits.ndim < 2 or logits.shape[1] != len(self.values):
            raise ModelError(
                f"the model gives {tuple(logits.shape)}, and there are {len(self.values)} classes",
                hint=f"classes={len(self.values)} among the model's options",
            )
        if self.masks:
            target = self._indices(target[:, 0])
        loss = F.cross_entropy(logits, target, self.weights, ignore_index=self.ignore_index)
        return loss if self.training else (loss, self._counts(logits, target))

    def _indices(self, mask: Tensor) -> Tensor:
        """Classes by their place, whatever values they have in masks."""
        found = mask
        for index, value in enumerate(self.values):
            if index != value:
                found = torch.where(mask == value, index, found)
        return found

    def _counts(self, logits: Tensor, target: Tensor) -> Tensor:
        said, counts = logits.argmax(1), target != self.ignore_index
        found = [
            [((said == k) & (target == k)).sum(), ((said == k) & counts).sum(), (target == k).sum()]
            for k in range(len(self.values))
        ]
        return torch.stack([count for of_class in zip(*found, strict=True) for count in of_class]).reshape(3, -1)
