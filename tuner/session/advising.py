"""Gathers what advice stands on: the round, readings of all rounds with its flags, what was tried, what is needed."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.advice import Question, Tried, Usage, usage_of
from tuner.advice.confirm import same_start
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.prefix import PREFIX_REUSE
from tuner.planner.model import PlanInputs
from tuner.planner.need import Need
from tuner.planner.resolve import resolve
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.session.needs import stated_need

#: Rounds looked back upon: the newest, and beyond them nothing is about today's server.
_LOOK_BACK = 50
#: Rounds with other flags that are asked what the work is.
_LOOK_BACK_FOR_WORK = 10
_NOT_UP = (RoundState.FAILED, RoundState.REFUSED)


def advised_round(history: History, running: Round | None) -> Round | None:
    """The round to advise on when none is named: the running one, else the newest that came up, else the newest."""
    if running is not None:
        return running
    rounds = history.list(limit=_LOOK_BACK)
    return next((r for r in rounds if r.ready_seconds is not None), rounds[0] if rounds else None)


def question(history: History, round_: Round, inputs: PlanInputs, need: Need | None = None) -> Question:
    """What to ask the adviser about ``round_``; ``inputs`` are those of its recipe, calibrated.

    ``need`` None: the one that the recipe states, else the adviser derives it from readings.
    Raises HistoryError, and CannotPlan where the flags cannot be read.
    """
    others = [
        other
        for other in history.list(limit=_LOOK_BACK, simulated=round_.simulated)
        if other.recipe.model_path == round_.recipe.model_path and other.number != round_.number
    ]
    alike = sorted(
        [round_, *(o for o in others if same_start(o.recipe.flags, round_.recipe.flags))], key=lambda r: r.number
    )
    settings = round_.recipe.tuner
    usage = usage_of(
        ((r.name, history.samples(r.number)) for r in alike),
        slots_per_request=resolve(inputs).strategy.slots_per_request,
    )
    return Question(
        inputs=inputs,
        usage=usage,
        before=Usage() if usage.tells else _before(history, others),
        need=need if need is not None else stated_need(settings),
        physics=next((r.physics for r in reversed(alike) if r.physics is not None), None),
        prefix_reused=_prefix_reused(round_.checks),
        slo_ttft_s=settings.slo_ttft_s,
        slo_itl_s=settings.slo_itl_ms / 1000 if settings.slo_itl_ms is not None else None,
        tried=tuple(
            # What was refused before it started says nothing of the flags: a port was taken, a card was busy.
            Tried(name=o.name, flags=o.recipe.flags, bad=o.state is RoundState.FAILED or o.verdict == "reject")
            for o in others
        ),
        failed=(round_.reason or round_.phase or str(round_.state)) if round_.state in _NOT_UP else "",
    )


def _before(history: History, others: Sequence[Round]) -> Usage:
    """How the newest round with other flags was used whose readings tell."""
    for other in others[:_LOOK_BACK_FOR_WORK]:
        usage = usage_of([(other.name, history.samples(other.number))])
        if usage.tells:
            return usage
    return Usage()


def _prefix_reused(checks: Sequence[CheckResult]) -> bool | None:
    found = next((check.verdict for check in checks if check.name == PREFIX_REUSE), None)
    return None if found is None or found is Verdict.CANNOT_TELL else found is Verdict.PASS
