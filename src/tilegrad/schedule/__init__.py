"""What runs, in which order, on which boxes. Planners make a `Schedule`, the runtime and the simulator read it."""

from .check import check_schedule as check_schedule
from .schedule import Phase as Phase
from .schedule import Schedule as Schedule
from .schedule import Storage as Storage
from .steps import Compute as Compute
from .steps import Fold as Fold
from .steps import Free as Free
from .steps import Halo as Halo
from .steps import Join as Join
from .steps import Load as Load
from .steps import Step as Step
from .steps import Store as Store
from .text import format_plan as format_plan
from .text import format_steps as format_steps
from .text import plan_to_json as plan_to_json
