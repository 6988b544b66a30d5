"""How long a start took before."""

from __future__ import annotations

from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.rounds.search import Search
from tuner.ui.progress import CHECKS

#: Rounds looked back upon.
_LOOK_BACK = 50
_CAME_UP = (RoundState.VERIFIED, RoundState.UNVERIFIED)


def last_like(history: History, recipe: Recipe) -> Round | None:
    """The newest round of the same model, on the same kind of server, that was ready and checked. Reads the disk."""
    rounds = history.list(limit=_LOOK_BACK, simulated=recipe.simulated, search=Search(states=_CAME_UP))
    like = (r for r in rounds if r.recipe.model_path == recipe.model_path and r.ready_seconds is not None)
    return next(like, None)


def times_of(round_: Round | None) -> dict[str, float]:
    """Seconds by phase, and of its checks together as ``CHECKS``; empty for no round."""
    if round_ is None:
        return {}
    return {**round_.phase_seconds, CHECKS: sum(result.seconds for result in round_.checks)}
