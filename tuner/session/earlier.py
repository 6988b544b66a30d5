"""What earlier rounds tell a new one: pools to calibrate with, times to expect, how far plans were off."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tuner.planner.accuracy import Accuracy
from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.rounds.model import Round

#: Rounds looked back upon.
_LOOK_BACK = 50


def earlier(history: History, recipe: Recipe) -> Iterator[Round]:
    """Rounds on the same kind of server (simulated or real), newest first, all of them."""
    for offset in itertools.count(step=_LOOK_BACK):
        page = history.list(limit=_LOOK_BACK, offset=offset, simulated=recipe.simulated)
        yield from page
        if len(page) < _LOOK_BACK:
            return


def calibrations(history: History, recipe: Recipe) -> Iterator[Round]:
    """Rounds of the same model on the same kind of server whose pools are known, newest first.

    Those that came up go before those that died after their pools: only they tell the graphs.
    """
    died: list[Round] = []
    for round_ in history.list(limit=_LOOK_BACK):
        boot = round_.boot
        if (
            round_.simulated != recipe.simulated
            or round_.recipe.model_path != recipe.model_path
            or boot is None
            or boot.kv_tokens is None
        ):
            continue
        if boot.available_gib is None:
            died.append(round_)
        else:
            yield round_
    yield from died


def accuracies(history: History, *, simulated: bool, limit: int) -> tuple[tuple[str, Accuracy], ...]:
    """How far the plans of the last rounds were off, newest first: (round, actual less planned)."""
    rounds = history.list(limit=_LOOK_BACK)
    known = ((r.name, r.accuracy) for r in rounds if r.simulated == simulated and r.accuracy is not None)
    return tuple(itertools.islice(known, limit))


def phase_estimates(history: History, recipe: Recipe) -> dict[str, float]:
    """Seconds by phase of the last start of the same model; another model's would mislead."""
    for before in itertools.islice(earlier(history, recipe), _LOOK_BACK):
        if before.ready_seconds is not None and before.recipe.model_path == recipe.model_path:
            return dict(before.phase_seconds)
    return {}
