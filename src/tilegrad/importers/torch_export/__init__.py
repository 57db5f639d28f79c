"""From an `nn.Module` to a `Graph`: traced on fake tensors (`trace`), made pure (`functional`), put into nodes
(`program`); with the module's Python state, which a graph bakes in (`state`)."""

from .program import Captured as Captured
from .program import autocast_dtype as autocast_dtype
from .program import capture as capture
from .program import device_of as device_of
from .program import export_module as export_module
from .program import is_shape as is_shape
from .program import strides_of as strides_of
from .state import HIDDEN as HIDDEN
from .state import Snapshot as Snapshot
from .trace import LOCK as LOCK
from .trace import untouched as untouched
