"""Libraries that not everybody needs, and the extras of this package that install them."""

from __future__ import annotations

EXTRAS = {
    "plot": ("matplotlib",),
    "images": ("zarr", "tifffile", "openslide", "nibabel", "PIL"),
    "tensorboard": ("tensorboard",),
    "lightning": ("lightning",),
    "examples": ("accelerate",),
    "zoo": ("torchvision", "timm", "segmentation_models_pytorch", "monai", "einops"),
}  # extra -> what is imported of it


def install_hint(error: ImportError, otherwise: str | None = None) -> str | None:
    """What to type where a library is missing; `otherwise`: where it is none of ours."""
    missing = (error.name or "").partition(".")[0]
    extra = next((extra for extra, libraries in EXTRAS.items() if missing in libraries), None)
    return f"pip install 'tilegrad[{extra}]'" if extra is not None else otherwise
