"""Random networks, random tiles: a step of training equal to plain torch's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilegrad.bounds import MODES
from tilegrad.testing import assert_same_step
from tilegrad.testing.networks import RandomNetwork, networks, tilings

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def some(count: int) -> settings:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count, derandomize=True, suppress_health_check=quiet, database=None)


@st.composite
def cases(draw: st.DrawFn, mode: str, exact: bool, **options: Any) -> tuple[RandomNetwork, dict[str, Any]]:
    network = draw(networks(exact=exact, **options))
    return network, draw(tilings(network, mode))


@pytest.mark.parametrize("mode", MODES)
def test_integer_networks_are_equal(mode: str) -> None:
    @some(120)
    @given(cases(mode, exact=True))
    def check(case: tuple[RandomNetwork, dict[str, Any]]) -> None:
        network, options = case
        assert_same_step(network, network.inputs(), exact=True, **options)

    check()
