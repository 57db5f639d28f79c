"""Planners: a graph, a machine and a budget in, a schedule out. One file each."""

from .keep import plan_keep as plan_keep
from .offload import plan_offload as plan_offload
from .problem import make_problem as make_problem
from .recompute import Effort as Effort
from .recompute import plan_recompute as plan_recompute
from .segments import plan_segments as plan_segments
from .segments import plan_sqrt as plan_sqrt
from .tile import TileSizes as TileSizes
from .tile import plan_plain as plan_plain
from .tile import plan_tiles as plan_tiles
