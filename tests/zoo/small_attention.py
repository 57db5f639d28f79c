"""Small networks with attention: Swin, MobileViT, ViT."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from small_layers import Classifier, DropPath, conv_norm
from torch import Tensor, nn

# Swin: windows that are padded, rolled and cut; a mask that is made in forward, slice by slice


def window_partition(x: Tensor, window: int) -> Tensor:
    n, h, w, c = x.shape
    x = x.view(n, h // window, window, w // window, window, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window, window, c)


def window_reverse(windows: Tensor, window: int, h: int, w: int) -> Tensor:
    n = int(windows.shape[0] / (h * w / window / window))
    x = windows.view(n, h // window, w // window, window, window, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(n, h, w, -1)


def attention_mask(h: int, w: int, window: int, shift: int, device: torch.device) -> Tensor:
    img_mask = torch.zeros((1, h, w, 1), device=device)
    slices = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    cnt = 0
    for rows in slices:
        for cols in slices:
            img_mask[:, rows, cols, :] = cnt
            cnt += 1
    mask_windows = window_partition(img_mask, window).view(-1, window * window)
    attn_mask = mask_windows.unsqueeze(1) - mask_windows.unsqueeze(2)
    return attn_mask.masked_fill(attn_mask != 0, -100.0).masked_fill(attn_mask == 0, 0.0)


class WindowAttention(nn.Module):
    relative_position_index: Tensor

    def __init__(self, dim: int, window: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.scale = (dim // heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.2)
        coords = torch.stack(torch.meshgrid([torch.arange(window)] * 2, indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous() + window - 1
        relative[:, :, 0] *= 2 * window - 1
        self.register_buffer("relative_position_index", relative.sum(-1))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(n, n, -1)
        attn = attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        if mask is not None:
            windows = mask.shape[0]
            attn = attn.view(b // windows, windows, self.heads, n, n) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.heads, n, n)
        attn = self.attn_drop(attn.softmax(dim=-1))
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class SwinBlock(nn.Module):
    def __init__(self, dim: int, shift: int, drop: float, window: int = 4) -> None:
        super().__init__()
        self.shift, self.window = shift, window
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window, 2, drop)
        self.drop_path = DropPath(drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(drop), nn.Linear(2 * dim, dim))

    def attend(self, x: Tensor) -> Tensor:
        _, h, w, c = x.shape
        window, shift = self.window, self.shift
        x = F.pad(x, (0, 0, 0, (window - w % window) % window, 0, (window - h % window) % window))
        _, padded_h, padded_w, _ = x.shape
        mask = None
        if shift > 0:
            x = torch.roll(x, shifts=(-shift, -shift), dims=(1, 2))
            mask = attention_mask(padded_h, padded_w, window, shift, x.device)
        windows = window_partition(x, window).view(-1, window * window, c)
        windows = self.attn(windows, mask).view(-1, window, window, c)
        x = window_reverse(windows, window, padded_h, padded_w)
        if shift > 0:
            x = torch.roll(x, shifts=(shift, shift), dims=(1, 2))
        return x[:, :h, :w, :].contiguous()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attend(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchMerging(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        _, h, w, _ = x.shape
        x = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
        parts = [x[:, 0::2, 0::2, :], x[:, 1::2, 0::2, :], x[:, 0::2, 1::2, :], x[:, 1::2, 1::2, :]]
        return self.reduction(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 8, 2, 2)
        self.layers = nn.Sequential(
            SwinBlock(8, 0, 0.0), SwinBlock(8, 2, 0.1), PatchMerging(8), SwinBlock(16, 0, 0.1), SwinBlock(16, 2, 0.2)
        )
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.patch_embed(x).permute(0, 2, 3, 1))
        return self.head(self.norm(x).mean(dim=(1, 2)))


# Attention over tokens: MobileViT's patches and ViT's


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop_rate = heads, drop
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop_rate if self.training else 0.0)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class TransformerBlock(nn.Module):
    def __init__(self, dim: int, drop: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, 2, drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Dropout(drop), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class MobileVitBlock(nn.Module):
    """Pixels at the same place of all patches attend to each other. Images that patches do not divide are resized."""

    def __init__(self, channels: int, dim: int, drop: float, patch: int = 2) -> None:
        super().__init__()
        self.patch = patch
        self.conv_kxk = conv_norm(channels, channels)
        self.conv_1x1 = nn.Conv2d(channels, dim, 1, bias=False)
        self.transformer = nn.Sequential(TransformerBlock(dim, drop), TransformerBlock(dim, drop))
        self.norm = nn.LayerNorm(dim)
        self.conv_proj = conv_norm(dim, channels, 1)
        self.conv_fusion = conv_norm(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.conv_1x1(self.conv_kxk(x))
        patch = self.patch
        b, c, h, w = x.shape
        new_h, new_w = math.ceil(h / patch) * patch, math.ceil(w / patch) * patch
        num_h, num_w = new_h // patch, new_w // patch
        num_patches, area = num_h * num_w, patch * patch
        interpolate = False
        if new_h != h or new_w != w:
            x = F.interpolate(x, size=(new_h, new_w), mode="bilinear", align_corners=False)
            interpolate = True
        x = x.reshape(b * c * num_h, patch, num_w, patch).transpose(1, 2)
        x = x.reshape(b, c, num_patches, area).transpose(1, 3).reshape(b * area, num_patches, -1)
        x = self.norm(self.transformer(x))
        x = x.contiguous().view(b, area, num_patches, -1)
        x = x.transpose(1, 3).reshape(b * c * num_h, num_w, patch, patch)
        x = x.transpose(1, 2).reshape(b, c, num_h * patch, num_w * patch)
        if interpolate:
            x = F.interpolate(x, size=(h, w), mode="bilinear", align_corners=False)
        x = self.conv_proj(x)
        return self.conv_fusion(torch.cat((shortcut, x), dim=1))


def mobilevit() -> nn.Module:
    return Classifier(nn.Sequential(conv_norm(3, 8, 3, 2), conv_norm(8, 8, 3, 2), MobileVitBlock(8, 12, 0.1)), 8, 0.1)


class EncoderBlock(nn.Module):
    def __init__(self, dim: int, drop: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(dim, 3, dropout=drop, batch_first=True)
        self.dropout = nn.Dropout(drop)
        self.ln_2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 24), nn.GELU(), nn.Dropout(drop), nn.Linear(24, dim), nn.Dropout(drop))

    def forward(self, input: Tensor) -> Tensor:
        torch._assert(input.dim() == 3, f"expected (batch, tokens, channels), got {input.shape}")
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.dropout(x)
        x = x + input
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    def __init__(self, size: tuple[int, int] = (40, 48), patch: int = 8, dim: int = 12, drop: float = 0.1) -> None:
        super().__init__()
        self.size, self.patch = size, patch
        self.conv_proj = nn.Conv2d(3, dim, patch, patch)
        tokens = (size[0] // patch) * (size[1] // patch) + 1
        self.class_token = nn.Parameter(torch.randn(1, 1, dim) * 0.1)
        self.pos_embedding = nn.Parameter(torch.randn(1, tokens, dim) * 0.1)
        self.dropout = nn.Dropout(drop)
        self.layers = nn.Sequential(EncoderBlock(dim, drop), EncoderBlock(dim, drop))
        self.ln = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, 5)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        torch._assert((h, w) == self.size, "wrong image size")
        x = self.conv_proj(x)
        x = x.reshape(n, -1, (h // self.patch) * (w // self.patch)).permute(0, 2, 1)
        batch_class_token = self.class_token.expand(n, -1, -1)
        x = torch.cat([batch_class_token, x], dim=1)
        x = self.ln(self.layers(self.dropout(x + self.pos_embedding)))
        return self.head(x[:, 0])
