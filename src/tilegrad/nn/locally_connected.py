"""A convolution that shares no weights: every place of the output has a kernel of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..ops.locally_connected import locally_connected2d
from .by_place import DrawnByPlace


class LocallyConnected2d(DrawnByPlace):
    """`y[n, o, i, j] = sum over c, u, v of weight[o, 0, 0, c, u, v, i, j] * x[n, c, stride * i + u, stride * j + v]`.

    The weight has the dimensions out, 1, 1, in, kernel h, kernel w, output h, output w. It lives on space: on a mesh of
    ranks each owns the box of its outputs, it never moves, and its gradient is never added up.

    input_size: height and width of the image. seed: of the first weights, which depend on nothing else.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        input_size: tuple[int, int],
        *,
        stride: int = 1,
        seed: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        out = tuple((n - k) // stride + 1 for n, k in zip(input_size, kernel, strict=True))
        if min(*out, *kernel, stride) < 1:
            what = f"a kernel of {kernel[0]}x{kernel[1]} does not fit an image of {input_size[0]}x{input_size[1]}"
            raise InputError(what, hint="a smaller kernel, or padding in front of the layer")
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.stride, self.seed, self.output_size = stride, seed, out
        self.fan = in_channels * kernel[0] * kernel[1]
        shape = (out_channels, 1, 1, in_channels, *kernel, *out)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return locally_connected2d(x, self.weight, self.stride)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
