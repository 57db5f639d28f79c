"""From elsewhere into a `Graph` or a `Profile`: one file or folder, one format."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .formats import find_format as find_format
    from .formats import load as load
    from .formats import load_profile as load_profile
    from .formats import load_rects as load_rects
    from .torch_export import Captured as Captured
    from .torch_export import Slot as Slot
    from .torch_export import capture as capture
    from .torch_export import export_module as export_module

_HOMES = {
    "find_format": "formats",
    "load": "formats",
    "load_profile": "formats",
    "load_rects": "formats",
    "Captured": "torch_export",
    "Slot": "torch_export",
    "capture": "torch_export",
    "export_module": "torch_export",
}
__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
