"""Models of torchvision, timm, segmentation-models-pytorch and MONAI that `test_public_models.py` takes through a step.

`MODELS` maps a name to the package that it needs, what makes it (random weights, nothing is downloaded) and the shape
of its input: small ones, and each for something in its code that others do not have.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn

Shape = tuple[int, ...]
IMAGE: Shape = (2, 3, 90, 118)  # that tiles of 32 do not divide
EVEN: Shape = (2, 3, 96, 128)  # for decoders that want to halve it five times
SQUARE: Shape = (2, 3, 224, 224)  # for position embeddings that are made for it

_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")


def import_torchvision() -> ModuleType:
    """torchvision, also where its compiled operators do not load (a wheel for CUDA beside a torch for CPUs).

    It describes some of them to torch on import, which fails where they are missing. Its networks need none, so each
    that it complains about is given a name, and no code.
    """
    while True:
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            _OPERATORS.define(f"{missing[1]}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")


@dataclass(frozen=True)
class Model:
    """One model: `make` imports `package` when it is called, not before."""

    package: str
    make: Callable[[], nn.Module]
    shape: Shape
    tile: int = 32
    tolerance: float = 1e-9


def _torchvision(name: str, shape: Shape = IMAGE, **options: Any) -> tuple[str, Model]:
    def make() -> nn.Module:
        return import_torchvision().models.get_model(name, weights=None, **options)

    return f"torchvision {name}", Model("torchvision", make, shape)


def _vision_transformer() -> nn.Module:
    return import_torchvision().models.VisionTransformer(64, 16, 2, 3, 48, 96, dropout=0.1)


def _timm(name: str, shape: Shape = IMAGE, tolerance: float = 1e-9, **options: Any) -> tuple[str, Model]:
    def make() -> nn.Module:
        import_torchvision()  # which timm imports
        return importlib.import_module("timm").create_model(name, pretrained=False, **options)

    return f"timm {name}", Model("timm", make, shape, tolerance=tolerance)


def _segmentation(name: str, encoder: str, shape: Shape = EVEN, **options: Any) -> tuple[str, Model]:
    def make() -> nn.Module:
        import_torchvision()
        package = importlib.import_module("segmentation_models_pytorch")
        return getattr(package, name)(encoder, encoder_weights=None, classes=2, **options)

    return f"smp {name} {encoder}", Model("segmentation_models_pytorch", make, shape)


def _monai(name: str, shape: Shape, *args: Any, tile: int = 32, **options: Any) -> tuple[str, Model]:
    def make() -> nn.Module:
        return getattr(importlib.import_module("monai.networks.nets"), name)(*args, **options)

    return f"monai {name} {len(shape) - 2}d", Model("monai", make, shape, tile)


_tiny = partial(_timm, shape=(2, 3, 160, 160))  # the models that timm tests itself with

MODELS: dict[str, Model] = dict(
    [
        _torchvision("squeezenet1_0"),
        _torchvision("resnet18"),
        _torchvision("googlenet", init_weights=False),  # auxiliary outputs, in a named tuple
        _torchvision("mnasnet0_5"),
        _torchvision("shufflenet_v2_x0_5"),
        _torchvision("mobilenet_v3_small"),
        _torchvision("efficientnet_b0"),
        _torchvision("regnet_y_400mf"),
        _torchvision("swin_t"),
        ("torchvision vit", Model("torchvision", _vision_transformer, (2, 3, 64, 64))),
        _torchvision("densenet121", memory_efficient=True),  # checkpoints of its own
        _torchvision("lraspp_mobilenet_v3_large", EVEN, weights_backbone=None),  # outputs in a dictionary
        _torchvision("mc3_18", (1, 3, 6, 56, 64)),
        _tiny("test_byobnet"),
        _tiny("test_convnext2"),
        _tiny("test_efficientnet"),
        _tiny("test_efficientnet_evos", tolerance=1e-5),  # takes its deviations in float32
        _tiny("test_mambaout"),
        _tiny("test_nfnet"),
        _tiny("test_vit"),
        _timm("skresnet18"),  # a choice between kernels
        _timm("ecaresnet26t"),
        _timm("tinynet_e"),
        _timm("convnextv2_atto"),  # global response normalization
        _timm("poolformer_s12"),
        _timm("repghostnet_050"),
        _timm("efficientvit_b0"),  # linear attention
        _timm("dla46_c", EVEN),  # trees of levels
        _timm("hrnet_w18_small", EVEN),  # four resolutions side by side
        _timm("nf_regnet_b0"),
        _timm("mobilevitv2_050"),
        # Attention between channels. Not with one sample: torch's own batch norm then gets its gradient wrong on CPUs
        # (2.13), as it comes through `flatten(2).transpose(1, 2)` in other strides.
        _timm("xcit_nano_12_p16_224", SQUARE),
        _segmentation("Unet", "resnet18", decoder_attention_type="scse"),
        _segmentation("UnetPlusPlus", "timm-mobilenetv3_small_100"),
        _segmentation("MAnet", "mobilenet_v2", decoder_channels=(64, 32, 16, 16, 8)),
        _segmentation("PAN", "resnet18", (2, 3, 128, 160)),
        _segmentation("DeepLabV3Plus", "efficientnet-b0"),
        _segmentation("Linknet", "resnet18", aux_params={"classes": 3, "dropout": 0.2}),  # a mask and a label
        _monai("UNet", (1, 1, 24, 32, 40), 3, 1, 2, (6, 12, 24), (2, 2), num_res_units=1, tile=16),
        _monai("AttentionUnet", (2, 1, 80, 96), 2, 1, 2, (8, 16, 32), (2, 2)),
        _monai("BasicUNetPlusPlus", (2, 1, 64, 96), 2, 1, 2, features=(6, 6, 12, 24, 48, 6), deep_supervision=True),
        _monai("DynUNet", (1, 1, 32, 40, 48), 3, 1, 2, [3] * 3, [1, 2, 2], [2, 2], filters=[6, 8, 12],
               deep_supervision=True, deep_supr_num=1, tile=16),
        _monai("SegResNetDS", (1, 1, 64, 80), spatial_dims=2, init_filters=8, blocks_down=(1, 1, 2), dsdepth=2),
        _monai("DenseNet121", (2, 1, 96, 96), 2, 1, 3, init_features=8, growth_rate=4, block_config=(2, 3, 2)),
        _monai("MedNeXt", (2, 1, 64, 96), 2, 4, 1, 2),
        _monai("UNETR", (1, 1, 64, 64), 1, 2, (64, 64), feature_size=4, hidden_size=24, mlp_dim=48, num_heads=3,
               spatial_dims=2),
    ]
)  # fmt: skip
