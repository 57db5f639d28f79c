"""Search: what planners propose, the simulator judges, and a budget chooses."""

from .candidates import PLANNERS as PLANNERS
from .candidates import Candidate as Candidate
from .candidates import Steps as Steps
from .imported import imported_tiles as imported_tiles
from .mixed import Mixed as Mixed
from .plan import Planning as Planning
from .plan import Slack as Slack
from .plan import forward_part as forward_part
from .plan import plan_step as plan_step
from .plan import sweep as sweep
from .tiles import Search as Search
from .tiles import fit_budget as fit_budget
