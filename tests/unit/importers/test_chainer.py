"""Chainer dumps: bytes, order, roles and shapes of a U-Net's training step, and small networks that run."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from chainer_files import Net
from torch import Tensor

from tilegrad.bounds import call_of
from tilegrad.importers import load
from tilegrad.ir import Graph, Kind, Node, Phase, Role, TensorType, check_graph, format_graph, parse_graph
from tilegrad.ops import Place, find
from tilegrad.region import Box

UNET = Path(__file__).parents[2] / "data" / "unet_chainer.txt"
RETAINED = (Role.RETAINED_INPUT, Role.RETAINED_OUTPUT)
CROP = "(slice(None, None, None), slice(None, None, None), slice(1, -2, None), slice(None, -3, None))"


@cache
def unet() -> Graph:
    return load(UNET)


def phase(graph: Graph, which: Phase) -> list[Node]:
    return [node for node in graph.nodes if node.phase is which]


def total(graph: Graph, *kinds: Kind) -> int:
    return sum(value.type.bytes for value in graph.of_kind(*kinds))


class TestUNet:
    """Facts found by other means (a simulator and a solver of its own) about the very same file."""

    def test_counts(self) -> None:
        graph = unet()
        assert len(list(graph.of_kind(Kind.PARAMETER, Kind.INPUT, Kind.ACTIVATION))) == 108
        assert (len(graph.nodes), len(phase(graph, Phase.FORWARD)), len(phase(graph, Phase.BACKWARD))) == (120, 60, 60)

    def test_bytes(self) -> None:
        graph = unet()
        assert total(graph, Kind.PARAMETER) == 124401416
        assert total(graph, Kind.INPUT) == 15287296
        assert total(graph, Kind.ACTIVATION) == 11781604356

    def test_every_tensor_has_its_own_bytes(self) -> None:
        rows = [line.split() for line in UNET.read_text().splitlines()[1:109]]
        for id, size, name in rows:
            ours = name[1:] if name[0] == "/" else f"t{id}" if name == "_" else f"input{name}"
            assert unet().type(ours).bytes == int(size)

    def test_what_backward_retains(self) -> None:
        graph = unet()
        read = {i.value for node in graph.nodes for i in node.inputs if i.role in RETAINED}
        kept = [value for value in graph.of_kind(Kind.ACTIVATION) if value.name in read]
        assert (len(kept), sum(value.type.bytes for value in kept)) == (33, 6558696448)
        assert read - {value.name for value in kept} == {"input0", "input1"}

    def test_peak_of_plain_training(self) -> None:
        assert plain_peak(unet()) == (264090128, 7448949264, 2463814160)

    def test_order(self) -> None:
        names = [node.name for node in phase(unet(), Phase.FORWARD)]
        assert names[:7] == [
            "conv_d0a_b", "relu_t60", "conv_d0b_c", "relu_t71", "max_pool2d_t93", "crop_t78", "conv_d1a_b",
        ]  # fmt: skip
        assert [names[at] for at in (8, 15, 22, 30, 38, 45, 52)] == [
            "conv_d1b_c", "relu_t49", "dropout_t25", "upconv_d4c_u3a", "relu_t87", "relu_t64", "relu_t86",
        ]  # fmt: skip
        assert names[16:18] == ["max_pool2d_t0", "crop_t79"]  # slices last, although this one is first in the file
        assert names[-2:] == ["conv_u0d_score", "cross_entropy_loss_t4"]

    def test_backward_is_the_reverse(self) -> None:
        forward, backward = phase(unet(), Phase.FORWARD), phase(unet(), Phase.BACKWARD)
        assert [node.attrs["of"] for node in backward] == [node.name for node in reversed(forward)]
        assert [node.name for node in backward] == [f"{node.name}.backward" for node in reversed(forward)]
        assert [node.op for node in backward] == [f"{node.op}_backward" for node in reversed(forward)]

    @pytest.mark.parametrize(
        ("name", "shape"),
        {
            "input0": (8, 1, 572, 572), "conv_d0a_b/W": (64, 1, 3, 3), "conv_d0a_b/b": (64,), "t73": (8, 64, 570, 570),
            "t93": (8, 64, 284, 284), "t78": (8, 64, 392, 392), "t31": (8, 512, 32, 32), "t48": (8, 1024, 28, 28),
            "upconv_d4c_u3a/W": (1024, 512, 2, 2), "t59": (8, 512, 56, 56), "t91": (8, 192, 392, 392),
            "upconv_u1d_u0a/W": (128, 128, 2, 2), "conv_u0d_score/W": (2, 64, 1, 1), "t103": (8, 2, 388, 388), "t4": (),
        }.items(),
    )  # fmt: skip
    def test_shapes(self, name: str, shape: tuple[int, ...]) -> None:
        assert unet().type(name) == TensorType(shape)

    def test_labels_are_integers(self) -> None:
        assert unet().type("input1") == TensorType((8, 388, 388), "int32")

    def test_operators(self) -> None:
        assert Counter(node.op for node in phase(unet(), Phase.FORWARD)) == {
            "conv2d": 19, "conv_transpose2d": 4, "relu": 22, "max_pool2d": 4, "dropout": 2, "crop": 4, "cat": 4,
            "cross_entropy_loss": 1,
        }  # fmt: skip
        for node in phase(unet(), Phase.FORWARD):
            rule = find(node).reads(call_of(unet(), node))
            assert (rule is None) == (node.op == "cross_entropy_loss")

    def test_forward_nodes(self) -> None:
        conv, crop, up = (unet().node[name] for name in ("conv_d0a_b", "crop_t78", "upconv_u1d_u0a"))
        assert conv.target == "aten.conv2d.default"
        assert [(i.arg, i.value, i.role) for i in conv.inputs] == [
            ("input", "input0", Role.DATA),
            ("weight", "conv_d0a_b/W", Role.PARAMETER),
            ("bias", "conv_d0a_b/b", Role.PARAMETER),
        ]
        assert conv.source.line == "unet_chainer.txt:213"
        assert dict(crop.attrs) == {"start": [0, 0, 88, 88], "stop": [8, 64, 480, 480]}
        assert up.attrs["stride"] == [2, 2] and up.attrs["output_padding"] == [0, 0]
        assert unet().node["max_pool2d_t93"].attrs["ceil_mode"] is True

    def test_backward_nodes(self) -> None:
        first, pool, drop = (unet().node[f"{n}.backward"] for n in ("conv_d0a_b", "max_pool2d_t93", "dropout_t25"))
        assert [(i.value, i.role) for i in first.inputs] == [
            ("t73.grad", Role.GRADIENT), ("input0", Role.RETAINED_INPUT), ("conv_d0a_b/W", Role.PARAMETER),
        ]  # fmt: skip
        assert first.outputs == ("conv_d0a_b/W.grad", "conv_d0a_b/b.grad")  # none for the image
        assert first.source.line == "unet_chainer.txt:653"
        assert [(i.arg, i.value, i.role) for i in pool.inputs] == [
            ("grad.0", "t93.grad", Role.GRADIENT),
            ("self", "t71", Role.RETAINED_INPUT),
            ("result.0", "t93", Role.RETAINED_OUTPUT),
            ("sum.0", "t71.grad.1", Role.SUM),
        ]
        assert [i.value for i in drop.inputs] == ["t25.grad"]  # the dump lists its input too; it is not retained

    def test_gradients_add_up_in_place(self) -> None:
        graph = unet()
        aliases = {value.name: value.alias for value in graph.values if value.alias is not None}
        assert aliases == {f"t{n}.grad": f"t{n}.grad.1" for n in (25, 49, 88, 71)}
        assert graph.producer["t71.grad.1"].name == "crop_t78.backward"
        assert graph.producer["t71.grad"].name == "max_pool2d_t93.backward"

    def test_parameters_gradients_and_outputs(self) -> None:
        graph = unet()
        assert all(value.target == value.name for value in graph.of_kind(Kind.PARAMETER))
        targets = {value.target: value for value in graph.of_kind(Kind.GRADIENT) if value.target}
        assert targets.keys() == {value.name for value in graph.of_kind(Kind.PARAMETER)}
        assert all(graph.type(name) == value.type for name, value in targets.items())
        assert graph.outputs == tuple(f"{value.name}.grad" for value in graph.of_kind(Kind.PARAMETER))
        assert "input0.grad" not in graph.value and "input1.grad" not in graph.value

    def test_text(self, tmp_path: Path) -> None:
        assert parse_graph(format_graph(unet())) == unet()
        path = tmp_path / "anything"
        path.write_text(format_graph(unet()))
        assert load(path) == load(str(path)) == unet()

    def test_legal(self) -> None:
        check_graph(unet())
        assert unet().name == "unet_chainer"


def plain_peak(graph: Graph) -> tuple[int, int, int]:
    """Bytes that are always there, at the peak, and at the largest single node: freed after the last use."""

    def home(name: str) -> str:
        alias = graph.value[name].alias
        return name if alias is None else home(alias)

    always = {value.name for value in graph.of_kind(Kind.PARAMETER, Kind.INPUT)}
    always |= {home(value.name) for value in graph.of_kind(Kind.GRADIENT) if value.target}
    touched = [{home(name) for name in (*node.reads, *node.outputs)} for node in graph.nodes]
    last = {name: at for at, names in enumerate(touched) for name in names}
    live, peak, largest = set(always), 0, 0
    for at, names in enumerate(touched):
        live |= names
        peak = max(peak, sum(graph.type(name).bytes for name in live))
        largest = max(largest, sum(graph.type(name).bytes for name in names | always))
        live -= {name for name in names - always if last[name] == at}
    return sum(graph.type(name).bytes for name in always), peak, largest


class TestNetworks:
    """Networks of which the shapes are known: the importer has only their bytes."""

    def shapes_found(self, net: Net, folder: Path) -> Graph:
        graph = load(net.write(folder))
        for id, (name, shape) in enumerate(zip(net.names, net.shapes, strict=True)):
            assert graph.shape(value_name(id, name)) == shape
        return graph

    def test_classifier(self, tmp_path: Path) -> None:
        net = Net()
        x = net.conv(net.tensor((4, 3, 64, 64), "0"), 16, (7, 7), (2, 2), (3, 3), bias=False)
        x = net.pool(net.relu(net.norm(x)), 3, 2, 0)
        y = net.norm(net.conv(x, 16, pad=(1, 1), bias=False))
        x = net.relu(net.call("_ + _", [net.norm(net.conv(net.relu(y), 16, pad=(1, 1), bias=False)), x], net.shapes[x]))
        x = net.pool(x, 15, 15, 0, False, "AveragePooling2D")
        x = net.linear(net.call("Reshape", [x], (4, 16 * 1 * 1)), 10)
        net.loss(x)
        graph = self.shapes_found(net, tmp_path)
        assert [n.op for n in phase(graph, Phase.FORWARD)].count("add") == 1
        reshape = next(n for n in graph.nodes if "Reshape" in n.target)
        assert (reshape.op, find(reshape).reads(call_of(graph, reshape))) == ("chainer_reshape", None)

    def test_segmentation_without_deconvolution(self, tmp_path: Path) -> None:
        net = Net()
        x = net.relu(net.conv(net.tensor((8, 3, 96, 96), "0"), 32))
        x = net.relu(net.conv(net.pool(x), 64))
        net.loss(net.conv(x, 5, (1, 1)))
        self.shapes_found(net, tmp_path)  # the batch is the only one with which all images are square

    def test_oblong_images_and_kernels(self, tmp_path: Path) -> None:
        net = Net()
        x = net.relu(net.conv(net.tensor((2, 3, 40, 72), "0"), 8))
        x = net.conv(net.conv(x, 16, (1, 7), pad=(0, 3)), 16, (7, 1), pad=(3, 0))
        x = net.deconv(net.pool(x), 8)
        net.loss(net.conv(x, 4, (1, 1)))
        self.shapes_found(net, tmp_path)

    def test_groups_strides_dilation(self, tmp_path: Path) -> None:
        net = Net()
        x = net.conv(net.tensor((2, 4, 33, 33), "0"), 8, (3, 3), (2, 2), (1, 1), groups=2)
        x = net.conv(x, 8, pad=(2, 2), dilation=(2, 2), groups=8)
        x = net.deconv(x, 12, (3, 3), (2, 2), (1, 1), (1, 1), groups=4)
        net.loss(x)
        graph = self.shapes_found(net, tmp_path)
        up = next(n for n in graph.nodes if n.op == "conv_transpose2d")
        assert (up.attrs["output_padding"], up.attrs["groups"]) == ([1, 1], 4)

    def test_slices(self, tmp_path: Path) -> None:
        net = Net()
        x = net.deconv(net.tensor((2, 3, 10, 10), "0"), 6)
        y = net.crop(x, "(Ellipsis, slice(2, 18, None))", (2, 6, 20, 16))
        z = net.crop(x, "(slice(None, None, None), slice(0, 2, 1), slice(None, None, None), slice(-16, None, None))",
                     (2, 2, 20, 16))  # fmt: skip
        net.loss(net.concat(y, z))
        graph = self.shapes_found(net, tmp_path)
        starts = [n.attrs["start"] for n in graph.nodes if n.op == "crop"]
        assert starts == [[0, 0, 0, 2], [0, 0, 0, 4]]

    @pytest.mark.parametrize("seed", range(8))
    def test_random_networks_are_never_wrong(self, seed: int, tmp_path: Path) -> None:
        drawn = random.Random(seed)
        found = Counter[bool]()
        for _ in range(12):
            net = random_net(drawn)
            graph = load(net.write(tmp_path))
            for id, (name, shape) in enumerate(zip(net.names, net.shapes, strict=True)):
                ours = graph.type(value_name(id, name))
                assert ours.shape == shape or (len(ours.shape) == 1 and ours.size == TensorType(shape).size)
                found[ours.shape == shape] += 1
        assert found[True] > 4 * found[False]  # most are found

    def test_what_cannot_be_told_is_flat(self, tmp_path: Path) -> None:
        net = Net()
        x = net.relu(net.conv(net.tensor((6, 3, 20, 30), "0"), 8, pad=(1, 1)))
        net.loss(net.conv(x, 4, (1, 1)))
        graph = load(net.write(tmp_path))
        assert graph.type("input0") == TensorType((6 * 3 * 20 * 30,))
        conv, relu = phase(graph, Phase.FORWARD)[:2]
        assert (conv.op, conv.target) == ("convolution2d_function", "chainer.Convolution2DFunction")
        assert (relu.op, find(relu).reads(call_of(graph, relu)) is not None) == ("relu", True)

    def test_no_squares_among_oblong_images(self, tmp_path: Path) -> None:
        net = Net()
        x = net.tensor((4, 8, 64, 256), "0")
        corner = "(slice(None, None, None), slice(None, None, None), slice(0, 32, None), slice(0, 32, None))"
        net.loss(net.deconv(net.crop(x, corner, (4, 8, 32, 32)), 4, extra=(0, 1)))
        graph = load(net.write(tmp_path))
        assert graph.shape("input0") == (4 * 8 * 64 * 256,)  # not 4 x 8 x 128 x 128
        assert graph.shape("t1") == (4, 8, 32, 32)


def value_name(id: int, name: str) -> str:
    return name[1:] if name[0] == "/" else f"t{id}" if name == "_" else f"input{name}"


def random_net(drawn: random.Random) -> Net:
    net = Net()
    side = drawn.choice([33, 64, 65, 128, 224])
    x = net.conv(net.tensor((drawn.choice([1, 2, 4, 12]), drawn.choice([1, 3]), side, side), "0"), 8)
    for _ in range(drawn.randrange(3, 12)):
        n, c, h, w = net.shapes[x]
        kind = drawn.choice(["conv", "conv", "pool", "up", "skip", "crop", "norm", "relu"])
        if kind == "conv":
            size = drawn.choice([1, 3, 3, 5])
            x = net.conv(x, drawn.choice([8, 24, 32]), (size, size), drawn.choice([(1, 1), (2, 2)]), (size // 2,) * 2)
        elif kind == "pool" and h > 8:
            x = net.pool(x, drawn.choice([2, 3]), 2, 0, drawn.random() < 0.5)
        elif kind == "up" and h < 100:
            x = net.deconv(x, drawn.choice([4, 16]))
        elif kind == "skip":
            x = net.concat(x, net.relu(net.conv(x, 8, pad=(1, 1))))
        elif kind == "crop" and h > 8:
            x = net.crop(x, CROP, (n, c, h - 3, w - 3))
        elif kind == "norm":
            x = net.norm(x)
        else:
            x = net.relu(x)
    net.loss(net.conv(x, 4, (1, 1)))
    return net


class TestGradients:
    def test_a_shared_parameter(self, tmp_path: Path) -> None:
        net = Net()
        x = net.deconv(net.tensor((2, 4, 8, 8), "0"), 4)
        w, b = net.tensor((4, 4, 1, 1), "/shared/W"), net.tensor((4,), "/shared/b")
        attrs = {"sy": 1, "sx": 1, "ph": 0, "pw": 0, "dy": 1, "dx": 1, "groups": 1, "cover_all": False}
        for _ in range(3):
            x = net.call("Convolution2DFunction", [x, w, b], net.shapes[x], keep=[0, 1], **attrs)
        net.loss(x)
        graph = load(net.write(tmp_path))
        assert [n.name for n in phase(graph, Phase.FORWARD)] == [
            "deconv0", "shared", "shared_1", "shared_2", "cross_entropy_loss_t10",
        ]  # fmt: skip
        aliases = {v.name: v.alias for v in graph.values if v.target == "shared/W" and v.kind is Kind.GRADIENT}
        assert aliases == {
            "shared/W.grad.1": None, "shared/W.grad.2": "shared/W.grad.1", "shared/W.grad": "shared/W.grad.2",
        }  # fmt: skip
        sums = [i for i in graph.node["shared_1.backward"].inputs if i.role is Role.SUM]
        assert [(i.arg, i.value) for i in sums] == [("sum.1", "shared/W.grad.1"), ("sum.2", "shared/b.grad.1")]

    def test_a_function_that_reads_a_tensor_twice(self, tmp_path: Path) -> None:
        net = Net()
        x = net.deconv(net.tensor((2, 4, 8, 8), "0"), 4)
        net.loss(net.call("_ + _", [x, x], net.shapes[x]))
        graph = load(net.write(tmp_path))
        assert graph.node["add_t4.backward"].outputs == ("t3.grad",)

    def test_what_no_parameter_reaches_has_no_gradient(self, tmp_path: Path) -> None:
        net = Net()
        x = net.relu(net.tensor((2, 4, 8, 8), "0"))
        net.loss(net.deconv(x, 4))
        graph = load(net.write(tmp_path))
        assert [n.name for n in phase(graph, Phase.BACKWARD)] == ["cross_entropy_loss_t6.backward", "deconv1.backward"]
        assert graph.node["deconv1.backward"].outputs == ("deconv1/W.grad", "deconv1/b.grad")

    def test_the_loss_starts_it(self) -> None:
        """Backward begins with the number one, which is no tensor."""
        assert "t4.grad" not in unet().value
        assert [i.value for i in unet().node["cross_entropy_loss_t4.backward"].inputs] == ["t103", "input1"]


class TestUnknownFunctions:
    def one(self, net: Net, folder: Path) -> Node:
        graph = load(net.write(folder))
        (found,) = (n for n in phase(graph, Phase.FORWARD) if n.target.startswith("chainer."))
        assert find(found).reads(call_of(graph, found)) is None
        assert graph.node[f"{found.name}.backward"].op == f"{found.op}_backward"
        return found

    def image(self) -> tuple[Net, int]:
        net = Net()
        return net, net.deconv(net.tensor((2, 4, 8, 8), "0"), 4)

    @pytest.mark.parametrize(
        ("label", "op"),
        {
            "ROIPooling2D": "roi_pooling2d", "Softmax": "chainer_softmax", "_ * _": "function", "GELU": "chainer_gelu",
            "LocalResponseNormalization": "local_response_normalization",
        }.items(),
    )  # fmt: skip
    def test_name(self, label: str, op: str, tmp_path: Path) -> None:
        net, x = self.image()
        net.call(label, [x], net.shapes[x], keep=[0], strange={"deep": [1, None]})
        found = self.one(net, tmp_path)
        assert (found.op, found.target, dict(found.attrs)) == (op, f"chainer.{label}", {"strange": {"deep": [1, None]}})
        assert found.inputs[0].arg == "inputs.0"

    @pytest.mark.parametrize(
        ("slices", "shape"),
        [
            ("(slice(None, None, None), slice(None, None, 2))", (2, 2, 16, 16)),
            ("(0,)", (4, 16, 16)),
            ("(None, Ellipsis)", (1, 2, 4, 16, 16)),
            ("([0, 1, 1],)", (3, 4, 16, 16)),
            ("__import__('os').getcwd()", (2, 4, 16, 16)),
            ("slice(0, 1, None", (1, 4, 16, 16)),
        ],
    )
    def test_more_than_a_crop(self, slices: str, shape: tuple[int, ...], tmp_path: Path) -> None:
        net, x = self.image()
        net.crop(x, slices, shape)
        assert self.one(net, tmp_path).op == "get_item"

    @pytest.mark.parametrize("attrs", [{"normalize": False}, {"class_weight": [1.0, 2.0]}])
    def test_another_loss(self, attrs: dict[str, object], tmp_path: Path) -> None:
        net, x = self.image()
        net.loss(x, **attrs)
        assert self.one(net, tmp_path).op == "softmax_cross_entropy"

    def test_windows_that_torch_does_not_have(self, tmp_path: Path) -> None:
        net, x = self.image()
        net.conv(x, 4, stride=(2, 2), cover_all=True)
        assert self.one(net, tmp_path).op == "convolution2d_function"
        net, x = self.image()
        net.pool(x, 2, 3, 1)  # 16 + 2 pixels: Chainer adds a window that lies in the padding only
        assert self.one(net, tmp_path).op == "max_pooling2d"

    def test_a_crop_of_something(self, tmp_path: Path) -> None:
        net = Net()
        x = net.relu(net.call("Strange", [net.tensor((4,), "/p/b")], (2, 3, 8, 8)))
        net.relu(net.crop(x, CROP, (2, 3, 5, 5)))
        graph = load(net.write(tmp_path))
        assert [n.op for n in phase(graph, Phase.FORWARD)] == ["strange", "relu", "get_item", "relu"]
        assert graph.shape(f"t{x}") == (2 * 3 * 8 * 8,)

    def test_a_deconvolution_that_ends_early(self, tmp_path: Path) -> None:
        net, x = self.image()
        net.deconv(x, 4, (3, 3), (2, 2), extra=(-1, -1), cover_all=True)
        assert self.one(net, tmp_path).op == "deconvolution2d_function"

    def test_broadcasting(self, tmp_path: Path) -> None:
        net, x = self.image()
        net.call("_ + _", [x, net.tensor((16,), "/row/b")], net.shapes[x])
        assert self.one(net, tmp_path).name == "row"

    def test_tensors_of_another_type(self, tmp_path: Path) -> None:
        net, x = self.image()
        y = net.call("Mask", [x], (1,))
        lines = [f"{y} 7 _" if line.startswith(f"{y} 4 ") else line for line in net.lines()]
        (tmp_path / "net.txt").write_text("\n".join(lines))
        assert load(tmp_path / "net.txt").type(f"t{y}") == TensorType((7,), "uint8")

    def test_several_outputs(self, tmp_path: Path) -> None:
        net, x = self.image()
        a = net.call("SplitAxis", [x], (2, 2, 16, 16))
        net.calls[-1].outputs.append(net.tensor((2, 2, 16, 16)))
        net.calls[-1].attrs["_output_count"] = 2
        net.loss(net.relu(a))
        graph = load(net.write(tmp_path))
        assert graph.node["split_axis_t4"].outputs == ("t4", "t5")
        assert all(name.endswith(".grad") for name in graph.outputs)


class TestRunning:
    """The nodes are the operators they say: run on real tensors, they give what torch gives."""

    def run(self, net: Net, folder: Path) -> tuple[Graph, dict[str, Tensor]]:
        graph = load(net.write(folder))
        made = torch.Generator().manual_seed(0)
        values = {
            value.name: torch.randint(-3, 4, value.type.shape, generator=made).double()
            for value in graph.values
            if not value.kind.computed
        }
        if "input1" in values:
            values["input1"] = values["input1"].long() % 3 - 1
        for node in phase(graph, Phase.FORWARD):
            op, call, out = find(node), call_of(graph, node), Box.full(graph.shape(node.outputs[0]))
            inputs = [values[name] for name in node.reads]
            needs = op.needs(call, out) or tuple(Box.full(t.shape) for t in inputs)
            tiles = [t[box.clip(t.shape).slices] for t, box in zip(inputs, needs, strict=True)]
            values[node.outputs[0]] = op.run(call, tiles, Place(out, needs))
            assert tuple(values[node.outputs[0]].shape) == graph.shape(node.outputs[0])
        return graph, values

    def test_images(self, tmp_path: Path) -> None:
        net = Net()
        x = net.conv(net.tensor((2, 3, 20, 20), "0"), 8, (3, 3), (2, 2), (1, 1))
        y = net.deconv(net.pool(x), 6, (3, 3), (2, 2), (1, 1), (1, 1))
        z = net.crop(x, "(slice(None, None, None), slice(2, 8, None))", (2, 6, 10, 10))
        s = net.concat(y, net.call("Add", [y, z], net.shapes[y]))
        for label, attrs in {"LeakyReLU": {"slope": 0.25}, "ELU": {"alpha": 2.0}, "Tanh": {}, "Sigmoid": {}}.items():
            s = net.relu(s, label, **attrs)
        loss = net.loss(net.pool(net.norm(s), 3, 2, 1, False, "AveragePooling2D"))
        _, v = self.run(net, tmp_path)
        a = F.conv2d(v["input0"], v["conv0/W"], v["conv0/b"], 2, 1)
        b = F.conv_transpose2d(F.max_pool2d(a, 2, 2, ceil_mode=True), v["deconv2/W"], v["deconv2/b"], 2, 1, 1)
        c = torch.cat([b, b + a[:, 2:8]], 1)
        c = F.elu(F.leaky_relu(c, 0.25), 2.0).tanh().sigmoid()
        c = F.batch_norm(c, None, None, v["norm10/gamma"], v["norm10/beta"], True, 0.1, 2e-5)
        expected = F.cross_entropy(F.avg_pool2d(c, 3, 2, 1), v["input1"], ignore_index=-1)
        torch.testing.assert_close(v[f"t{loss}"], expected)  # batch normalisation sums in its own order

    def test_features(self, tmp_path: Path) -> None:
        net = Net()
        y = net.linear(net.relu(net.linear(net.tensor((4, 6), "0"), 5)), 3)
        _, v = self.run(net, tmp_path)
        hidden = F.relu(F.linear(v["input0"], v["fc0/W"], v["fc0/b"]))
        assert torch.equal(v[f"t{y}"], F.linear(hidden, v["fc2/W"], v["fc2/b"]))

    def test_dropout(self, tmp_path: Path) -> None:
        net = Net()
        x = net.deconv(net.tensor((2, 3, 10, 10), "0"), 4)
        y = net.call("Dropout", [x], net.shapes[x], dropout_ratio=0.5)
        _, v = self.run(net, tmp_path)
        ratio = v[f"t{y}"][v[f"t{x}"] != 0] / v[f"t{x}"][v[f"t{x}"] != 0]
        assert set(ratio.tolist()) == {0.0, 2.0}
