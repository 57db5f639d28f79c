"""Weights that live on space: locally connected layers, a classifier over the whole image, softmax loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn import LocallyConnected2d, ScalarGain, SpatialLinear


class LocalNet(nn.Module):
    """Layers of `LocallyConnected2d`, `ScalarGain` and a nonlinearity, then `SpatialLinear` into classes.

    With labels, the loss (mean cross entropy); without, the logits. As drawn: an image of 41x41 with one channel, 64
    maps of 9x9 and 64 of 7x7 kernels, 3034 classes: 293,629,250 parameters.
    """

    def __init__(
        self,
        image: int | tuple[int, int] = 41,
        channels: int = 1,
        layers: Sequence[tuple[int, int]] = ((9, 64), (7, 64)),
        classes: int = 3034,
        *,
        gain: str = "a*(x+b)",
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        size = (image, image) if isinstance(image, int) else image
        parts: list[nn.Module] = []
        for at, (kernel, maps) in enumerate(layers):
            local = LocallyConnected2d(channels, maps, kernel, size, seed=at + 1, device=device, dtype=dtype)
            size, channels = (local.output_size[0], local.output_size[1]), maps
            parts += [local, ScalarGain((maps, *size), gain, device=device, dtype=dtype), nn.Tanh()]
        self.layers = nn.Sequential(*parts)
        self.classifier = SpatialLinear((channels, *size), classes, seed=len(layers) + 1, device=device, dtype=dtype)

    def forward(self, image: Tensor, labels: Tensor | None = None) -> Tensor:
        logits: Tensor = self.classifier(self.layers(image))
        return logits if labels is None else F.cross_entropy(logits, labels)


def evaluate(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """What the drawing's `evaluate` and `accuracy` tell: how many were right, among the five likeliest, the loss, and
    of how many; and the share that was right."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    right = best == labels[:, None]
    found = {
        "right": float(right[:, 0].sum()),
        "right_of_five": float(right.any(1).sum()),
        "loss": float(F.cross_entropy(logits, labels, reduction="sum")),
        "count": float(len(labels)),
    }
    return found | {"accuracy": found["right"] / max(1.0, found["count"])}
