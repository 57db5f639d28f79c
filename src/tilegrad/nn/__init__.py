"""Layers whose weights live on space: every place of the image has its own, and each rank of a mesh owns its box."""

from .gain import ScalarGain as ScalarGain
from .locally_connected import LocallyConnected2d as LocallyConnected2d
from .spatial_linear import SpatialLinear as SpatialLinear
