"""Train and run convolutional networks on images that do not fit in memory."""

from .importers import capture as capture
from .tiled import TiledModule as TiledModule
from .tiled import tile as tile

__version__ = "0.1.0"
