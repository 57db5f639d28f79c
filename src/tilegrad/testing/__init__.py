"""For tests of your own: is a tiled module the same as the plain one, and is an operator's box rule sound?

from tilegrad.testing import assert_same_step, integer_module, integer_tensor

assert_same_step(integer_module(net), [integer_tensor((1, 3, 61, 47))], tile=16, mode="stream")
"""

from ..sim.peak import PeakBytes as PeakBytes
from .exact import StepResult as StepResult
from .exact import assert_same as assert_same
from .exact import assert_same_step as assert_same_step
from .exact import integer_module as integer_module
from .exact import integer_tensor as integer_tensor
from .exact import run_step as run_step
from .op_suite import check_operator as check_operator
from .store_suite import StoreSuite as StoreSuite
