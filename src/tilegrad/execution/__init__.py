"""Run a schedule: one walk over its steps, islands that are kept or run again, stores where things wait."""

from .executor import Executor as Executor
from .rank_pass import RankPass as RankPass
from .walk import Pass as Pass
