"""Small convolutional classifiers: EfficientNet, ConvNeXt, ECA, ShuffleNet, NFNet, GhostNet."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from small_layers import Classifier, DropPath, StochasticDepth, conv_norm
from torch import Tensor, nn

# EfficientNet: squeeze-excite and stochastic depth


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv_reduce = nn.Conv2d(channels, squeezed, 1)
        self.act1 = nn.SiLU(inplace=True)
        self.conv_expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x_se = x.mean((2, 3), keepdim=True)
        x_se = self.conv_expand(self.act1(self.conv_reduce(x_se)))
        return x * x_se.sigmoid()


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, drop: float) -> None:
        super().__init__()
        hidden = 4 * inputs
        self.has_skip = inputs == outputs and stride == 1
        self.conv_pw = nn.Conv2d(inputs, hidden, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.conv_dw = nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False)
        self.bn2 = nn.BatchNorm2d(hidden)
        self.act = nn.SiLU(inplace=True)
        self.se = SqueezeExcite(hidden, inputs // 2)
        self.conv_pwl = nn.Conv2d(hidden, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.drop_path = DropPath(drop) if drop else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.act(self.bn1(self.conv_pw(x)))
        x = self.se(self.act(self.bn2(self.conv_dw(x))))
        x = self.bn3(self.conv_pwl(x))
        if self.has_skip:
            x = self.drop_path(x) + shortcut
        return x


def efficientnet() -> nn.Module:
    blocks = [(8, 8, 3, 1, 0.0), (8, 12, 5, 2, 0.1), (12, 12, 5, 1, 0.2), (12, 12, 3, 1, 0.3)]
    return Classifier(nn.Sequential(conv_norm(3, 8, 3, 2), *(InvertedResidual(*b) for b in blocks)), 12, 0.2)


# ConvNeXt: permutes, norm over channels, layer scale, stochastic depth


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class CNBlock(nn.Module):
    def __init__(self, dim: int, drop: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.layer_scale = nn.Parameter(torch.ones(dim, 1, 1) * 0.5)
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        out = self.mlp(self.norm(self.dwconv(x).permute(0, 2, 3, 1).contiguous())).permute(0, 3, 1, 2)
        result = self.layer_scale * out
        result = self.stochastic_depth(result)
        result += x
        return result


def convnext() -> nn.Module:
    stem = [nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8, eps=1e-6), CNBlock(8, 0.1), CNBlock(8, 0.2)]
    return Classifier(nn.Sequential(*stem, LayerNorm2d(8), nn.Conv2d(8, 12, 2, 2), CNBlock(12, 0.3)), 12)


# ECA: a 1-D convolution over the channels


class EcaModule(nn.Module):
    def __init__(self, kernel: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, kernel, padding=(kernel - 1) // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x.mean((2, 3)).view(x.shape[0], 1, -1)
        y = self.conv(y)
        y = y.view(x.shape[0], -1, 1, 1).sigmoid()
        return x * y.expand_as(x)


class EcaBlock(nn.Module):
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv_norm(channels, channels, 3, stride)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.se = EcaModule()
        self.act = nn.ReLU(inplace=True)
        self.downsample = nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.se(self.bn2(self.conv2(self.conv1(x))))
        x += shortcut
        return self.act(x)


def eca_resnet() -> nn.Module:
    return Classifier(nn.Sequential(conv_norm(3, 8), nn.MaxPool2d(3, 2, 1), EcaBlock(8), EcaBlock(8, 2)), 8)


# ShuffleNet: channels that change places


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batchsize, num_channels, height, width = x.size()
    channels_per_group = num_channels // groups
    x = x.view(batchsize, groups, channels_per_group, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batchsize, num_channels, height, width)


class ShuffleUnit(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = channels if stride > 1 else channels // 2
        self.branch1 = nn.Sequential()
        if stride > 1:
            depthwise = nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False)
            self.branch1 = nn.Sequential(depthwise, nn.BatchNorm2d(half), *conv_norm(half, half, 1))
        depthwise = nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False)
        normed = (depthwise, nn.BatchNorm2d(half))
        self.branch2 = nn.Sequential(*conv_norm(half, half, 1), *normed, *conv_norm(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


def shufflenet() -> nn.Module:
    units = (ShuffleUnit(8, 2), ShuffleUnit(16, 1), ShuffleUnit(16, 1), ShuffleUnit(16, 2), ShuffleUnit(32, 1))
    return Classifier(nn.Sequential(conv_norm(3, 8), *units), 32)


# NFNet: weights standardized on every call, by a batch norm over them


class ScaledStdConv2d(nn.Conv2d):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, gamma: float = 1.7868) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2)
        self.gain = nn.Parameter(torch.full((outputs, 1, 1, 1), 1.0))
        self.scale = gamma * self.weight[0].numel() ** -0.5
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1),
            None,
            None,
            weight=(self.gain * self.scale).view(-1),
            training=True,
            momentum=0.0,
            eps=self.eps,
        ).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class NormFreeBlock(nn.Module):
    def __init__(self, channels: int, stride: int, beta: float, drop: float, alpha: float = 0.2) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.act = nn.SiLU()
        self.downsample = ScaledStdConv2d(channels, channels, 1) if stride > 1 else None
        self.pool = nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False)
        self.conv1 = ScaledStdConv2d(channels, channels, 3, stride)
        self.conv2 = ScaledStdConv2d(channels, channels, 3)
        self.drop_path = DropPath(drop)
        self.skipinit_gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(x) * self.beta
        shortcut = x if self.downsample is None else self.downsample(self.pool(out))
        out = self.conv2(self.act(self.conv1(out)))
        out = self.drop_path(out)
        out.mul_(self.skipinit_gain)
        return out * self.alpha + shortcut


def nfnet() -> nn.Module:
    blocks = (NormFreeBlock(8, 1, 1.0, 0.1), NormFreeBlock(8, 2, 0.98, 0.2), NormFreeBlock(8, 1, 0.95, 0.25))
    return Classifier(nn.Sequential(ScaledStdConv2d(3, 8, 3, 2), *blocks, nn.SiLU(inplace=True)), 8, 0.2)


# GhostNet: more channels than wanted, cut off; attention at half the resolution, brought back


class GhostModule(nn.Module):
    def __init__(self, inputs: int, outputs: int, relu: bool = True) -> None:
        super().__init__()
        first = math.ceil(outputs / 2)
        self.outputs = outputs
        self.primary_conv = conv_norm(inputs, first, 1) if relu else conv_norm(inputs, first, 1)[:2]
        self.cheap_operation = conv_norm(first, first, 3, groups=first)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.primary_conv(x)
        x2 = self.cheap_operation(x1)
        out = torch.cat([x1, x2], dim=1)
        return out[:, : self.outputs, :, :]


class GhostModuleV2(GhostModule):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.gate_fn = nn.Sigmoid()
        self.short_conv = nn.Sequential(
            *conv_norm(inputs, outputs)[:2],
            nn.Conv2d(outputs, outputs, (1, 5), padding=(0, 2), groups=outputs, bias=False),
            nn.BatchNorm2d(outputs),
            nn.Conv2d(outputs, outputs, (5, 1), padding=(2, 0), groups=outputs, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        res = self.short_conv(F.avg_pool2d(x, kernel_size=2, stride=2))
        out = super().forward(x)
        return out * F.interpolate(self.gate_fn(res), size=(out.shape[-2], out.shape[-1]), mode="nearest")


class GhostBottleneck(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.ghost1 = GhostModuleV2(channels, hidden)
        self.ghost2 = GhostModule(hidden, channels, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.ghost2(self.ghost1(x))
        x += shortcut
        return x


def ghostnet() -> nn.Module:
    return Classifier(nn.Sequential(conv_norm(3, 6, 3, 2), GhostBottleneck(6, 11), GhostBottleneck(6, 15)), 6, 0.2)
