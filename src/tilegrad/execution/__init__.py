"""Run a schedule: one walk over its steps, islands that are kept or run again, stores where things wait."""

from .executor import Executor as Executor
from .walk import Pass as Pass
