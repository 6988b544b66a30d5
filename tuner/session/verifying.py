"""The checks again, on a server that runs already."""

from __future__ import annotations

import threading

from tuner.checks.model import CheckResult
from tuner.probes.http import ServerClient
from tuner.rounds.model import Round, RoundState
from tuner.server.model import ReadyState, ServerHandle
from tuner.session import loop
from tuner.session.bench import Bench
from tuner.session.earlier import phase_estimates
from tuner.session.ends import started
from tuner.session.events import Publish
from tuner.session.swap import leave_to_others
from tuner.session.watching import Running, api_key


def verify(bench: Bench, running: Running, *, publish: Publish, cancel: threading.Event) -> list[CheckResult]:
    """Checks ``running`` and records the results in its round, where it has one; none when it does not get ready.

    Raises ``InUse`` while another living tuner is in the middle of a round on it.
    """
    leave_to_others(bench.history, running.handle)
    round_ = running.round or Round(number=0, started_at=0.0, state=RoundState.UNVERIFIED, recipe=running.handle.recipe)
    if round_.ready_seconds is None:
        ready = _adopted(bench, running.handle, round_, publish, cancel)
        if ready is None:
            return []
        round_ = ready
    client = ServerClient(running.handle.url, api_key=api_key(round_.recipe, bench.environ))
    try:
        results, readings = loop.check(client, round_, publish, cancel)
    finally:
        client.close()
    if running.round is not None:
        bench.history.save(loop.judged(round_, results, readings, cancelled=cancel.is_set()))
    return results


def _adopted(
    bench: Bench, handle: ServerHandle, round_: Round, publish: Publish, cancel: threading.Event
) -> Round | None:
    """The round of a start whose tuner went away, once its server is ready; None when it does not come to that."""
    estimates = phase_estimates(bench.history, handle.recipe)
    outcome = bench.supervisor.wait_ready(handle, publish, cancel, estimates)
    adopted = started(round_, outcome, {})
    if round_.number:
        bench.history.save(adopted)
    return adopted if outcome.state is ReadyState.READY else None
