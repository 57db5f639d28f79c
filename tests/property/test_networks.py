"""Random networks, random tiles: a step of training equal to plain torch's.

On integers every number must be equal. On floats, with norms, gates, heads and losses, all must agree to 1e-10 of the
largest: random networks may be badly conditioned (a norm over two pixels), where plain's own rounding is no smaller.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from drawn_networks import RandomNetwork, networks, tilings
from thorough import often
from tilegrad.bounds import MODES
from tilegrad.errors import CaptureError, GridError
from tilegrad.testing import assert_same_step, run_step
from tilegrad.testing.exact import size_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
every_mode = pytest.mark.parametrize("mode", MODES)


def some(count: int, *, derandomize: bool = True) -> settings:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count, derandomize=derandomize, suppress_health_check=quiet, database=None)


def check(network: RandomNetwork, options: dict[str, Any]) -> None:
    if not network.exact:
        gradients = run_step(copy.deepcopy(network), network.inputs()).gradients
        assume(max(map(size_of, gradients.values())) > 1e-6)  # otherwise there is nothing but rounding to compare
    try:
        assert_same_step(network, network.inputs(), exact=network.exact, tolerance=1e-10, quiet=1.0, **options)
    except GridError as error:
        assume("has no axis" not in str(error))  # cropped to one pixel before any layer could name it
        raise
    except CaptureError as error:
        assume("in-place write that cannot be made pure" not in str(error))  # into permuted channels
        raise


@every_mode
@some(often(40, 120))
@given(data=st.data())
def test_integer_networks_are_equal(mode: str, data: st.DataObject) -> None:
    network = data.draw(networks())
    check(network, data.draw(tilings(network, mode)))


@every_mode
@some(often(30, 60))
@given(data=st.data())
def test_float_networks_agree(mode: str, data: st.DataObject) -> None:
    network = data.draw(networks(exact=False, ends=True))
    check(network, data.draw(tilings(network, mode)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@every_mode
@some(2000, derandomize=False)
@given(data=st.data())
def test_thousands_of_integer_networks(mode: str, data: st.DataObject) -> None:
    network = data.draw(networks(layers=7))
    check(network, data.draw(tilings(network, mode)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@every_mode
@some(1000, derandomize=False)
@given(data=st.data())
def test_thousands_of_float_networks(mode: str, data: st.DataObject) -> None:
    network = data.draw(networks(exact=False, ends=True, layers=7))
    check(network, data.draw(tilings(network, mode)))
