"""Planners: a problem in, schedules out, one file each, found by themselves; `choose` takes the fastest that fits."""

from .choose import Planning as Planning
from .choose import Slack as Slack
from .choose import candidates as candidates
from .choose import check_planner as check_planner
from .choose import plan_step as plan_step
from .choose import planner_names as planner_names
from .choose import planners as planners
from .choose import sweep as sweep
from .fused import fuse_within as fuse_within
from .imported import imported_tiles as imported_tiles
from .problem import Candidate as Candidate
from .problem import Effort as Effort
from .problem import MeshProblem as MeshProblem
from .problem import Planner as Planner
from .problem import Problem as Problem
from .problem import Proposal as Proposal
from .problem import TrainingStep as TrainingStep
from .problem import plan_keep as plan_keep
from .refusal import tiles_too_large as tiles_too_large
from .tile import Fit as Fit
from .tile import TileSearch as TileSearch
from .tiling import TileSizes as TileSizes
from .tiling import plan_plain as plan_plain
from .tiling import plan_tiles as plan_tiles
