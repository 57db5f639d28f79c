"""The graph: frozen values and nodes, their legality and their text form."""

from .build import Build as Build
from .check import check_graph as check_graph
from .graph import Graph as Graph
from .graph import Held as Held
from .graph import Input as Input
from .graph import Kind as Kind
from .graph import Node as Node
from .graph import Phase as Phase
from .graph import Role as Role
from .graph import Source as Source
from .graph import Value as Value
from .text import format_graph as format_graph
from .text import parse_graph as parse_graph
from .types import TensorType as TensorType
