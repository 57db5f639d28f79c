"""Small networks in the manner of public families, with the habits of their code that make capture hard.

Each is written out here as torchvision, timm, segmentation-models-pytorch or MONAI write theirs, a few thousand
parameters large. `NETWORKS` maps a name to what makes it, drop rates as shipped, and the shape of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from small_attention import Swin, VisionTransformer, mobilevit
from small_convolutional import convnext, eca_resnet, efficientnet, ghostnet, nfnet, shufflenet
from small_dense import DeepLab, GlobeNet, SegResNet
from small_stateful import Discriminator, DynUNet, densenet
from torch import nn

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "efficientnet": (efficientnet, (2, 3, 37, 50)),
    "convnext": (convnext, (2, 3, 41, 64)),
    "swin": (Swin, (2, 3, 45, 38)),
    "eca_resnet": (eca_resnet, (2, 3, 33, 47)),
    "shufflenet": (shufflenet, (2, 3, 43, 35)),
    "dynunet": (DynUNet, (1, 1, 48, 64)),
    "densenet": (densenet, (2, 3, 39, 52)),
    "densenet, checkpointed": (partial(densenet, memory_efficient=True), (2, 3, 39, 52)),
    "spectral_norm, hooks": (partial(Discriminator, nn.utils.spectral_norm), (2, 3, 36, 51)),
    "spectral_norm, parametrized": (partial(Discriminator, nn.utils.parametrizations.spectral_norm), (2, 3, 36, 51)),
    "nfnet": (nfnet, (2, 3, 45, 49)),
    "ghostnet": (ghostnet, (2, 3, 53, 38)),
    "mobilevit": (mobilevit, (2, 3, 42, 57)),
    "vit": (VisionTransformer, (2, 3, 40, 48)),
    "segresnet": (SegResNet, (1, 1, 33, 36, 34)),
    "deeplab": (DeepLab, (2, 3, 61, 49)),
    "globe": (GlobeNet, (2, 2, 33, 64)),
}
