"""Samples that reach the operators' names and forms which their own samples leave out. One expression per line."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from tilegrad.ops import Sample

IMAGE = (2, 3, 5, 6)

OF_ONE_IMAGE = """
F.hardshrink(x)
F.softshrink(x)
F.tanhshrink(x)
F.threshold(x, 1, 2)
x.absolute()
x.negative()
x.nan_to_num()
x.isnan()
x.isfinite()
x.isinf()
x.logical_not()
(x.abs() + 1).rsqrt()
x.clip(-1, 2)
x.clamp_min(0).clamp_max(2)
x.float_power(2)
x.masked_fill(x > 1, 3.0)
-x % 3
x.to(torch.float32).to(torch.float64)
x.type_as(x.new_zeros(())) * 1

x.cumprod(1)
x.cumsum(-1)
x.roll(1, 1)
x.roll(2, -1)
x.roll(3)
x.roll((1, 2), (2, 3))
x.flip([1, 2])
F.softmin(x, 1)
F.rms_norm(x.movedim(1, -1), (3,))
F.layer_norm(x, (5, 6))
F.local_response_norm(x, 3)
F.normalize(x, dim=1)

x.prod(1)
x.prod()
(x > 1).any(1)
(x > 4).any()
(x > 1).all(1, keepdim=True)
x.argmax(1)
x.argmin(1)
x.argmax()
x.norm(dim=1)
x.count_nonzero(1)
x.min()
x.min(1).values
x.max(2).values
x.mean()
x.mean((-1, -2))
x.sum(1, keepdim=True)
(x > 1).sum()
(x > 1).sum((2, 3))
(x.float() / 3).sum(dtype=torch.float64)
(x.float() / 3).mean((2, 3), dtype=torch.float64)
x.amin((0, 2, 3))
x.std()
x.var((1, 2, 3), correction=0)

x.swapaxes(1, 3)
x.mT
x.movedim(1, 3)
x.unflatten(1, (3, 1)).flatten(1, 2)
x.view(2, 15, 6) * 2
x.view(6, 5, 6)
x[:, 0, 0].t() * 2
x[:, 0, 0].T * 2
x[..., None].expand(2, 3, 5, 6, 4)

x.tensor_split(3, 1)[1] * 1
x.tensor_split(2, 3)[1] * 1
x.chunk(4, 3)[2] * 1
x.unbind(-1)[-1]
x.select(3, -1)
x[:, :, 1::2].select(1, 2)
x[:, :, -3:-1]
x[1:]
x.index_select(2, torch.tensor([1, 1]))

x + torch.zeros(5, 6) + torch.ones(5, 6)
x + torch.full((5, 6), 2.0)
x * torch.ones_like(x) + torch.zeros_like(x) + torch.full_like(x, 3.0)
x + x.new_zeros((5, 6)) + x.new_full((5, 6), 2.0)
torch.concat([x, x], 1)
torch.concatenate([x, x * 2], 1)

F.pad(x, (1, 1, 0, 0, 2, 1))
F.pad(x, (-1, 2, 1, -2), mode="reflect")
F.pad(x, (-1, 2, 1, -2), mode="replicate")
F.pad(x.unsqueeze(0), (1, 1, 2, 0, 1, 3), mode="replicate")
F.avg_pool2d(x, (5, 6))
F.max_pool2d(x, (5, 6))
F.max_pool2d(x, 2, return_indices=True)[0]
F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
F.avg_pool1d(x.flatten(0, 1), 3, 2, 1, True, False)
F.avg_pool3d(x, 2, divisor_override=5)
F.adaptive_avg_pool2d(x, (7, 3))
F.adaptive_avg_pool2d(x, (None, 2))
F.adaptive_max_pool1d(x.flatten(0, 1), 2)
F.adaptive_max_pool1d(x.flatten(0, 1), 4)
F.adaptive_max_pool3d(x.unsqueeze(1), (3, 3, 3))
F.pixel_unshuffle(x[:, :, :4], 2)
F.unfold(x, 3)
F.dropout2d(x, training=False) + F.alpha_dropout(x) + F.feature_alpha_dropout(x, training=False)
"""

OF_TWO_IMAGES = """
x.divide(y.abs() + 1)
x.true_divide(y.abs() + 1)
x.multiply(y)
x.subtract(y)
x.greater(y)
x.less(y)
x.logical_and(y)
x.logical_or(y)
x.logical_xor(y)
x == y
x != y
x < y
x > y
x <= y
x >= y
(x > 0) & (y > 0)
(x > 0) | (y > 0)
torch.max(x, y)
torch.min(x, y)
torch.maximum(x, y)
torch.lerp(x, y, 0.25)
torch.addcmul(x, x, y, value=2)
torch.dist(x, y)
x + y[0] + y[:, :1] + y[:, :, :1] + y[..., :1]

x.expand_as(y) + y
x.view_as(y) + y
x.reshape_as(y) + y
torch.broadcast_to(x[:, :1], y.shape) * y
torch.slice_scatter(x, y[:, :, :, 1:3], 3, 2, 4)
torch.slice_scatter(x, y[:, 1:2], 1, 1, 2)
torch.gather(x, 1, y.long().abs() % 3)
torch.take_along_dim(x, y.long().abs() % 3, 1)
torch.stack([x, y], 2)
torch.cat([x, y], 0)
x @ y[:1, :1].mT
torch.einsum("nchw,ndhw->ncd", x, y)

F.kl_div(x, y.abs() + 1)
F.kl_div(x, y, reduction="batchmean", log_target=True)
F.soft_margin_loss(x, y.sign())
F.huber_loss(x, y, "sum", 0.5)
F.smooth_l1_loss(x, y, beta=2.0)
F.cosine_similarity(x, y)
F.binary_cross_entropy_with_logits(x, y.sigmoid(), y.abs(), pos_weight=y.abs()[0, :, :1, :1])
F.instance_norm(x, None, None, y[0, :, 0, 0])
F.batch_norm(x, None, None, training=True) + y
"""

OTHERS = {  # expression of a, b, c: their shapes
    "F.conv2d(a, b, stride=2, padding=4)": ((1, 1, 4, 3), (1, 1, 3, 2)),  # windows wholly in the padding
    "F.conv1d(a, b, padding=5, dilation=3)": ((1, 1, 4), (1, 1, 3)),
    "F.conv2d(a, b, padding=1)": ((3, 9, 7), (4, 3, 3, 3)),  # no batch
    "F.conv_transpose2d(a, b, c, 3, 1, 2, 1, 2)": ((1, 2, 5, 6), (2, 3, 3, 3), (3,)),
    "F.conv_transpose2d(a, b, c, 5, 2, (1, 4))": ((1, 2, 5, 6), (2, 3, 3, 3), (3,)),
    "F.conv_transpose2d(a, b, stride=2)": ((2, 5, 4), (2, 1, 2, 2)),
    "F.pad(a, (7, 9))": ((1, 2, 3),),
    "F.max_pool2d(a, 3, 2, 1)": ((2, 9, 7),),
    "F.interpolate(a, size=9, mode='nearest')": ((1, 2, 7),),
    "F.interpolate(a, size=9, mode='nearest-exact')": ((1, 2, 7),),
    "F.interpolate(a, size=(5, 4, 7), mode='nearest')": ((1, 2, 3, 4, 5),),
    "F.interpolate(a, size=(5, 4, 7), mode='nearest-exact')": ((1, 2, 3, 4, 5),),
    "F.interpolate(a, scale_factor=1.05, mode='nearest')": ((1, 2, 9, 5),),  # a scale that changes nothing
    "F.interpolate(a, scale_factor=1.05, mode='nearest-exact')": ((1, 2, 9, 5),),
    "F.interpolate(a, scale_factor=1.05, mode='bilinear')": ((1, 2, 9, 5),),
    "F.interpolate(a, size=(9, 8), mode='bilinear')": ((1, 2, 9, 5),),  # one axis stays
    "F.interpolate(a, size=(9, 8), mode='bicubic')": ((1, 2, 9, 5),),
    "F.interpolate(a, size=(41, 100), mode='nearest')": ((1, 1, 32, 36),),  # past 128 torch takes another kernel
    "F.interpolate(a, size=(41, 100), mode='nearest-exact')": ((1, 1, 32, 36),),
}

OF_CLASSES = """
F.cross_entropy(a, b, c.abs() + 1, label_smoothing=0.2)
F.cross_entropy(a, b, c.abs() + 1, ignore_index=2)
F.cross_entropy(a, b, c.abs() + 1, reduction="sum")
F.cross_entropy(a, b, ignore_index=2, label_smoothing=0.2)
"""


def samples() -> Iterator[tuple[str, Sample]]:
    for text, names, shapes in (
        *((line, "x", (IMAGE,)) for line in OF_ONE_IMAGE.split("\n")),
        *((line, "x, y", (IMAGE, IMAGE)) for line in OF_TWO_IMAGES.split("\n")),
        *((line, "a, b, c"[: 3 * len(shapes) - 2], shapes) for line, shapes in OTHERS.items()),
    ):
        if text:
            yield text, Sample(eval(f"lambda {names}: {text}", {"torch": torch, "F": F}), shapes)
    for text in filter(None, OF_CLASSES.split("\n")):
        function = eval(f"lambda a, b, c: {text}", {"F": F})
        yield text, Sample(function, ((2, 4, 5, 6), (2, 5, 6), (4,)), "", (1,), 4)
