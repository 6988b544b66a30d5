"""Closes rounds whose tuner went away in the middle, from what the log and the process table still say."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuner.doctor import diagnose_log
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.server import Supervisor
from tuner.session.bootlog import read_log
from tuner.session.runners import OPEN_STATES, runner_alive


def settle(history: History, supervisor: Supervisor) -> list[Round]:
    """Closes every open round that no living tuner is running; returns the rounds it closed."""
    closed = []
    for round_ in history.list(limit=50):
        if round_.state in OPEN_STATES and not runner_alive(round_):
            settled = _settled(round_, supervisor)
            history.save(settled)
            closed.append(settled)
    return closed


def _settled(round_: Round, supervisor: Supervisor) -> Round:
    facts, tail = read_log(Path(round_.log_path)) if round_.log_path else (round_.boot, ())
    serving = any(handle.round_name == round_.name for handle in supervisor.running(round_.recipe.port))
    if serving:
        state, reason = RoundState.UNVERIFIED, "The tuner ended before the checks were done; verify runs them now."
    else:
        state, reason = RoundState.FAILED, "The tuner ended in the middle of this round, and its server is gone."
    found = diagnose_log(facts, tail, died=not serving) if facts else ()
    return msgspec.structs.replace(
        round_,
        state=state,
        phase=str(facts.reached) if facts else round_.phase,
        reason=reason,
        boot=facts,
        findings=(*round_.findings, *found),
    )
