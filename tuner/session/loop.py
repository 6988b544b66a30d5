"""One round: plan, stop what runs, start, check, record. Every step is in the history before the next begins."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tuner import __version__
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.quick import QUICK_SET, quick_set, warm_up
from tuner.checks.warmup import WarmUp
from tuner.doctor import diagnose_plan, diagnose_round
from tuner.doctor.merging import merged
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics import ReadingsWindow
from tuner.metrics.model import Readings
from tuner.modelcard import ModelError
from tuner.planner import plan as make_plan
from tuner.planner.conditions import conditions
from tuner.planner.model import CannotPlan, PlanInputs
from tuner.planner.preflight import flag_conflicts
from tuner.probes.http import ServerClient
from tuner.recipe.checking import named_checks
from tuner.recipe.model import Recipe, RecipeError
from tuner.rounds.errors import HistoryError
from tuner.rounds.memory import peak_mib
from tuner.rounds.model import FIRST_ANSWERS, Round, RoundState
from tuner.server.model import ReadyState, ServerHandle, StartRefused
from tuner.serverlog.model import Phase
from tuner.session.bench import Bench
from tuner.session.bootlog import read_log
from tuner.session.cards import cards_of
from tuner.session.deaths import crash_loop
from tuner.session.deaths import refusal as died_before
from tuner.session.effective import effective_values
from tuner.session.ends import CHECKING, died_while_checked, not_ours, perhaps_of_full_disk, refused, started
from tuner.session.events import (
    CheckEnded,
    CheckStarted,
    Found,
    PhaseChanged,
    Planned,
    Publish,
    RoundClosed,
    RoundOpened,
    ServerStopped,
)
from tuner.session.fingerprint import fingerprint
from tuner.session.gate import refusals, weighed
from tuner.session.runners import LOST
from tuner.session.surroundings import kept_environment
from tuner.session.swap import BrokenOff, start_instead, stop_running
from tuner.session.vram import VramWatch
from tuner.session.watching import api_key, poll

#: Rounds looked back upon for deaths of the same recipe.
_LOOK_BACK = 50
#: Longer than any set of checks: their readings cover all of them.
_CHECKS_WINDOW_S = 3600.0


def run_round(
    bench: Bench,
    recipe: Recipe,
    *,
    inputs: Callable[[], PlanInputs],
    note: str,
    publish: Publish,
    cancel: threading.Event,
    estimates: Mapping[str, float],
    stop_after: bool,
    force: bool = False,
    drain: bool = True,
) -> Round:
    """Runs one round and returns it as kept. Failures are rounds too; only a history that cannot be written raises.

    A start that SGLang would surely refuse is refused here, before the running server is touched, and so is one that
    died the last two times in the same way; ``force`` starts it all the same. ``drain``: requests of the server that
    is replaced may finish.
    """
    round_ = bench.history.open_round(_draft(bench, recipe, note))
    publish(RoundOpened(round_))
    try:
        round_ = _run(bench, round_, inputs, publish, cancel, estimates, force=force, drain=drain)
    except HistoryError:
        raise
    except BaseException as error:
        # Whatever ends a round early (Ctrl-C included), the history says so; the error still goes on.
        ended = msgspec.structs.replace(
            bench.history.get(round_.number),
            state=RoundState.FAILED,
            reason=f"{LOST} in the middle: {type(error).__name__}.",
        )
        bench.history.save(ended)
        raise
    bench.history.save(round_)
    if stop_after:
        try:
            stop_running(bench, recipe.port, publish, drain=drain)
        except StartRefused as refusal:
            for finding in refusal.findings:
                publish(Found(finding))
    publish(RoundClosed(round_))
    return round_


def _draft(bench: Bench, recipe: Recipe, note: str) -> Round:
    gpus = cards_of(recipe, bench.environ, bench.gpu.read())
    return Round(
        number=0,
        started_at=time.time(),
        state=RoundState.STARTING,
        phase=Phase.LAUNCHING,
        simulated=recipe.simulated,
        recipe=recipe,
        note=note,
        gpu_name=gpus[0].name if gpus else None,
        driver_version=bench.gpu.driver_version(),
        tuner_version=__version__,
        fingerprint=fingerprint(recipe),
        environment=kept_environment(recipe, bench.environ),
        runner_pid=os.getpid(),
        runner_created=psutil.Process().create_time(),
    )


def _run(
    bench: Bench,
    round_: Round,
    inputs: Callable[[], PlanInputs],
    publish: Publish,
    cancel: threading.Event,
    estimates: Mapping[str, float],
    *,
    force: bool,
    drain: bool,
) -> Round:
    round_ = _planned(round_, inputs, publish)
    bench.history.save(round_)
    if not force:
        if surely := refusals(round_.findings):
            return refused(round_, surely, publish)
        if deaths := crash_loop(bench.history.list(limit=_LOOK_BACK, simulated=round_.simulated), round_):
            _, tail = read_log(Path(deaths[0].log_path))
            return refused(round_, (died_before(deaths, tail),), publish)
    try:
        handle = start_instead(bench, round_, publish, cancel, drain=drain, force=force)
    except StartRefused as refusal:
        return refused(round_, refusal.findings, publish)
    except RecipeError as error:
        return msgspec.structs.replace(round_, state=RoundState.REFUSED, phase="preflight", reason=str(error))
    except BrokenOff as end:
        return msgspec.structs.replace(round_, state=RoundState.ABORTED, phase="preflight", reason=str(end))
    round_ = msgspec.structs.replace(round_, log_path=handle.log_path)
    bench.history.save(round_)
    before = next(iter(handle.vram_before_mib.values()), None)
    with VramWatch(lambda: _used_mib(bench, round_.recipe)) as vram:
        outcome = bench.supervisor.wait_ready(handle, publish, cancel, estimates)
        ready_mib = vram.used_mib() if outcome.state is ReadyState.READY else None
        peak = peak_mib(vram.peak_mib, _only_card_mib(bench, round_.recipe), outcome.facts)
        levels = {"before": before, "peak": peak, "ready": ready_mib}
    round_ = started(round_, outcome, {k: v for k, v in levels.items() if v is not None})
    if outcome.state is ReadyState.DIED:
        round_ = perhaps_of_full_disk(bench.home, round_)
    if outcome.state is not ReadyState.READY:
        for finding in round_.findings:
            publish(Found(finding))
        if outcome.state is not ReadyState.DIED:
            publish(ServerStopped(bench.supervisor.stop(handle, publish, drain=False)))
        return round_
    bench.history.save(round_)
    if outcome.unverified:
        publish(Found(not_ours(outcome.unverified)))
    return _checked(bench, round_, handle, publish, cancel, estimates)


def _planned(round_: Round, inputs: Callable[[], PlanInputs], publish: Publish) -> Round:
    known: PlanInputs | None = None
    try:
        known = inputs()
        plan = make_plan(known)
    except (CannotPlan, ModelError) as error:
        unplanned = Finding(
            id=FindingId.UNKNOWN,
            severity=Severity.NOTE,
            title="This start could not be planned.",
            evidence=(str(error),),
            remedy="The round runs all the same; its pools are read from the log.",
        )
        conflicts = flag_conflicts(known) if known is not None else ()
        return msgspec.structs.replace(round_, findings=(*weighed(conflicts, None), unplanned))
    found = weighed(diagnose_plan(known, plan), plan)
    plan = msgspec.structs.replace(plan, findings=found)
    publish(Planned(plan))
    return msgspec.structs.replace(
        round_,
        plan=plan,
        # What is only worth knowing stays with the plan.
        findings=refusals(found),
        sglang_version=known.sglang_version,
        conditions=conditions(
            known.shape,
            known.sglang_version,
            known.environment,
            driver_version=round_.driver_version,
            gpu_name=round_.gpu_name,
        ),
    )


def _used_mib(bench: Bench, recipe: Recipe) -> int | None:
    cards = cards_of(recipe, bench.environ, bench.gpu.read())
    return cards[0].used_mib if cards else None


def _only_card_mib(bench: Bench, recipe: Recipe) -> int | None:
    """The whole memory of the card, MiB; None for a server on several."""
    cards = cards_of(recipe, bench.environ, bench.gpu.read())
    return cards[0].total_mib if len(cards) == 1 else None


def _checked(
    bench: Bench,
    round_: Round,
    handle: ServerHandle,
    publish: Publish,
    cancel: threading.Event,
    estimates: Mapping[str, float],
) -> Round:
    client = ServerClient(handle.url, api_key=api_key(round_.recipe, bench.environ))
    try:
        info = client.server_info()
        known: dict[str, Any] = info if isinstance(info, dict) else {}
        effective = effective_values(round_.recipe.flags, known, round_.boot)
        version = str(known["version"]) if known.get("version") else round_.sglang_version
        round_ = msgspec.structs.replace(round_, effective=effective, sglang_version=version)
        began = time.monotonic()
        warmed = _warm(client, round_, publish, cancel, estimates)
        phases = {**round_.phase_seconds, FIRST_ANSWERS: time.monotonic() - began}
        round_ = msgspec.structs.replace(round_, phase_seconds=phases, first_answers_s=warmed.seconds)
        bench.history.save(round_)
        results, readings = check(client, round_, publish, cancel)
    finally:
        client.close()
    round_ = judged(round_, results, readings, cancelled=cancel.is_set())
    return round_ if round_.state is RoundState.VERIFIED else died_while_checked(bench, round_, handle, publish)


def _warm(
    client: ServerClient, round_: Round, publish: Publish, cancel: threading.Event, estimates: Mapping[str, float]
) -> WarmUp:
    began = time.monotonic()
    total = sum(estimates.values())

    def said(line: str) -> None:
        passed = time.monotonic() - began
        publish(
            PhaseChanged(
                phase=FIRST_ANSWERS,
                elapsed_s=passed,
                total_s=(round_.ready_seconds or 0.0) + passed,
                estimate_s=estimates.get(FIRST_ANSWERS),
                total_estimate_s=total or None,
                last_line=line,
            )
        )

    said("")
    return warm_up(client, model=round_.recipe.served_name, on_progress=said, cancel=cancel)


def check(
    client: ServerClient, round_: Round, publish: Publish, cancel: threading.Event
) -> tuple[list[CheckResult], Readings | None]:
    """The quick set of checks on the server of ``round_``, and the server's readings over their time."""
    window = ReadingsWindow(seconds=_CHECKS_WINDOW_S)
    poll(client, window)
    results = quick_set(
        client,
        model=round_.recipe.served_name,
        facts=round_.boot,
        plan=round_.plan,
        flags={**round_.recipe.flags, **round_.effective},
        on_started=lambda name, number, of: publish(CheckStarted(name, number, of)),
        on_ended=lambda result: publish(CheckEnded(result)),
        cancel=cancel,
        names=named_checks(asked) if (asked := round_.recipe.tuner.checks) else QUICK_SET,
    )
    return results, poll(client, window)


def judged(round_: Round, results: list[CheckResult], readings: Readings | None, *, cancelled: bool) -> Round:
    """The round with its checks: verified only when every one passed that the recipe does not leave out.

    Where a recipe names its checks, the others are run by ``verify --full`` alone and decide nothing.
    """
    asked = round_.recipe.tuner.checks
    decisive = [r for r in results if not asked or r.name in named_checks(asked)]
    missed = [r for r in decisive if r.verdict is not Verdict.PASS]
    state = RoundState.VERIFIED
    reason = ""
    if cancelled:
        state, reason = RoundState.UNVERIFIED, "The checks were broken off."
    elif missed or not decisive:
        state = RoundState.UNVERIFIED
        reason = "; ".join(f"{r.name}: {r.reason}" for r in missed) or "No check ran."
    found = diagnose_round(round_.recipe.flags, round_.effective, round_.boot, beside_log=True) if round_.boot else ()
    return msgspec.structs.replace(
        round_,
        state=state,
        phase=CHECKING if state is not RoundState.VERIFIED else "",
        reason=reason,
        checks=tuple(results),
        readings=readings,
        findings=merged(round_.findings, found),
    )
