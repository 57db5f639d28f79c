"""Small forms of the networks people train: two channels of 16 by 16 pixels in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from loops import photo
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)  # what a norm takes away is nothing but rounding
        self.block = nn.Sequential(
            nn.Conv2d(4, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
        )
        self.down = nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), nn.BatchNorm2d(8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        identity = self.down(x)
        x = self.block(x)
        x += identity
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(F.relu(x, inplace=True), 1), 1))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.block(2, 4), self.block(4, 4)])
        self.bottom = self.block(4, 4)
        self.up = nn.ModuleList([nn.ConvTranspose2d(4, 4, 2, 2), nn.ConvTranspose2d(4, 4, 2, 2)])
        self.merge = nn.ModuleList([self.block(8, 4), self.block(8, 4)])
        self.head = nn.Conv2d(4, 2, 1)

    @staticmethod
    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False), nn.InstanceNorm2d(after), nn.LeakyReLU(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], dim=1))
        return self.head(x)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(2 * (k + 1), 2, 3, padding=1) for k in range(3))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)).relu())
        return torch.cat(features, 1)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 4, 3, padding=1), nn.Sequential(nn.Linear(4, 2), nn.SiLU(), nn.Linear(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        gate = self.fc(y.mean((2, 3))).sigmoid()
        return y * gate[:, :, None, None]


class ChannelAttention(nn.Module):
    """ECA: a one-dimensional convolution along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.eca = nn.Conv2d(2, 6, 3, padding=1), nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        g = self.eca(F.adaptive_avg_pool2d(y, 1).squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        return y * g.sigmoid().expand_as(y)


class Cbam(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(2, 1, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        seen = torch.cat([y.max(1, keepdim=True)[0], y.mean(1, keepdim=True)], 1)
        return y * self.gate(seen).sigmoid()


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(2, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)
        self.l1, self.l2 = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Any:
        a = self.c1(x).relu()
        b = self.c2(a).relu()
        p2 = self.l2(b)
        p1 = self.l1(a) + F.interpolate(p2, size=a.shape[-2:], mode="bilinear", align_corners=False)
        return (p1, p2) if self.training else p1


class Aspp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(2, 2, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.pool, self.project = nn.Conv2d(2, 2, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        outs = [branch(x) for branch in self.branches]
        pooled = self.pool(F.adaptive_avg_pool2d(x, 1))
        outs.append(F.interpolate(pooled, size=x.shape[2:], mode="bilinear", align_corners=False))
        return self.project(torch.cat(outs, 1))


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(2, 8, 3, padding=1, padding_mode="reflect"), nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(self.conv(x))
        return up + F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)


class NonLocal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(2, 6, 1), nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(F.avg_pool2d(x, 2)).flatten(2).chunk(3, 1)
        seen = F.scaled_dot_product_attention(q.mT, k.mT, v.mT).mT.unflatten(2, (8, 8))
        return x + self.out(F.interpolate(seen, scale_factor=2, mode="nearest"))


class Windows(nn.Module):
    """Shifted windows, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.size = nn.LayerNorm(4), nn.MultiheadAttention(4, 2, batch_first=True), 4
        self.embed = nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        s = self.size
        y = self.norm(self.embed(x).permute(0, 2, 3, 1)).roll((-2, -2), (1, 2))
        y = y.view(n, h // s, s, w // s, s, 4).transpose(2, 3).reshape(-1, s * s, 4)
        y = self.attention(y, y, y, need_weights=False)[0]
        y = y.view(n, h // s, w // s, s, s, 4).transpose(2, 3).reshape(n, h, w, 4).roll((2, 2), (1, 2))
        return y.permute(0, 3, 1, 2)


class Patches(nn.Module):
    """A small vision transformer, with positions resized to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cls = nn.Conv2d(2, 8, 4, 4), nn.Parameter(torch.zeros(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 8, 3, 3))
        self.block, self.head = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        y = y + F.interpolate(self.positions, y.shape[-2:], mode="bicubic", align_corners=False)
        y = torch.cat([self.cls.expand(len(y), -1, -1), y.flatten(2).transpose(1, 2)], 1)
        return self.head(self.block(y)[:, 0])


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(2, 2, 7, padding=3, groups=2), nn.LayerNorm(2, eps=1e-6)
        self.up, self.down = nn.Linear(2, 8), nn.Linear(8, 2)
        self.gamma = nn.Parameter(torch.full((2,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.theta = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        theta = (0.1 * self.theta(y.mean((2, 3)))).view(-1, 2, 3) + torch.eye(2, 3, dtype=x.dtype)
        return F.grid_sample(y, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


class ConvLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 2, *x.shape[2:])
        for frame in x.split(1, 1):
            i, f, o, g = self.gates(torch.cat([frame, h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


class CoordConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.size()
        ys = torch.linspace(-1, 1, h, dtype=x.dtype, device=x.device).view(1, 1, h, 1).expand(n, 1, h, w)
        xs = torch.linspace(-1, 1, w, dtype=x.dtype, device=x.device).view(1, 1, 1, w).expand(n, 1, h, w)
        return self.conv(torch.cat([x, ys, xs], dim=1))


class Fixed(nn.Module):
    """Filters that are made in forward, or are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.register_buffer("blur", torch.outer(torch.tensor([1.0, 2.0, 1.0]), torch.tensor([1.0, 2.0, 1.0])) / 16)

    def forward(self, x: Tensor) -> Tensor:
        sobel = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]]).type_as(x)[None, None]
        y = F.conv2d(F.pad(self.conv(x), (1, 1, 1, 1), mode="replicate"), self.blur.expand(2, 1, 3, 3), groups=2)
        return F.conv2d(y, sobel.repeat(2, 1, 1, 1), padding=1, groups=2)


class Dynamic(nn.Module):
    """Each sample has weights of its own, made from the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(2, 3), nn.Parameter(torch.randn(3, 2 * 2 * 9))

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        mix = self.router(x.mean((2, 3))).softmax(1)
        weight = (mix @ self.experts).view(n * 2, c, 3, 3)
        return F.conv2d(x.reshape(1, n * c, h, w), weight, padding=1, groups=n).view(n, 2, h, w)


class Standardised(nn.Conv2d):
    """Weight standardisation."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return self._conv_forward(x, w, self.bias)


class Gram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        f = self.conv(x).flatten(2)
        return f @ f.transpose(1, 2) / f.shape[-1]


class Shuffled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        left, right = self.b(y).chunk(2, dim=1)
        return torch.stack([left, right], 2).flatten(1, 2)


class Losses(nn.Module):
    """Total variation, structural similarity and a prior, inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        tv = (y[..., 1:] - y[..., :-1]).abs().mean() + (y[:, :, 1:] - y[:, :, :-1]).abs().mean()
        mx, my = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
        vx, vy = F.avg_pool2d(x * x, 3, 1) - mx**2, F.avg_pool2d(y * y, 3, 1) - my**2
        cov = F.avg_pool2d(x * y, 3, 1) - mx * my
        ssim = ((2 * mx * my + 0.01) * (2 * cov + 0.03)) / ((mx**2 + my**2 + 0.01) * (vx + vy + 0.03))
        return tv - ssim.mean() + 0.01 * sum(p.square().sum() for p in self.parameters())


class Embedded(nn.Module):
    """Pixels become codes: a table, distances, the nearest, straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.codes = nn.Conv2d(2, 3, 3, padding=1), nn.Embedding(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x).permute(0, 2, 3, 1)
        gap = (z.unsqueeze(-2) - self.codes.weight).square().sum(-1)
        q = self.codes(gap.argmin(-1))
        commit = (q.detach() - z).square().mean() + (q - z.detach()).square().mean()
        return (z + (q - z).detach()).permute(0, 3, 1, 2) * (1 + commit)


class Recursive(nn.Module):
    """One convolution used many times, and a depth that is found by recursion."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor, depth: int = 3) -> Tensor:
        return x if depth == 0 else self.forward(self.conv(x).tanh(), depth - 1) + 0.1 * x


class Unfolded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 2, 1), nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(self.conv(x), 3, padding=1)
        return self.linear(patches.transpose(1, 2)).transpose(1, 2).view(x.shape[0], 4, *x.shape[2:])


class Segmenter(nn.Module):
    """Two classes per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.decoder = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def batches(count: int = 3) -> Iterator[tuple[Tensor, Tensor]]:
    for seed in range(count):
        yield photo(2, 2, 16, 16, seed=seed), (photo(2, 16, 16, seed=seed + 50) > 0).long()


MODELS: dict[str, Callable[[], nn.Module]] = {
    m.__name__: m
    for m in (
        *(Residual, Unet, Dense, SqueezeExcite, ChannelAttention, Cbam, Pyramid, Aspp, SuperResolution, NonLocal),
        *(Windows, Patches, ConvNext, SpatialTransformer, ConvLstm, CoordConv, Fixed, Dynamic, Gram, Shuffled),
        *(Losses, Embedded, Recursive, Unfolded),
    )
} | {"Standardised": lambda: nn.Sequential(Standardised(2, 4, 3), nn.GroupNorm(2, 4), Standardised(4, 2, 3))}
