"""One pool of ranks for all tests of a session, and which meshes a test takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    ranks = Pool()
    yield ranks
    codes = ranks.close()
    assert not any(map(any, codes.values())), f"ranks ended with {codes}"  # no aborts at exit


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Every network on every mesh, of which a test otherwise takes the few that ask most?"""
    return bool(request.config.getoption("--slow"))
