"""From an `nn.Module` to a `Graph`: traced on fake tensors (`trace`), made pure (`functional`), put into nodes
(`program`); with the module's Python state, which a graph bakes in (`reach`, `state`)."""

from .arguments import argument_names as argument_names
from .arguments import autocast_dtype as autocast_dtype
from .arguments import device_of as device_of
from .arguments import from_shapes as from_shapes
from .arguments import is_shape as is_shape
from .explain import forward_line as forward_line
from .program import Captured as Captured
from .program import capture as capture
from .program import export_call as export_call
from .program import export_module as export_module
from .reach import HIDDEN as HIDDEN
from .state import Snapshot as Snapshot
from .trace import LOCK as LOCK
from .trace import tracing_elsewhere as tracing_elsewhere
from .trace import tracing_here as tracing_here
from .trace import untouched as untouched
from .trees import fill as fill
from .trees import key_of as key_of
from .trees import leaves as leaves
from .trees import take as take
