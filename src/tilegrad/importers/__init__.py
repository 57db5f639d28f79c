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
    from .torch_export import autocast_dtype as autocast_dtype
    from .torch_export import capture as capture
    from .torch_export import device_of as device_of
    from .torch_export import export_module as export_module
    from .torch_export import is_shape as is_shape
    from .torch_export import strides_of as strides_of
    from .torch_export import untouched as untouched

_HOMES = {
    "find_format": "formats",
    "load": "formats",
    "load_profile": "formats",
    "load_rects": "formats",
    "HIDDEN": "torch_export",
    "LOCK": "torch_export",
    "Captured": "torch_export",
    "Snapshot": "torch_export",
    "autocast_dtype": "torch_export",
    "capture": "torch_export",
    "device_of": "torch_export",
    "export_module": "torch_export",
    "is_shape": "torch_export",
    "strides_of": "torch_export",
    "untouched": "torch_export",
}
__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
