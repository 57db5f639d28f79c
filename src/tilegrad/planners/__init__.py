"""Graph and wishes in, `Schedule` out."""

from .tile import TileSizes as TileSizes
from .tile import plan_plain as plan_plain
from .tile import plan_tiles as plan_tiles
