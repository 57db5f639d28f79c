"""Tiles of given sizes as a schedule: phases, seams, and how many tiles are kept."""

from .again import USUAL as USUAL
from .again import Between as Between
from .again import levels as levels
from .cut import TileSizes as TileSizes
from .cut import cut_tiles as cut_tiles
from .cut import keep_last as keep_last
from .cut import keepable as keepable
from .cut import make_schedule as make_schedule
from .cut import plan_plain as plan_plain
from .cut import plan_tiles as plan_tiles
from .seams import Seams as Seams
from .seams import held_bytes as held_bytes
from .walks import UncutPhase as UncutPhase
from .walks import Walks as Walks
from .walks import leading_to as leading_to
from .walks import whole_phase as whole_phase
from .walks import works_cheaply as works_cheaply
from .weigh import SURE as SURE
from .weigh import Scale as Scale
from .weight import Weight as Weight
