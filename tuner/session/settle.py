"""Closes rounds whose tuner went away in the middle, from what the log and the process table still say."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuner.paths import Home
from tuner.probes.gpu import probe_for
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.rounds.search import Search
from tuner.rounds.summary import RoundSummary, summarise
from tuner.server import Supervisor
from tuner.session.runners import LOST, OPEN_STATES, runner_alive

_OPEN = Search(states=OPEN_STATES)
#: More rounds than were ever lost without a tuner coming by.
_MOST = 50


def settle(history: History, supervisor: Supervisor) -> list[Round]:
    """Closes every open round that no living tuner is running; returns the rounds it closed."""
    lost = [round_ for round_ in history.list(limit=_MOST, search=_OPEN) if not runner_alive(round_)]
    return [history.save(settled(round_, supervisor)) for round_ in lost]


def seen(round_: Round, supervisor: Supervisor) -> Round:
    """A round as it would be settled, for whoever only reads; one that is closed or still runs is as it is."""
    lost = round_.state in OPEN_STATES and not runner_alive(round_)
    return settled(round_, supervisor) if lost else round_


def seen_here(round_: Round, home: Home) -> Round:
    """As ``seen``, for commands that have no session."""
    if round_.state not in OPEN_STATES or runner_alive(round_):
        return round_
    finder = probe_for(False, home, 0)
    try:
        return settled(round_, Supervisor(home, finder))
    finally:
        finder.close()


def seen_line(line: RoundSummary, history: History, home: Home) -> RoundSummary:
    """The line of a round as ``seen``; what it changed stays as told."""
    if line.state not in OPEN_STATES or line.damaged:
        return line
    return msgspec.structs.replace(summarise(seen_here(history.get(line.number), home)), changed=line.changed)


def settled(round_: Round, supervisor: Supervisor) -> Round:
    """A round that lost its tuner, closed."""
    # Few rounds ever do.
    from tuner.session.bootlog import read_log
    from tuner.session.ends import after_start, diagnosed

    handle = next((h for h in supervisor.running(round_.recipe.port) if h.round_name == round_.name), None)
    # A tuner that was killed right after the spawn did not come to keep the path.
    log_path = round_.log_path or (handle.log_path if handle is not None else "")
    facts, tail = read_log(Path(log_path)) if log_path else (round_.boot, ())
    # What is left of a dead server is no server.
    serving = handle is not None and supervisor.came_to_run(handle)
    if serving:
        state, reason = RoundState.UNVERIFIED, f"{LOST} before the checks were done; verify runs them now."
    else:
        state, reason = RoundState.FAILED, f"{LOST} in the middle of this round, and its server is gone."
    found = diagnosed(round_, facts, tail, died=not serving) if facts else ()
    phase = round_.phase if round_.state is RoundState.CHECKING or facts is None else str(facts.reached)
    return msgspec.structs.replace(
        round_,
        state=state,
        phase=phase,
        reason=reason,
        boot=facts,
        log_path=log_path,
        findings=after_start(found, round_.findings, came_up=serving and facts is not None and facts.ready),
    )
