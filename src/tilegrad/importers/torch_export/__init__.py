"""From an `nn.Module` to a `Graph`: traced on fake tensors (`trace`), made pure (`functional`), put into nodes
(`program`); with the module's Python state, which a graph bakes in (`state`)."""

from .program import Captured as Captured
from .program import argument_names as argument_names
from .program import autocast_dtype as autocast_dtype
from .program import capture as capture
from .program import device_of as device_of
from .program import export_call as export_call
from .program import export_module as export_module
from .program import from_shapes as from_shapes
from .program import is_shape as is_shape
from .state import HIDDEN as HIDDEN
from .state import Snapshot as Snapshot
from .trace import LOCK as LOCK
from .trace import forward_line as forward_line
from .trace import tracing_elsewhere as tracing_elsewhere
from .trace import untouched as untouched
from .trees import fill as fill
from .trees import key_of as key_of
from .trees import leaves as leaves
from .trees import take as take
