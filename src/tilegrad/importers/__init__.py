"""From elsewhere into a `Graph` or a `Profile`: one file or folder, one format."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .formats import find_format as find_format
    from .formats import load as load
    from .formats import load_profile as load_profile
    from .formats import load_rects as load_rects
    from .torch_export import HIDDEN as HIDDEN
    from .torch_export import LOCK as LOCK
    from .torch_export import Captured as Captured
    from .torch_export import Snapshot as Snapshot
    from .torch_export import argument_names as argument_names
    from .torch_export import autocast_dtype as autocast_dtype
    from .torch_export import capture as capture
    from .torch_export import device_of as device_of
    from .torch_export import export_call as export_call
    from .torch_export import export_module as export_module
    from .torch_export import fill as fill
    from .torch_export import forward_line as forward_line
    from .torch_export import from_shapes as from_shapes
    from .torch_export import is_shape as is_shape
    from .torch_export import key_of as key_of
    from .torch_export import leaves as leaves
    from .torch_export import take as take
    from .torch_export import tracing_elsewhere as tracing_elsewhere
    from .torch_export import tracing_here as tracing_here
    from .torch_export import untouched as untouched

_CAPTURE = (
    "HIDDEN", "LOCK", "Captured", "Snapshot", "argument_names", "autocast_dtype", "capture", "device_of", "export_call",
    "export_module", "fill", "from_shapes", "is_shape", "key_of", "leaves", "take", "forward_line",
    "tracing_elsewhere", "tracing_here", "untouched",
)  # fmt: skip
_FILES = ("find_format", "load", "load_profile", "load_rects")
_HOMES = dict.fromkeys(_FILES, "formats") | dict.fromkeys(_CAPTURE, "torch_export")
__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
