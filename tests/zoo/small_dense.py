"""Small networks that answer at every pixel: SegResNet in 3-D, DeepLab with PSPNet's pools, one for the globe."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from small_layers import conv_norm
from torch import Tensor, nn

# SegResNet: volumes, group norms, trilinear upsampling


class ResBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, channels), nn.GroupNorm(2, channels)
        self.act = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv3d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv3d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        x = self.conv1(self.act(self.norm1(x)))
        x = self.conv2(self.act(self.norm2(x)))
        x += identity
        return x


class SegResNet(nn.Module):
    def __init__(self, filters: int = 4, dropout_prob: float = 0.2) -> None:
        super().__init__()
        self.conv_init = nn.Conv3d(1, filters, 3, padding=1, bias=False)
        self.dropout = nn.Dropout3d(dropout_prob)
        self.down1 = ResBlock(filters)
        pre_conv = nn.Conv3d(filters, 2 * filters, 3, 2, 1, bias=False)
        self.down2 = nn.Sequential(pre_conv, ResBlock(2 * filters))
        self.reduce = nn.Conv3d(2 * filters, filters, 1, bias=False)
        self.up = ResBlock(filters)
        self.conv_final = nn.Sequential(nn.GroupNorm(2, filters), nn.ReLU(inplace=True), nn.Conv3d(filters, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.conv_init(x))
        skip = self.down1(x)
        x = self.reduce(self.down2(skip))
        x = F.interpolate(x, size=skip.shape[2:], mode="trilinear", align_corners=False) + skip
        return self.conv_final(self.up(x))


# DeepLab and PSPNet: pooling branches brought back to size, a dictionary of outputs


class ASPPPooling(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, bins: int = 1) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(bins), *conv_norm(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        for mod in self:
            x = mod(x)
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class ASPP(nn.Module):
    def __init__(self, inputs: int, outputs: int, rates: Sequence[int] = (2, 4, 6), bins: Sequence[int] = (1, 3)):
        super().__init__()
        modules: list[nn.Module] = [conv_norm(inputs, outputs, 1)]
        for rate in rates:
            conv = nn.Conv2d(inputs, outputs, 3, padding=rate, dilation=rate, bias=False)
            modules.append(nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU()))
        modules += [ASPPPooling(inputs, outputs, each) for each in bins]
        self.convs = nn.ModuleList(modules)
        self.project = nn.Sequential(*conv_norm(len(modules) * outputs, outputs, 1), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        _res = []
        for conv in self.convs:
            _res.append(conv(x))
        res = torch.cat(_res, dim=1)
        return self.project(res)


class DeepLab(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer3 = nn.Sequential(conv_norm(3, 6, 3, 2), conv_norm(6, 8, 3, 2))
        self.layer4 = conv_norm(8, 8)
        self.classifier = nn.Sequential(ASPP(8, 6), conv_norm(6, 6), nn.Conv2d(6, 4, 1))
        self.aux_classifier = nn.Sequential(conv_norm(8, 4), nn.Dropout(0.1), nn.Conv2d(4, 4, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        input_shape = x.shape[-2:]
        features = {"aux": self.layer3(x)}
        features["out"] = self.layer4(features["aux"])
        result = {}
        for key, head in (("out", self.classifier), ("aux", self.aux_classifier)):
            x = head(features[key])
            result[key] = F.interpolate(x, size=input_shape, mode="bilinear", align_corners=False)
        return result


# A globe: longitude goes round, latitude ends at the poles


class GlobeConv2d(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        h, w = self.kernel_size[0] // 2, self.kernel_size[1] // 2
        x = F.pad(input, (w, w, 0, 0), mode="circular")
        x = F.pad(x, (0, 0, h, h), mode="constant", value=0)
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class GlobeNet(nn.Module):
    area: Tensor

    def __init__(self, rows: int = 33) -> None:
        super().__init__()
        latitude = torch.linspace(-math.pi / 2, math.pi / 2, rows)
        self.register_buffer("area", latitude.cos()[:, None].clamp(min=0.01), persistent=False)
        self.encode = nn.Sequential(GlobeConv2d(2, 6, 5), nn.BatchNorm2d(6), nn.ELU(inplace=True))
        self.down = nn.Sequential(
            GlobeConv2d(6, 8, 3, 2), nn.BatchNorm2d(8), nn.ELU(inplace=True), GlobeConv2d(8, 8, 3)
        )
        self.decode = GlobeConv2d(14, 2, (3, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.encode(x)
        coarse = self.down(fine)
        raised = F.interpolate(coarse, size=fine.shape[-2:], mode="nearest")
        change = self.decode(torch.cat((fine, raised), 1))
        error = (change.square() * self.area).mean()
        return x + change, error
