"""A rank that dies, hangs or raises: all others stop, soon, with an error that names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crews import LIMIT_S, Crew, Fault, Report
from ranks import mesh_of

FAULTS = [
    Fault(mesh_of(h=2), 1, "exit"),
    Fault(mesh_of(h=2), 0, "kill"),
    Fault(mesh_of(h=3), 2, "sleep"),
    Fault(mesh_of(h=2), 0, "sleep", "backward"),
    Fault(mesh_of(h=4), 3, "kill"),  # ranks 0 and 1 have no halo of it
    Fault(mesh_of(h=4), 0, "exit", "backward"),
    Fault(mesh_of(h=4), 3, "sleep", "backward"),
    Fault(mesh_of(h=4), 0, "sleep"),
    Fault(mesh_of(h=2, w=2), 2, "raise"),
    Fault(mesh_of(batch=2, h=2), 1, "raise", "backward"),
    Fault(mesh_of(h=3, ranks=(2, 0, 1)), 2, "kill"),  # the first of the mesh is not rank 0
]


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[Fault, dict[int, Report]]]:
    """All at once: they mostly wait."""
    crews = [Crew(fault) for fault in FAULTS]
    yield {crew.fault: crew.reports() for crew in crews}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_others_stop_and_name_the_rank(reports: dict[Fault, dict[int, Report]], fault: Fault) -> None:
    found = reports[fault]
    assert set(found) == set(fault.mesh.ranks) - {fault.rank}
    for report in found.values():
        assert report.kind == "RankError", report
        assert report.blamed == (fault.rank,), report
        assert f"rank {fault.rank} " in report.text
        assert report.seconds <= LIMIT_S, report
        assert report.exit_code == 0, report
    assert len({report.text.splitlines()[0] for report in found.values()}) == 1
