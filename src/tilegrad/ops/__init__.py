"""Operators: one file each, registered once. `find(node)` gives the operator of any node."""

from .base import Call as Call
from .base import Op as Op
from .base import Place as Place
from .base import Read as Read
from .base import Reduction as Reduction
from .base import Sample as Sample
from .function import local as local
from .registry import find as find
from .registry import op as op
from .registry import registered as registered
