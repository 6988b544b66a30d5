"""One server for another: whatever speaks against it is told before the running one is touched."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tuner.findings import Finding, FindingId, Severity
from tuner.recipe.model import Recipe
from tuner.rounds.errors import DamagedRound
from tuner.rounds.history import History
from tuner.rounds.model import Round
from tuner.server import launch_spec, preflight
from tuner.server.guard import forced
from tuner.server.machine import died_of_full_disk
from tuner.server.model import InUse, LaunchSpec, ServerHandle, StartRefused
from tuner.session.bench import Bench
from tuner.session.cards import cards_of, without
from tuner.session.events import Found, Publish, ServerStopped
from tuner.session.runners import number_of, run_by_another


class BrokenOff(Exception):
    """The operator no longer wants the start; the message says what became of the server that ran."""


def start_instead(
    bench: Bench, round_: Round, publish: Publish, cancel: threading.Event, *, drain: bool, force: bool
) -> ServerHandle:
    """Stops our own server on the round's port, if there is one, and starts that of the round.

    Raises ``StartRefused``, for whatever can be known before without having touched the running server,
    ``RecipeError``, and ``BrokenOff`` after ``cancel``. ``drain``: running requests may finish. ``force``: start also
    what would surely die.
    """
    recipe = round_.recipe
    running = bench.supervisor.running(recipe.port)
    for handle in running:
        leave_to_others(bench.history, handle)
    try:
        spec = launch_spec(recipe, bench.home, bench.environ, round_.name)
    except StartRefused as refusal:
        # What else is wrong is told with it, not at the next try.
        raise StartRefused(_speaks_against(bench, recipe, None, running) or refusal.findings) from refusal
    if running:
        found = _speaks_against(bench, recipe, spec, running)
        found = forced(found) if force else found
        if (full := died_of_full_disk(bench.home)) is not None:
            # The next server would end of it, and the one that runs could not be started again.
            found = (*found, full)
        if any(finding.severity is Severity.FATAL for finding in found):
            raise StartRefused(found)
    if cancel.is_set():
        raise BrokenOff("It was broken off before the start; what ran was not touched.")
    if running:
        stop_running(bench, recipe.port, publish, drain=drain)
        if cancel.is_set():
            raise BrokenOff("It was broken off when the server that ran was stopped: none was started.")
    return bench.supervisor.start(spec, on_finding=lambda finding: publish(Found(finding)), force=force)


def _speaks_against(
    bench: Bench, recipe: Recipe, spec: LaunchSpec | None, running: Sequence[ServerHandle]
) -> tuple[Finding, ...]:
    """A preflight as it would be without our own server on the port, which is stopped before the start."""
    gpus = without(bench.gpu.read(), running)
    indexes = [gpu.index for gpu in cards_of(recipe, bench.environ, gpus)]
    found = preflight(
        recipe,
        spec,
        gpus,
        bench.home,
        driver=bench.gpu.driver_version(),
        apart=bench.gpu.peers_apart(indexes),
    )
    return tuple(f for f in found if not (running and f.id is FindingId.DOUBLE_START))


def leave_to_others(history: History, handle: ServerHandle) -> None:
    """Raises ``InUse`` when another living tuner is in the middle of a round on this server: it may still load."""
    number = number_of(handle.round_name)
    try:
        theirs = history.find(number) if number is not None else None
    except DamagedRound:
        # Nobody can be in the middle of a round that nobody can read.
        return
    if theirs is None or not run_by_another(theirs):
        return
    raise InUse(
        (
            Finding(
                id=FindingId.DOUBLE_START,
                severity=Severity.FATAL,
                title=f"Another tuner (process {theirs.runner_pid}) is in the middle of {theirs.name} here.",
                evidence=(f"{theirs.name}: {theirs.state}, server process {handle.pid}, port {handle.port}",),
                remedy="Wait for that round to end, or stop its server with tuner stop --force.",
            ),
        )
    )


def stop_running(bench: Bench, port: int, publish: Publish, *, drain: bool) -> None:
    """Stops our own servers on the port. Raises ``InUse``, and ``StartRefused`` when one cannot be stopped."""
    for handle in bench.supervisor.running(port):
        # Since the last look another tuner may have swapped the server itself.
        leave_to_others(bench.history, handle)
        outcome = bench.supervisor.stop(handle, publish, drain)
        publish(ServerStopped(outcome))
        if not outcome.stopped:
            raise StartRefused(
                (
                    Finding(
                        id=FindingId.DOUBLE_START,
                        severity=Severity.FATAL,
                        title="The running server could not be stopped.",
                        evidence=(outcome.reason,),
                        remedy="Look at the processes named and stop them by hand before another start.",
                    ),
                )
            )
