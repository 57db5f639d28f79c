"""What ran, when, and in which memory: one form for profiles of every origin."""

from .model import Block as Block
from .model import BlockKind as BlockKind
from .model import Operator as Operator
from .model import Profile as Profile
from .model import Span as Span
from .model import check_profile as check_profile
