"""What several of these networks are made of."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd


def scaled(channels: int, width: float, multiple: int = 4) -> int:
    """`channels * width` (Howard et al. 2017, section 3.3), rounded to `multiple` so that grouped layers and vector
    lanes divide it.

    Never loses more than a tenth to the rounding (the MobileNet rule), never goes below `multiple`, and
    leaves `channels` untouched at width 1 so that the published parameter counts hold.
    """
    if not (math.isfinite(width) and width > 0):
        raise ValueError(f"width must be positive and finite, got {width}")
    if width == 1.0:
        return channels
    wanted = channels * width
    rounded = max(multiple, int(wanted + multiple / 2) // multiple * multiple)
    return rounded if rounded >= 0.9 * wanted else rounded + multiple


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, dilation: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution that pads so that stride 1 keeps the size, and its batch norm, whose bias is the only one."""
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class PooledClassifier(nn.Module):
    """Features, global average pool, and what makes classes of the means."""

    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.features(x))
        logits: Tensor = self.classifier(pooled.flatten(1))
        return logits


class DropPath(_DropoutNd):
    """Stochastic depth: Huang, Sun, Liu, Sedra & Weinberger 2016, "Deep Networks with Stochastic Depth", section 3.

    In training, drops the branch of a residual for whole samples: each with probability `p`, the others grow by
    1 / (1 - p). A kind of dropout, so that whoever switches those off (`tilegrad.verify`) finds it too.
    """

    def __init__(self, p: float) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"drop_path_rate must be at least 0 and below 1, got {p}")
        super().__init__(p)

    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0 or not self.training:
            return x
        keep = 1 - self.p
        mask = x.new_empty((x.shape[0], *[1] * (x.dim() - 1))).bernoulli_(keep)
        return x * mask / keep
