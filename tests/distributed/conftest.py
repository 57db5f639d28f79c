"""One pool of ranks for all tests of a session."""

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
