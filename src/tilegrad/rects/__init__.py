"""A distributed training step as arrays and operators, with the rect of every array that a worker reads and writes."""

from .check import check_rect_graph as check_rect_graph
from .dot import to_dot as to_dot
from .export import format_rect_json as format_rect_json
from .kinds import KINDS as KINDS
from .model import Array as Array
from .model import Edge as Edge
from .model import Evidence as Evidence
from .model import RectGraph as RectGraph
from .model import RectOperator as RectOperator
from .model import RectRole as RectRole
from .system import training_step as training_step
from .totals import Totals as Totals
from .totals import count_kinds as count_kinds
from .totals import flops_of as flops_of
from .totals import total as total
from .traffic import Imbalance as Imbalance
from .traffic import Share as Share
from .traffic import imbalance as imbalance
from .traffic import shares as shares
