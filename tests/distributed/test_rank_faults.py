"""A rank that dies, hangs or raises: all others stop, soon, with an error that names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crews import LIMIT_S, Crew, Fault, Report
from rank_pool import mesh_of

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
    Fault(mesh_of(h=3), 0, "raise"),  # the judge takes leave; rank 2 has no halo of it
    Fault(mesh_of(h=2), 1, "skip", "backward"),  # goes on with the next step: nobody is missing
]


@pytest.mark.parametrize("faults", [FAULTS[::2], FAULTS[1::2]], ids=["some", "others"])
def test_the_others_stop_and_name_the_rank(faults: list[Fault]) -> None:
    crews = [Crew(fault) for fault in faults]  # at once: they mostly wait
    wrong = [f"{crew.fault}: {what}" for crew in crews for what in problems(crew.fault, crew.reports())]
    assert not wrong, "\n".join(wrong)


def problems(fault: Fault, found: dict[int, Report]) -> Iterator[str]:
    left = set(fault.mesh.ranks) - {fault.rank}
    if set(found) != left:
        yield f"only ranks {sorted(found)} of {sorted(left)} stopped"
    for rank, report in found.items():
        blamed = () if fault.how == "skip" else (fault.rank,)
        named = report.kind == "RankError" and report.blamed == blamed and f"rank {fault.rank} " in report.text
        named &= fault.how != "raise" or "ValueError: a mistake of one rank alone" in report.text
        named &= fault.how != "skip" or "one has skipped a step" in report.text
        if not named or report.seconds > LIMIT_S or report.exit_code != 0:
            yield f"rank {rank} says {report}"
    if len(said := {report.text.splitlines()[0] for report in found.values()}) > 1:
        yield f"the ranks say different things: {said}"
