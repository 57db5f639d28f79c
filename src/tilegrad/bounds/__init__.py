"""Which boxes a tile needs: Halide's question, asked of a graph of tensor operators."""

from .axes import AXES as AXES
from .axes import Axes as Axes
from .axes import call_of as call_of
from .axes import image_axes as image_axes
from .axes import label_axes as label_axes
from .gradients import needed_gradients as needed_gradients
from .gradients import reached_by as reached_by
from .lines import MODES as MODES
from .lines import Cuts as Cuts
from .lines import Line as Line
from .lines import Spans as Spans
from .lines import line_of as line_of
from .lines import sinks_of as sinks_of
from .lines import tile_line as tile_line
from .lowering import lower_graph as lower_graph
from .placement import Placement as Placement
from .placement import place_values as place_values
from .roles import NodePart as NodePart
from .roles import Roles as Roles
from .roles import choose_axes as choose_axes
from .roles import share_of as share_of
from .roles import sort_nodes as sort_nodes
from .tiling import Tiling as Tiling
from .tiling import check_axes as check_axes
from .tiling import tile_graph as tile_graph
from .tiling import tile_nodes as tile_nodes
