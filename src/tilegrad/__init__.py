"""Train and run convolutional networks on images that do not fit in memory."""

from .importers import capture as capture

__version__ = "0.1.0"
