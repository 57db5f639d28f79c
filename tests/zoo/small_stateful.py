"""Small networks that keep things or run them again: DynUNet, DenseNet, discriminators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from small_layers import Classifier, conv_norm
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# DynUNet: heads of deep supervision that forward leaves in a list of the module


class UnetBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norm1 = nn.InstanceNorm2d(outputs, affine=True)
        self.norm2 = nn.InstanceNorm2d(outputs, affine=True)
        self.lrelu = nn.LeakyReLU(0.01, inplace=True)

    def forward(self, inp: Tensor) -> Tensor:
        out = self.lrelu(self.norm1(self.conv1(inp)))
        return self.lrelu(self.norm2(self.conv2(out)))


class UnetUpBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.transp_conv = nn.ConvTranspose2d(inputs, outputs, 2, 2)
        self.conv_block = UnetBlock(2 * outputs, outputs)

    def forward(self, inp: Tensor, skip: Tensor) -> Tensor:
        out = self.transp_conv(inp)
        return self.conv_block(torch.cat((out, skip), dim=1))


class DynUNetSkipLayer(nn.Module):
    """One level, with the levels below inside it. What its head says goes into the list that all levels share."""

    heads: list[Tensor] | None

    def __init__(
        self,
        index: int,
        downsample: nn.Module,
        upsample: nn.Module,
        next_layer: nn.Module,
        heads: list[Tensor] | None = None,
        super_head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.downsample, self.next_layer, self.upsample = downsample, next_layer, upsample
        self.super_head, self.heads, self.index = super_head, heads, index

    def forward(self, x: Tensor) -> Tensor:
        downout = self.downsample(x)
        upout = self.upsample(self.next_layer(downout), downout)
        if self.super_head is not None and self.heads is not None and self.index > 0:
            self.heads[self.index - 1] = self.super_head(upout)
        return upout


class DynUNet(nn.Module):
    def __init__(self, filters: Sequence[int] = (4, 6, 8, 10), supervised: int = 2) -> None:
        super().__init__()
        self.heads: list[Tensor] = [torch.rand(1)] * supervised
        levels = range(len(filters) - 1)
        downs = [UnetBlock(1 if i == 0 else filters[i - 1], filters[i], 1 if i == 0 else 2) for i in levels]
        layer: nn.Module = UnetBlock(filters[-2], filters[-1], 2)
        for i in reversed(levels):
            head = nn.Conv2d(filters[i], 2, 1) if 0 < i <= supervised else None
            layer = DynUNetSkipLayer(i, downs[i], UnetUpBlock(filters[i + 1], filters[i]), layer, self.heads, head)
        self.skip_layers = layer
        self.output_block = nn.Conv2d(filters[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.output_block(self.skip_layers(x))
        if not self.training:
            return out
        out_all = [out]
        for feature_map in self.heads:
            out_all.append(F.interpolate(feature_map, out.shape[2:]))
        return torch.stack(out_all, dim=1)


# DenseNet: lists of features, and bottlenecks that are run again in the backward pass


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int, drop_rate: float, memory_efficient: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)
        self.drop_rate, self.memory_efficient = float(drop_rate), memory_efficient

    def bn_function(self, inputs: list[Tensor]) -> Tensor:
        return self.conv1(self.relu1(self.norm1(torch.cat(inputs, 1))))

    def forward(self, input: Tensor | list[Tensor]) -> Tensor:
        prev_features = [input] if isinstance(input, Tensor) else input
        if self.memory_efficient and any(tensor.requires_grad for tensor in prev_features):

            def closure(*inputs: Tensor) -> Tensor:
                return self.bn_function(list(inputs))

            bottleneck = checkpoint(closure, *prev_features, use_reentrant=False)
        else:
            bottleneck = self.bn_function(prev_features)
        new_features = self.conv2(self.relu2(self.norm2(bottleneck)))
        if self.drop_rate > 0:
            new_features = F.dropout(new_features, p=self.drop_rate, training=self.training)
        return new_features


class DenseBlock(nn.ModuleDict):
    def __init__(self, layers: int, inputs: int, growth: int, drop_rate: float, memory_efficient: bool) -> None:
        super().__init__()
        for i in range(layers):
            layer = DenseLayer(inputs + i * growth, growth, drop_rate, memory_efficient)
            self.add_module(f"denselayer{i + 1}", layer)

    def forward(self, init_features: Tensor) -> Tensor:
        features = [init_features]
        for _, layer in self.items():
            features.append(layer(features))
        return torch.cat(features, 1)


def densenet(memory_efficient: bool = False, drop_rate: float = 0.1) -> nn.Module:
    transition = [nn.BatchNorm2d(20), nn.ReLU(inplace=True), nn.Conv2d(20, 10, 1, bias=False), nn.AvgPool2d(2, 2)]
    blocks = [DenseBlock(3, n, 4, drop_rate, memory_efficient) for n in (8, 10)]
    return Classifier(nn.Sequential(*conv_norm(3, 8, 5, 2), blocks[0], *transition, blocks[1], nn.BatchNorm2d(22)), 22)


# Discriminators: weights divided by their spectral norm, whose estimate is a buffer that each step improves


class Discriminator(nn.Module):
    def __init__(self, normed: Callable[..., Any]) -> None:
        super().__init__()
        self.main = nn.Sequential(
            normed(nn.Conv2d(3, 8, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
            normed(nn.Conv2d(8, 12, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
            normed(nn.Conv2d(12, 12, 3, 1, 1)),
            nn.LeakyReLU(0.2, inplace=True),
        )
        self.last = normed(nn.Linear(12, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.main(x)
        return self.last(torch.sum(x, dim=(2, 3))).view(-1)
