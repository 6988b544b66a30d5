"""Which rounds died the same way, and which one is the last that was good. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tuner.findings import Finding, FindingId, Severity
from tuner.recipe.model import Recipe
from tuner.redact import HIDDEN, redact
from tuner.rounds.model import Round, RoundState
from tuner.session.needs import without_wishes
from tuner.session.runners import LOST

#: Deaths in a row after which the same start is not tried again.
IN_A_ROW = 2
_SHOWN_LINES = 12
#: How a refusal begins that rests on earlier deaths alone.
_DIED = "This recipe died"
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?", re.IGNORECASE)
#: Rounds that tell nothing of whether the recipe can live.
_SILENT = (RoundState.REFUSED, RoundState.ABORTED, RoundState.STARTING, RoundState.CHECKING)


def same_recipe(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes start the same server, whatever is wished of it, as far as kept rounds tell (no secrets)."""
    return bool(_start(one) == _start(other))


def _start(recipe: Recipe) -> Any:
    told = {
        "flags": recipe.flags,
        "environment": recipe.environment,
        "python": recipe.python,
        "tuner": without_wishes(recipe.tuner),
    }
    return redact(msgspec.to_builtins(told))


def hidden_flags(recipe: Recipe) -> list[str]:
    """Flags whose value was a secret itself, which no round keeps."""
    return [name for name, value in recipe.flags.items() if value == HIDDEN]


def with_secrets(kept: Recipe, given: Recipe) -> Recipe:
    """The kept recipe with the secrets of ``given``, as far as both name the same flags."""
    return kept.with_flags({name: given.flags[name] for name in hidden_flags(kept) if name in given.flags})


def crash_loop(before: Iterable[Round], round_: Round) -> tuple[Round, ...]:
    """The last deaths of the recipe of ``round_``, newest first, when there are two alike and nothing has changed.

    ``before`` are earlier rounds, newest first. Other drivers, GPUs or SGLang versions are a change.
    """
    deaths: list[Round] = []
    for earlier in before:
        if earlier.number == round_.number or not same_recipe(earlier.recipe, round_.recipe) or _silent(earlier):
            continue
        if earlier.state is not RoundState.FAILED or earlier.conditions != round_.conditions:
            return ()
        if deaths and _cause(earlier) != _cause(deaths[0]):
            return ()
        deaths.append(earlier)
        if len(deaths) == IN_A_ROW:
            return tuple(deaths)
    return ()


def _silent(round_: Round) -> bool:
    return round_.state in _SILENT or round_.reason.startswith(LOST)


def _cause(round_: Round) -> tuple[str, str]:
    """What a round died of and where; numbers differ from one death to the next."""
    finding = _fatal(round_)
    return round_.phase, str(finding.id) if finding is not None else _NUMBERS.sub("#", round_.reason)


def _fatal(round_: Round) -> Finding | None:
    return next((f for f in round_.findings if f.severity is Severity.FATAL), None)


def refusal(deaths: Sequence[Round], log_tail: Sequence[str]) -> Finding:
    """Why a third start of the same recipe is refused, with the end of the last death's log."""
    cause = _fatal(deaths[0])
    names = ", ".join(round_.name for round_ in reversed(deaths))
    remedy = f"{cause.remedy} " if cause is not None and cause.remedy else ""
    return Finding(
        id=cause.id if cause is not None else FindingId.UNKNOWN,
        severity=Severity.FATAL,
        title=f"{_DIED} {len(deaths)} times in a row in the same way ({names}, {deaths[0].phase}): "
        f"{cause.title if cause is not None else deaths[0].reason}",
        evidence=tuple(line for line in log_tail if line.strip())[-_SHOWN_LINES:],
        remedy=f"{remedy}Change the recipe, or start it all the same with --force.",
        flags=cause.flags if cause is not None else {},
    )


def refused_for_deaths(round_: Round) -> bool:
    """Whether a round was not started because its recipe had died before, which ``force`` overrules."""
    return round_.state is RoundState.REFUSED and any(f.title.startswith(_DIED) for f in round_.findings)


def last_good(before: Iterable[Round], recipe: Recipe) -> Round | None:
    """The newest round on the port of ``recipe`` that was verified, not rejected, and is not that very recipe.

    A stand-in is never taken for a real server, nor the other way round. ``before`` is newest first.
    """
    for round_ in before:
        if (
            round_.state is RoundState.VERIFIED
            and round_.verdict != "reject"
            and round_.simulated == recipe.simulated
            and round_.recipe.port == recipe.port
            and not same_recipe(round_.recipe, recipe)
        ):
            return round_
    return None
