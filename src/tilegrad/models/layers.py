"""What several of these networks are made of."""

from __future__ import annotations

from torch import Tensor, nn


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
