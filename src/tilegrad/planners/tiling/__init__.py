"""Tiles of given sizes as a schedule: phases, seams, and how many tiles are kept."""

from .cut import TileSizes as TileSizes
from .cut import keep_last as keep_last
from .cut import keepable as keepable
from .cut import leading_to as leading_to
from .cut import plan_plain as plan_plain
from .cut import plan_tiles as plan_tiles
from .cut import whole_phase as whole_phase
from .cut import works_cheaply as works_cheaply
from .seams import Seams as Seams
from .seams import held_bytes as held_bytes
