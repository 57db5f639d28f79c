"""Graphs of rects from files: the repaired JSON, our export of the same form, and the scanned drawing itself."""

from .drawing import Repair as Repair
from .drawing import load_drawing as load_drawing
from .drawing import sniff_drawing as sniff_drawing
from .repaired import load_rect_json as load_rect_json
from .repaired import sniff_rect_json as sniff_rect_json
