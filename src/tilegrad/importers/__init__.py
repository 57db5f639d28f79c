"""From elsewhere into a `Graph`: one file, one format."""

from .load import load as load
from .torch_export import Captured as Captured
from .torch_export import Slot as Slot
from .torch_export import capture as capture
from .torch_export import export_module as export_module
