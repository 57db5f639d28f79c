"""Small Chainer dumps for tests: a network is written function by function, with the shapes that it really has."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

Shape = tuple[int, ...]


@dataclass
class Call:
    label: str
    inputs: list[int]
    outputs: list[int]
    attrs: dict[str, Any]


@dataclass
class Net:
    """Tensors and functions as Chainer would dump them; `shapes` is what the importer has to find out."""

    shapes: list[Shape] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def tensor(self, shape: Shape, name: str = "_") -> int:
        self.shapes.append(shape)
        self.names.append(name)
        return len(self.shapes) - 1

    def call(
        self,
        label: str,
        inputs: list[int],
        shape: Shape,
        keep: list[int] | None = None,
        keep_out: list[int] | None = None,
        **attrs: Any,
    ) -> int:
        ranks = [call.attrs["rank"] for call in self.calls if set(call.outputs) & set(inputs)]
        attrs |= {"_input_indexes_to_retain": keep, "_output_indexes_to_retain": keep_out, "_output_count": 1}
        attrs |= {"rank": max(ranks, default=-1) + 1, "lazy_grad_sum": False}
        self.calls.append(Call(label, inputs, [self.tensor(shape)], attrs))
        return self.calls[-1].outputs[0]

    def relu(self, x: int, label: str = "ReLU", **attrs: Any) -> int:
        return self.call(label, [x], self.shapes[x], keep_out=[0], **attrs)

    def conv(
        self,
        x: int,
        channels: int,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int] = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        bias: bool = True,
        cover_all: bool = False,
        name: str | None = None,
    ) -> int:
        n, c, *image = self.shapes[x]
        name = name or f"/conv{len(self.calls)}"
        inputs = [x, self.tensor((channels, c // groups, *kernel), f"{name}/W")]
        inputs += [self.tensor((channels,), f"{name}/b")] if bias else []
        sizes = [
            (a + 2 * p - d * (k - 1) - 1 + (s - 1 if cover_all else 0)) // s + 1
            for a, k, s, p, d in zip(image, kernel, stride, pad, dilation, strict=True)
        ]
        attrs = window(stride, pad) | {"dy": dilation[0], "dx": dilation[1], "groups": groups, "cover_all": cover_all}
        return self.call("Convolution2DFunction", inputs, (n, channels, *sizes), keep=[0, 1], **attrs)

    def deconv(
        self,
        x: int,
        channels: int,
        kernel: tuple[int, int] = (2, 2),
        stride: tuple[int, int] = (2, 2),
        pad: tuple[int, int] = (0, 0),
        extra: tuple[int, int] = (0, 0),
        groups: int = 1,
        cover_all: bool = False,
    ) -> int:
        n, c, *image = self.shapes[x]
        name = f"/deconv{len(self.calls)}"
        inputs = [x, self.tensor((c, channels // groups, *kernel), f"{name}/W"), self.tensor((channels,), f"{name}/b")]
        h, w = ((a - 1) * s + k - 2 * p + e for a, k, s, p, e in zip(image, kernel, stride, pad, extra, strict=True))
        attrs = window(stride, pad) | {"outh": h, "outw": w, "dy": 1, "dx": 1}
        attrs |= {"groups": groups, "cover_all": cover_all}
        return self.call("Deconvolution2DFunction", inputs, (n, channels, h, w), keep=[0, 1], **attrs)

    def pool(
        self,
        x: int,
        kernel: int = 2,
        stride: int = 2,
        pad: int = 0,
        cover_all: bool = True,
        label: str = "MaxPooling2D",
    ) -> int:
        n, c, *image = self.shapes[x]
        more = stride - 1 if cover_all else 0
        sizes = [(a + 2 * pad - kernel + more) // stride + 1 for a in image]
        attrs = window((stride, stride), (pad, pad)) | {"kh": kernel, "kw": kernel, "cover_all": cover_all}
        return self.call(label, [x], (n, c, *sizes), keep=[0], keep_out=[0], **attrs)

    def crop(self, x: int, slices: str, shape: Shape) -> int:
        return self.call("GetItem", [x], shape, slices=slices)

    def concat(self, *parts: int, axis: int = 1) -> int:
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        return self.call("Concat", list(parts), tuple(shape), axis=axis)

    def norm(self, x: int) -> int:
        c = self.shapes[x][1]
        inputs = [
            x,
            self.tensor((c,), f"/norm{len(self.calls)}/gamma"),
            self.tensor((c,), f"/norm{len(self.calls)}/beta"),
        ]
        return self.call("BatchNormalization", inputs, self.shapes[x], keep=[0, 1], eps=2e-5, decay=0.9, axis=None)

    def linear(self, x: int, features: int) -> int:
        n, c = self.shapes[x]
        w = self.tensor((features, c), f"/fc{len(self.calls)}/W")
        b = self.tensor((features,), f"/fc{len(self.calls)}/b")
        return self.call("LinearFunction", [x, w, b], (n, features), keep=[0, 1])

    def loss(self, x: int, **attrs: Any) -> int:
        n, _, *image = self.shapes[x]
        labels = self.tensor((n, *image), "1")
        attrs = {"normalize": True, "class_weight": None, "ignore_label": -1, "reduce": "mean"} | attrs
        return self.call("SoftmaxCrossEntropy", [x, labels], (), keep=[0, 1], **attrs)

    def lines(self) -> list[str]:
        lines = [f"{len(self.shapes)} {2 * len(self.calls)}"]
        lines += [f"{k} {4 * prod(s)} {n}" for k, (s, n) in enumerate(zip(self.shapes, self.names, strict=True))]
        for call in self.calls:
            lines += ["forward", f"{len(call.inputs)} {len(call.outputs)}", *(f"{i} _" for i in call.inputs)]
            lines += [*map(str, call.outputs), call.label, json.dumps(call.attrs)]
        for call in self.calls:
            reads = [f"{i} gradient" for i in call.outputs] + [f"{i} input" for i in call.inputs]
            lines += ["backward", f"{len(reads)} {len(call.inputs)}", *reads, *map(str, call.inputs)]
            lines += [call.label, json.dumps(call.attrs)]
        return lines

    def write(self, folder: Path, name: str = "net.txt") -> Path:
        path = folder / name
        path.write_text("\n".join(self.lines()) + "\n")
        return path


def window(stride: tuple[int, int], pad: tuple[int, int]) -> dict[str, int]:
    return {"sy": stride[0], "sx": stride[1], "ph": pad[0], "pw": pad[1]}
