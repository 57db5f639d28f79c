"""The reference networks: published parameter counts, shapes at awkward sizes, capture, gradients, loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tilegrad.models import (
    NETWORKS,
    SegmentationLoss,
    convnext_tiny,
    darknet19,
    deeplab,
    densenet121,
    efficientnet_b0,
    example_shape,
    mobilenet_v2,
    resnet50,
    unet,
    unet3d,
    vgg16,
    vgg16_bn,
    wavenet1d,
)
from tilegrad.models.convnext import ConvNeXtBlock
from tilegrad.models.densenet import DenseBlock
from tilegrad.models.efficientnet import MBConv, SqueezeExcite
from tilegrad.models.layers import DropPath, scaled
from tilegrad.models.mobilenet import InvertedResidual
from tilegrad.models.resnet import BasicBlock, Bottleneck
from tilegrad.models.unet import center_crop, pad_end

NAMES = sorted(NETWORKS)
IMAGE_CLASSIFIERS = (
    "vgg16",
    "vgg16_bn",
    "darknet19",
    "resnet18",
    "resnet34",
    "resnet50",
    "densenet121",
    "convnext_tiny",
    "mobilenet_v2",
    "efficientnet_b0",
)
CLASSES = 5

# Keyword arguments of a small version of each network, an odd input size, the output's spatial sizes.
SMALL: dict[str, tuple[dict[str, Any], int, tuple[int, ...]]] = {
    **{name: ({"width": 1 / 16}, 65, ()) for name in IMAGE_CLASSIFIERS},
    "unet": ({"width": 1 / 16, "depth": 3}, 21, (21, 21)),
    "unet_valid": ({"base": 4, "depth": 2}, 47, (4, 4)),
    "deeplab": ({"width": 1 / 16}, 37, (37, 37)),
    "unet3d": ({"width": 1 / 8, "padding": "same"}, 19, (19, 19, 19)),
    "wavenet1d": ({"width": 1 / 16, "layers": 3, "stacks": 2}, 37, (37,)),
}


@pytest.fixture(autouse=True)
def _one_seeded_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def small(name: str, **overrides: Any) -> nn.Module:
    return NETWORKS[name](**{"classes": CLASSES, **SMALL[name][0], **overrides})


def small_input(name: str, batch: int = 1) -> Tensor:
    return torch.randn(batch, *example_shape(name, SMALL[name][1])[1:])


def count(factory: Callable[..., nn.Module], **arguments: Any) -> int:
    with torch.device("meta"):
        net = factory(**arguments)
    return sum(parameter.numel() for parameter in net.parameters())


def exported_targets(net: nn.Module, x: Tensor) -> list[str]:
    return [str(node.target) for node in torch.export.export(net, (x,)).graph.nodes]


# Parameter counts


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vgg16", 138_357_544),
        ("vgg16_bn", 138_365_992),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("densenet121", 7_978_856),
        ("convnext_tiny", 28_589_128),
        ("mobilenet_v2", 3_504_872),
        ("efficientnet_b0", 5_288_548),
    ],
)
def test_published_parameter_count(name: str, expected: int) -> None:
    assert count(NETWORKS[name]) == expected


def conv_size(inputs: int, outputs: int, taps: int) -> int:
    return outputs * (inputs * taps + 1)


def unet_size(inputs: int, base: int, depth: int, classes: int) -> int:
    """Every convolution with a bias, as figure 1 of the paper draws them."""
    total = conv_size(inputs, base, 9) + conv_size(base, base, 9) + conv_size(base, classes, 1)
    for level in range(depth):
        c = base * 2**level
        total += conv_size(c, 2 * c, 9) + conv_size(2 * c, 2 * c, 9)  # down
        total += conv_size(2 * c, c, 4) + conv_size(2 * c, c, 9) + conv_size(c, c, 9)  # up, join, refine
    return total


@pytest.mark.parametrize("name", ["unet", "unet_valid"])
def test_unet_parameter_count(name: str) -> None:
    assert unet_size(1, 64, 4, 2) == 31_030_658
    assert count(NETWORKS[name]) == 31_030_658
    assert count(NETWORKS[name], base=6, depth=2, in_channels=3, classes=7) == unet_size(3, 6, 2, 7)


def test_unet_norm_replaces_biases() -> None:
    convolved = sum(2 * 64 * 2**level for level in range(5)) + sum(2 * 64 * 2**level for level in range(4))
    for norm in ("batch", "group"):
        assert count(unet, norm=norm) == 31_030_658 + convolved  # two numbers a channel in place of one


def test_unet_bilinear_has_no_transposed_taps() -> None:
    taps = sum((4 - 1) * 2 * c * c for c in (64, 128, 256, 512))
    assert count(unet, up="bilinear") == 31_030_658 - taps


def test_unet3d_parameter_count() -> None:
    assert count(unet3d, norm=None) == 19_069_955  # the paper's number
    outputs = (32 + 64) + (64 + 128) + (128 + 256) + (256 + 512) + 2 * (256 + 128 + 64)
    assert count(unet3d) == 19_069_955 + outputs  # batch norm's scales


def test_darknet19_parameter_count() -> None:
    channels = [3, 32, 64, 128, 64, 128, 256, 128, 256, 512, 256, 512, 256, 512, 1024, 512, 1024, 512, 1024]
    kernels = [3, 3, 3, 1, 3, 3, 1, 3, 3, 1, 3, 1, 3, 3, 1, 3, 1, 3]
    steps = zip(channels, channels[1:], kernels, strict=False)
    features = sum(inputs * outputs * kernel**2 + 2 * outputs for inputs, outputs, kernel in steps)
    assert len(kernels) == 18  # and the classifier makes nineteen
    assert count(NETWORKS["darknet19"]) == features + conv_size(1024, 1000, 1)


def test_deeplab_parameter_count() -> None:
    def normed(inputs: int, outputs: int, taps: int) -> int:
        return inputs * outputs * taps + 2 * outputs

    backbone = normed(3, 64, 49) + 4 * normed(64, 64, 9)
    for c in (128, 256, 512):
        backbone += normed(c // 2, c, 9) + 3 * normed(c, c, 9) + normed(c // 2, c, 1)
    pyramid = normed(512, 256, 1) + 3 * normed(512, 256, 9) + conv_size(512, 256, 1)
    assert count(deeplab) == backbone + pyramid + normed(5 * 256, 256, 1) + conv_size(256, 21, 1)


def test_wavenet1d_parameter_count() -> None:
    layers = 30 * (conv_size(64, 128, 2) + conv_size(64, 256, 1)) + 29 * conv_size(64, 64, 1)
    head = conv_size(256, 256, 1) + conv_size(256, 256, 1)
    assert count(wavenet1d) == conv_size(1, 64, 2) + layers + head


def test_width_scales_every_network() -> None:
    for name in NAMES:
        assert 0 < count(NETWORKS[name], width=0.25) < 0.5 * count(NETWORKS[name]) < count(NETWORKS[name], width=2)


def test_scaled_rounds_without_losing_a_tenth() -> None:
    assert scaled(7, 1.0) == 7  # published counts are untouched
    assert scaled(64, 0.25) == 16
    assert scaled(64, 0.001) == 4
    assert scaled(24, 0.45, 8) == 16  # 10.8: 8 would lose more than a tenth
    assert scaled(32, 1.4, 8) == 48
    for width in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="width"):
            scaled(64, width)


# Structure that a parameter count cannot see


def test_resnet50_strides_in_its_3x3() -> None:
    with torch.device("meta"):
        blocks = [m for m in resnet50().modules() if isinstance(m, Bottleneck)]
    convs = [[m for m in block.branch if isinstance(m, nn.Conv2d)] for block in blocks]
    assert [conv.stride[0] for first, middle, last in convs for conv in (first, last)] == [1] * 32
    assert [middle.stride[0] for _, middle, _ in convs] == [1] * 3 + [2, 1, 1, 1] + [2] + [1] * 5 + [2, 1, 1]


def test_mobilenet_residuals_and_last_convolution() -> None:
    with torch.device("meta"):
        net, narrow = mobilenet_v2(), mobilenet_v2(width=0.25)
    blocks = [m for m in net.modules() if isinstance(m, InvertedResidual)]
    assert (len(blocks), sum(block.residual for block in blocks)) == (17, 10)
    assert isinstance(narrow.classifier[1], nn.Linear)
    assert narrow.classifier[1].in_features == 1280


def test_vgg16_bn_norms_every_convolution() -> None:
    with torch.device("meta"):
        plain, normed = vgg16().features, vgg16_bn().features
    kinds = [type(m) for m in normed]
    assert kinds.count(nn.BatchNorm2d) == 13
    assert all(kinds[at + 1] is nn.BatchNorm2d for at, kind in enumerate(kinds) if kind is nn.Conv2d)
    assert [kind for kind in kinds if kind is not nn.BatchNorm2d] == [type(m) for m in plain]


def test_densenet_layers_read_all_maps_before_them() -> None:
    with torch.device("meta"):
        blocks = [m for m in densenet121().modules() if isinstance(m, DenseBlock)]
    inputs = [[layer[2].in_channels for layer in block.layers] for block in blocks]  # type: ignore[index]
    starts = (64, 128, 256, 512)
    assert inputs == [[c + 32 * k for k in range(n)] for c, n in zip(starts, (6, 12, 24, 16), strict=True)]
    block, x = DenseBlock(6, 2, 3).eval(), torch.randn(1, 6, 5, 7)
    out = block(x)
    assert out.shape == (1, 6 + 3 * 2, 5, 7)
    assert torch.equal(out[:, :6], x)
    torch.testing.assert_close(out[:, 8:10], block.layers[1](out[:, :8]))


def test_efficientnet_blocks_kernels_and_gates() -> None:
    with torch.device("meta"):
        blocks = [m for m in efficientnet_b0().modules() if isinstance(m, MBConv)]
    assert (len(blocks), sum(block.residual for block in blocks)) == (16, 9)
    depthwise = [m for block in blocks for m in block.modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    assert [m.kernel_size[0] for m in depthwise] == [3] * 3 + [5] * 2 + [3] * 3 + [5] * 7 + [3]
    assert [m.stride[0] for m in depthwise] == [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    gates = [m.gate for block in blocks for m in block.modules() if isinstance(m, SqueezeExcite)]
    squeezed = [gate[1].out_channels for gate in gates]  # type: ignore[union-attr, index]
    assert squeezed == [8, 4, 6, 6, 10, 10, 20, 20, 20, 28, 28, 28, 48, 48, 48, 48]  # a quarter of a block's input


def test_darknet19_leaks_a_tenth_and_pools_five_times() -> None:
    with torch.device("meta"):
        modules = list(NETWORKS["darknet19"]().modules())
    assert [m.negative_slope for m in modules if isinstance(m, nn.LeakyReLU)] == [0.1] * 18
    assert sum(isinstance(m, nn.MaxPool2d) for m in modules) == 5


@pytest.mark.parametrize(("output_stride", "side"), [(8, 9), (16, 5)])
def test_deeplab_keeps_its_resolution(output_stride: int, side: int) -> None:
    with torch.device("meta"):
        net = deeplab(width=1 / 16, output_stride=output_stride)  # type: ignore[arg-type]
        assert net.backbone(torch.empty(1, 3, 65, 65)).shape == (1, 32, side, side)
    dilations = {m.dilation[0] for m in net.backbone.modules() if isinstance(m, nn.Conv2d)}
    assert dilations == ({1, 2, 4} if output_stride == 8 else {1, 2})


def test_wavenet1d_sees_its_receptive_field_and_no_future() -> None:
    net = wavenet1d(classes=CLASSES, width=1 / 16, layers=3, stacks=2, kernel=3)
    assert net.receptive_field == 1 + 2 * (1 + 2 * (1 + 2 + 4))
    net = net.double().eval()
    x = torch.randn(1, 1, 50, dtype=torch.float64)
    moved = x.clone()
    moved[..., 10] += 1.0
    changed = (net(x) != net(moved)).any(dim=1)[0].nonzero().flatten()
    assert changed[0] == 10
    assert changed[-1] == 10 + net.receptive_field - 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: BasicBlock(8, 8),
        lambda: Bottleneck(8, 2),
        lambda: InvertedResidual(8, 8, 1, 6),
        lambda: MBConv(8, 8, 5, 1, 6),
        lambda: ConvNeXtBlock(8),
    ],
)
def test_residual_blocks_add_their_input(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)  # of a few channels all may be dead behind their ReLU
    block = make()
    x = torch.rand(1, 8, 5, 5) + 0.1  # positive: a last ReLU keeps it
    assert not torch.equal(block.eval()(x), x)
    for name, parameter in block.named_parameters():
        if name.startswith(("branch", "scale")):
            nn.init.zeros_(parameter)
    assert torch.equal(block(x), x)


def test_classifiers_read_the_mean_of_their_features() -> None:
    x = torch.randn(1, 3, 97, 65)
    next_net = convnext_tiny(CLASSES, width=1 / 16).eval()
    expected = next_net.classifier(next_net.norm(next_net.features(x).mean((2, 3))))
    torch.testing.assert_close(next_net(x), expected)
    dark = darknet19(CLASSES, width=1 / 16).eval()
    weight = dark.classifier.weight.flatten(1)
    torch.testing.assert_close(dark(x), dark.features(x).mean((2, 3)) @ weight.T + dark.classifier.bias)


# Stochastic depth


def test_stochastic_depth_grows_linearly() -> None:
    def rates(net: nn.Module) -> list[float]:
        return [m.p for m in net.modules() if isinstance(m, DropPath)]

    with torch.device("meta"):
        assert rates(efficientnet_b0()) == pytest.approx([0.2 * block / 16 for block in range(16)])
        assert rates(efficientnet_b0(drop_path_rate=0)) == [0] * 16
        assert rates(convnext_tiny(drop_path_rate=0.1)) == pytest.approx([0.1 * block / 17 for block in range(18)])
        assert rates(convnext_tiny()) == [0] * 18


def test_drop_path_drops_samples() -> None:
    x = torch.randn(4000, 2, 3, 1)
    layer = DropPath(0.25)
    out = layer(x)
    kept = out.flatten(1).any(dim=1)
    torch.testing.assert_close(out[kept], x[kept] / 0.75)
    assert not out[~kept].any()
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.03)
    assert DropPath(0.0)(x) is x
    assert layer.eval()(x) is x


@pytest.mark.parametrize("name", ["convnext_tiny", "efficientnet_b0"])
def test_stochastic_depth_is_off_in_evaluation(name: str) -> None:
    net = small(name, drop_path_rate=0.9)
    x = small_input(name, batch=2)
    torch.manual_seed(1)
    first = net(x)
    torch.manual_seed(1)
    assert torch.equal(net(x), first)
    assert not torch.equal(net(x), first)
    net.eval()
    assert torch.equal(net(x), net(x))


# Shapes


@pytest.mark.parametrize("name", NAMES)
def test_output_shape_at_an_odd_size(name: str) -> None:
    _, _, spatial = SMALL[name]
    assert small(name).eval()(small_input(name)).shape == (1, CLASSES, *spatial)


@pytest.mark.parametrize("name", NAMES)
def test_every_network_takes_in_channels(name: str) -> None:
    batch, _, *spatial = example_shape(name, SMALL[name][1])
    with torch.device("meta"):
        net = small(name, in_channels=2).eval()
        assert net(torch.empty(batch, 2, *spatial)).shape[:2] == (1, CLASSES)


def test_unet_valid_is_the_figure() -> None:
    with torch.device("meta"):
        assert NETWORKS["unet_valid"]()(torch.empty(1, 1, 572, 572)).shape == (1, 2, 388, 388)


def test_unet3d_valid_is_the_figure() -> None:
    with torch.device("meta"):
        net = unet3d()
        assert net(torch.empty(1, 3, 132, 132, 116)).shape == (1, 3, 44, 44, 28)
        assert net(torch.empty(example_shape("unet3d", 92))).shape == (1, 3, 4, 4, 4)
        with pytest.raises(RuntimeError):
            net(torch.empty(example_shape("unet3d", 91)))


@pytest.mark.parametrize("norm", [None, "batch", "group"])
@pytest.mark.parametrize("up", ["transpose", "bilinear"])
def test_unet_same_keeps_any_size(up: Any, norm: Any) -> None:
    net = unet(base=6, depth=3, up=up, norm=norm, classes=CLASSES).eval()
    for height, width in ((8, 8), (15, 9), (16, 23), (31, 17)):
        assert net(torch.randn(1, 1, height, width)).shape == (1, CLASSES, height, width)


@pytest.mark.parametrize("up", ["transpose", "bilinear"])
def test_unet_valid_crops_odd_skips(up: Any) -> None:
    net = unet("valid", base=4, depth=2, up=up)
    assert net(torch.randn(1, 1, 49, 46)).shape == (1, 2, 8, 4)


@pytest.mark.parametrize("make", [vgg16, vgg16_bn])
@pytest.mark.parametrize(("head", "shape"), [("fc", (1, 5)), ("pool", (1, 5)), (None, (1, 128, 2, 1))])
def test_vgg16_heads(make: Callable[..., nn.Module], head: Any, shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        assert make(classes=5, width=0.25, head=head)(torch.empty(1, 3, 71, 63)).shape == shape


def test_crop_takes_the_centre_and_padding_goes_after() -> None:
    x = torch.arange(1.0, 21.0).view(1, 1, 4, 5)
    assert center_crop(x, (2, 3))[0, 0].tolist() == [[7, 8, 9], [12, 13, 14]]
    assert center_crop(x, (4, 5)) is x
    padded = pad_end(x, (5, 7))
    assert torch.equal(padded[..., :4, :5], x)
    assert padded.shape == (1, 1, 5, 7)
    assert padded.sum() == x.sum()
    assert pad_end(x, (4, 5)) is x


# Capture


@pytest.mark.parametrize("name", NAMES)
def test_export_in_train_mode(name: str) -> None:
    with torch.device("meta"):
        net, x = small(name).train(), small_input(name)
        program = torch.export.export(net, (x,))
    output = program.graph.output_node().args[0][-1]
    assert output.meta["val"].shape == (1, CLASSES, *SMALL[name][2])
    # Each of these layers is there in its training form: the flag is an argument of the operator.
    for operator, flag, kind in (("batch_norm", 5, _BatchNorm), ("dropout", 2, nn.Dropout)):
        nodes = [node for node in program.graph.nodes if str(node.target) == f"aten.{operator}.default"]
        assert len(nodes) == sum(isinstance(module, kind) for module in net.modules())
        assert all(node.args[flag] is True for node in nodes)


@pytest.mark.parametrize("name", NAMES)
def test_export_in_eval_mode_computes_the_same(name: str) -> None:
    net, x = small(name).eval(), small_input(name)
    with torch.no_grad():
        expected = net(x)
        captured = torch.export.export(net, (x,)).module()(x)
    torch.testing.assert_close(captured, expected)
    assert expected.std() > 0


@pytest.mark.parametrize("name", ["vgg16", "resnet18"])
def test_capture_sees_in_place_forms(name: str) -> None:
    with torch.device("meta"):
        # In eval mode, where batch norm's counter adds nothing in place of its own.
        targets = exported_targets(small(name).eval(), small_input(name))
    assert "aten.relu_.default" in targets
    assert "aten.relu.default" not in targets
    assert ("aten.add_.Tensor" in targets) == name.startswith("resnet")


# Behaviour


@pytest.mark.parametrize("name", NAMES)
def test_eval_is_deterministic(name: str) -> None:
    net, x = small(name).eval(), small_input(name)
    before = x.clone()
    with torch.no_grad():
        assert torch.equal(net(x), net(x))
    assert torch.equal(x, before)  # the in-place layers leave the caller's tensor alone


@pytest.mark.parametrize("name", ["vgg16", "mobilenet_v2", "efficientnet_b0"])
def test_dropout_is_random_in_training(name: str) -> None:
    net, x = small(name).train(), small_input(name)
    assert not torch.equal(net(x), net(x))


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_trained(name: str) -> None:
    net = small(name).train()
    net(small_input(name, batch=2)).square().mean().backward()
    dead = [key for key, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert dead == []
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


# Loss


def test_segmentation_loss_is_the_mean_cross_entropy() -> None:
    net = small("unet").eval()
    image, mask = torch.randn(2, 1, 13, 11), torch.randint(CLASSES, (2, 13, 11))
    loss = SegmentationLoss(net)(image, mask)
    chosen = net(image).log_softmax(dim=1).gather(1, mask[:, None])
    torch.testing.assert_close(loss, -chosen.mean())


def test_segmentation_loss_ignores_pixels() -> None:
    net = small("unet").eval()
    image, mask = torch.randn(1, 1, 13, 11), torch.randint(CLASSES, (1, 13, 11))
    mask[:, :5] = 255
    chosen = net(image).log_softmax(dim=1)[:, :, 5:].gather(1, mask[:, None, 5:])
    torch.testing.assert_close(SegmentationLoss(net, ignore_index=255)(image, mask), -chosen.mean())
    assert SegmentationLoss(net, ignore_index=255)(image, torch.full_like(mask, 255)).isnan()


def test_segmentation_loss_crops_the_mask_to_a_valid_output() -> None:
    net = small("unet_valid").eval()
    image, mask = torch.randn(1, 1, 48, 48), torch.randint(CLASSES, (1, 48, 48))
    assert net(image).shape[2:] == (8, 8)
    inner = mask[:, 20:28, 20:28]
    expected = F.cross_entropy(net(image), inner)
    torch.testing.assert_close(SegmentationLoss(net)(image, mask), expected)
    torch.testing.assert_close(SegmentationLoss(net)(image, inner), expected)
    with pytest.raises(RuntimeError):
        SegmentationLoss(net)(image, mask[:, :5, :5])


def test_segmentation_loss_exports() -> None:
    with torch.device("meta"):
        loss = SegmentationLoss(small("unet_valid"))
        mask = torch.zeros(1, 47, 47, dtype=torch.long)
        program = torch.export.export(loss, (small_input("unet_valid"), mask))
    assert any("cross_entropy" in str(node.target) for node in program.graph.nodes)


# Registry and arguments


def test_registry_is_complete_and_frozen() -> None:
    assert set(NETWORKS) == {*IMAGE_CLASSIFIERS, "unet", "unet_valid", "deeplab", "unet3d", "wavenet1d"}
    with pytest.raises(TypeError):
        NETWORKS["vgg16"] = vgg16  # type: ignore[index]


def test_example_shape() -> None:
    assert example_shape("resnet50", 224) == (1, 3, 224, 224)
    assert example_shape("unet_valid", 572) == (1, 1, 572, 572)
    assert example_shape("unet3d", 92) == (1, 3, 92, 92, 92)
    assert example_shape("wavenet1d", 16000) == (1, 1, 16000)
    with pytest.raises(KeyError, match="alexnet"):
        example_shape("alexnet", 224)
    with pytest.raises(ValueError, match="size"):
        example_shape("vgg16", 0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vgg16", {"head": "conv"}),
        ("unet", {"padding": "full"}),
        ("unet", {"up": "nearest"}),
        ("unet", {"norm": "layer"}),
        ("unet3d", {"padding": "full"}),
        ("unet3d", {"norm": "group"}),
        ("deeplab", {"output_stride": 32}),
        ("vgg16_bn", {"head": "conv"}),
        ("efficientnet_b0", {"drop_path_rate": 20}),
        ("convnext_tiny", {"drop_path_rate": -0.1}),
        ("wavenet1d", {"layers": 0}),
    ],
)
def test_unknown_arguments_are_refused(name: str, arguments: dict[str, Any]) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match="|".join(arguments)):
        NETWORKS[name](**arguments)
