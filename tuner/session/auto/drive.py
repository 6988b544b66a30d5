"""The way of auto from step to step: decide, start, prove, learn. What starts and proves is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.planner.model import PlanInputs
from tuner.session.auto.decide import next_step
from tuner.session.auto.model import Goal, Start, Stop, Try

#: Inputs of the next plan, for the operator's flags, after these tries.
Gather = Callable[[Sequence[Try]], PlanInputs]
#: Makes a start, and proves the need on it when it is verified. None: the operator broke it off.
Run = Callable[[Start, int], Try | None]


def drive(goal: Goal, gather: Gather, run: Run, *, first: Try | None = None) -> tuple[Stop | None, tuple[Try, ...]]:
    """Goes on until the need is met or cannot be, and returns why it stopped (None: broken off) with all tries.

    ``first``: the server that runs already, as it was proved. Raises CannotPlan with one sentence where nothing can be
    planned.
    """
    tries: list[Try] = [first] if first is not None else []
    while True:
        step = next_step(goal, gather(tries), tries)
        if isinstance(step, Stop):
            return step, tuple(tries)
        tried = run(step, sum(t.started for t in tries) + 1)
        if tried is None:
            return None, tuple(tries)
        tries.append(tried)
