"""A plan of whole nodes as the executor runs it: what runs together in one piece, as far as a budget has room for that.

An island's backward holds the gradients that came to it until its last node is done, so a few pieces may need more than
their nodes would apart. Where that passes the budget, the largest node of such a piece is taken out, until none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..ir import Graph
from ..schedule import Backward, Compute, Run, Schedule, fuse
from ..sim.memory import Prediction
from ..sim.predict import predict

LOOKS = 6  # at what is too large; then every node stays apart


def fuse_within(
    plan: Schedule,
    forward: Graph,
    graded: Sequence[str],
    budget: float,
    finish: Callable[[Schedule], Schedule] = lambda schedule: schedule,
) -> tuple[Schedule, Prediction]:
    """`forward`: the graph that was differentiated; `finish`: makes of the fused plan what is to fit. Where even nodes
    by themselves need more, that is what is given back."""
    alone: set[str] = set()
    for _ in range(LOOKS):
        found = finish(fuse(plan, forward, alone=alone))
        prediction = predict(found, graded)
        if prediction.total_bytes <= budget:
            return found, prediction
        large = set(_largest(found, prediction, budget)) & forward.node.keys()
        if not large:
            break
        alone |= large
    found = finish(fuse(plan, forward, alone=forward.node))
    return found, predict(found, graded)


def _largest(schedule: Schedule, prediction: Prediction, budget: float) -> Iterator[str]:
    """Of each island of several nodes that passes a budget, the node that makes most."""
    assert prediction.memory is not None
    for step, needed in zip(schedule.steps, prediction.memory.device, strict=True):
        if needed > budget and isinstance(step, Run | Backward):
            steps = [each for each in schedule.islands[step.island].steps if isinstance(each, Compute)]
            if len(steps) > 1:
                yield max(steps, key=lambda each: each.out.volume).node
