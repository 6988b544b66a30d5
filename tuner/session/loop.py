"""One round: plan, stop what runs, start, check, record. Every step is in the history before the next begins."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import psutil

from tuner import __version__
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.quick import quick_set, warm_up
from tuner.doctor import diagnose_log, diagnose_plan, diagnose_round
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics import MetricsError, ReadingsWindow, parse_metrics
from tuner.metrics.model import Reach, Readings
from tuner.modelcard import ModelError
from tuner.paths import Home
from tuner.planner import plan as make_plan
from tuner.planner.accuracy import accuracy
from tuner.planner.conditions import conditions
from tuner.planner.model import CannotPlan, PlanInputs
from tuner.planner.preflight import flag_conflicts
from tuner.probes.gpu import GpuProbe
from tuner.probes.http import ServerClient
from tuner.recipe.model import Recipe, RecipeError
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.server import Supervisor, launch_spec, preflight
from tuner.server.model import ReadyOutcome, ReadyState, ServerHandle, StartRefused
from tuner.serverlog.model import Phase
from tuner.session.cards import cards_of
from tuner.session.effective import effective_values
from tuner.session.events import (
    CheckEnded,
    CheckStarted,
    Event,
    Found,
    PhaseChanged,
    Planned,
    RoundClosed,
    RoundOpened,
    ServerStopped,
)
from tuner.session.gate import refusals, weighed
from tuner.session.runners import number_of, run_by_another
from tuner.session.vram import VramWatch

Publish = Callable[[Event], None]

#: Findings that our own running server causes in a preflight: it is stopped before the start.
_OURS = frozenset({FindingId.DOUBLE_START, FindingId.PORT_IN_USE, FindingId.GPU_BUSY})
_WARMING = "warming up"
_CHECKING = "checks"
#: Longer than any set of checks: their readings cover all of them.
_CHECKS_WINDOW_S = 3600.0


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What a round works with."""

    home: Home
    history: History
    supervisor: Supervisor
    gpu: GpuProbe
    environ: Mapping[str, str]


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
) -> Round:
    """Runs one round and returns it as kept. Failures are rounds too; only a history that cannot be written raises.

    A start that SGLang would surely refuse is refused here, before the running server is touched; ``force`` starts
    it all the same.
    """
    round_ = bench.history.open_round(_draft(bench, recipe, note))
    publish(RoundOpened(round_))
    try:
        round_ = _run(bench, round_, inputs, publish, cancel, estimates, force)
        if stop_after:
            _stop_running(bench, recipe.port, publish)
    except BaseException as error:
        # Whatever ends a round early (Ctrl-C included), the history says so; the error still goes on.
        ended = msgspec.structs.replace(
            round_, state=RoundState.FAILED, reason=f"The tuner stopped in the middle: {type(error).__name__}."
        )
        bench.history.save(ended)
        raise
    bench.history.save(round_)
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
    force: bool,
) -> Round:
    round_ = _planned(round_, inputs, publish)
    bench.history.save(round_)
    surely = () if force else refusals(round_.findings)
    if surely:
        for finding in surely:
            publish(Found(finding))
        return msgspec.structs.replace(
            round_,
            state=RoundState.REFUSED,
            phase="preflight",
            reason=" ".join(f"{f.title} {f.remedy}".strip() for f in surely),
        )
    try:
        handle = _start(bench, round_, publish)
    except StartRefused as refusal:
        for finding in refusal.findings:
            publish(Found(finding))
        fatal = [f for f in refusal.findings if f.severity is Severity.FATAL] or list(refusal.findings)
        return msgspec.structs.replace(
            round_,
            state=RoundState.REFUSED,
            phase="preflight",
            reason=" ".join(f"{f.title} {f.remedy}".strip() for f in fatal),
            findings=(*refusal.findings, *round_.findings),
        )
    except RecipeError as error:
        return msgspec.structs.replace(round_, state=RoundState.REFUSED, phase="preflight", reason=str(error))
    round_ = msgspec.structs.replace(round_, log_path=handle.log_path)
    bench.history.save(round_)
    before = next(iter(handle.vram_before_mib.values()), None)
    with VramWatch(lambda: _used_mib(bench, round_.recipe)) as vram:
        outcome = bench.supervisor.wait_ready(handle, publish, cancel, estimates)
        ready_mib = vram.used_mib() if outcome.state is ReadyState.READY else None
        levels = {"before": before, "peak": vram.peak_mib, "ready": ready_mib}
    round_ = _started(round_, outcome, {k: v for k, v in levels.items() if v is not None})
    if outcome.state is not ReadyState.READY:
        for finding in round_.findings:
            publish(Found(finding))
        if outcome.state is not ReadyState.DIED:
            publish(ServerStopped(bench.supervisor.stop(handle, publish, drain=False)))
        return round_
    bench.history.save(round_)
    return _checked(bench, round_, handle, publish, cancel)


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


def _start(bench: Bench, round_: Round, publish: Publish) -> ServerHandle:
    """Refuses before the running server is touched whatever can be known before, then swaps the servers."""
    spec = launch_spec(round_.recipe, bench.home, bench.environ, round_.name)
    running = bench.supervisor.running(round_.recipe.port)
    for handle in running:
        _leave_to_others(bench, handle)
    if running:
        found = preflight(round_.recipe, spec, bench.gpu.read(), bench.home)
        foreign = tuple(f for f in found if f.id not in _OURS and f.severity is Severity.FATAL)
        if foreign:
            raise StartRefused(foreign)
        _stop_running(bench, round_.recipe.port, publish)
    return bench.supervisor.start(spec, on_finding=lambda finding: publish(Found(finding)))


def _leave_to_others(bench: Bench, handle: ServerHandle) -> None:
    """Refuses to swap a server in the middle of another tuner's round: it may still be loading."""
    number = number_of(handle.round_name)
    theirs = bench.history.find(number) if number is not None else None
    if theirs is None or not run_by_another(theirs):
        return
    raise StartRefused(
        (
            Finding(
                id=FindingId.DOUBLE_START,
                severity=Severity.FATAL,
                title=f"Another tuner (process {theirs.runner_pid}) is in the middle of {theirs.name} here.",
                evidence=(f"{theirs.name}: {theirs.state}, server process {handle.pid}, port {handle.port}",),
                remedy="Wait for that round to end, or stop its server with tuner stop.",
            ),
        )
    )


def _used_mib(bench: Bench, recipe: Recipe) -> int | None:
    cards = cards_of(recipe, bench.environ, bench.gpu.read())
    return cards[0].used_mib if cards else None


def _stop_running(bench: Bench, port: int, publish: Publish) -> None:
    for handle in bench.supervisor.running(port):
        outcome = bench.supervisor.stop(handle, publish)
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


def _started(round_: Round, outcome: ReadyOutcome, vram_mib: dict[str, int]) -> Round:
    facts = outcome.facts
    found = diagnose_log(facts, outcome.last_lines, died=outcome.state is ReadyState.DIED)
    state = {
        ReadyState.READY: RoundState.CHECKING,
        ReadyState.DIED: RoundState.FAILED,
        ReadyState.TIMED_OUT: RoundState.FAILED,
        ReadyState.ABORTED: RoundState.ABORTED,
    }[outcome.state]
    ended = outcome.state is not ReadyState.READY
    worst = next((f for f in found if f.severity is Severity.FATAL), None)
    reason = (f"{worst.title} {worst.remedy}".strip() if worst and ended else outcome.reason) if ended else ""
    return msgspec.structs.replace(
        round_,
        state=state,
        phase=_last_phase(outcome) if ended else _CHECKING,
        reason=reason,
        boot=facts,
        phase_seconds=outcome.phase_seconds,
        ready_seconds=None if ended else outcome.seconds,
        vram_mib=vram_mib,
        accuracy=accuracy(round_.plan, facts) if round_.plan is not None and facts.kv_tokens is not None else None,
        findings=(*round_.findings, *found),
        sglang_version=facts.version if facts.version and "-" not in facts.version else round_.sglang_version,
    )


def _last_phase(outcome: ReadyOutcome) -> str:
    phases = [p for p in outcome.phase_seconds if p not in (Phase.DEAD, Phase.STOPPED, Phase.STOPPING)]
    return phases[-1] if phases else str(outcome.facts.phase)


def _checked(bench: Bench, round_: Round, handle: ServerHandle, publish: Publish, cancel: threading.Event) -> Round:
    client = ServerClient(handle.url, api_key=api_key(round_.recipe, bench.environ))
    try:
        info = client.server_info()
        known: dict[str, Any] = info if isinstance(info, dict) else {}
        effective = effective_values(round_.recipe.flags, known, round_.boot)
        version = str(known["version"]) if known.get("version") else round_.sglang_version
        round_ = msgspec.structs.replace(round_, effective=effective, sglang_version=version)
        began = time.monotonic()
        _warm(client, round_, publish, cancel)
        phases = {**round_.phase_seconds, _WARMING: time.monotonic() - began}
        round_ = msgspec.structs.replace(round_, phase_seconds=phases)
        bench.history.save(round_)
        results, readings = check(client, round_, publish, cancel)
    finally:
        client.close()
    return judged(round_, results, readings, cancelled=cancel.is_set())


def _warm(client: ServerClient, round_: Round, publish: Publish, cancel: threading.Event) -> None:
    began = time.monotonic()

    def said(line: str) -> None:
        passed = time.monotonic() - began
        publish(PhaseChanged(phase=_WARMING, elapsed_s=passed, total_s=passed, last_line=line))

    said("")
    warm_up(client, model=_model_name(round_.recipe), on_progress=said, cancel=cancel)


def check(
    client: ServerClient, round_: Round, publish: Publish, cancel: threading.Event
) -> tuple[list[CheckResult], Readings | None]:
    """The quick set of checks on the server of ``round_``, and the server's readings over their time."""
    window = ReadingsWindow(seconds=_CHECKS_WINDOW_S)
    look(client, window)
    results = quick_set(
        client,
        model=_model_name(round_.recipe),
        facts=round_.boot,
        plan=round_.plan,
        flags={**round_.recipe.flags, **round_.effective},
        on_started=lambda name, number, of: publish(CheckStarted(name, number, of)),
        on_ended=lambda result: publish(CheckEnded(result)),
        cancel=cancel,
    )
    return results, look(client, window)


def judged(round_: Round, results: list[CheckResult], readings: Readings | None, *, cancelled: bool) -> Round:
    """The round with its checks: verified only when every one passed."""
    missed = [r for r in results if r.verdict is not Verdict.PASS]
    state = RoundState.VERIFIED
    reason = ""
    if cancelled:
        state, reason = RoundState.UNVERIFIED, "The checks were broken off."
    elif missed or not results:
        state = RoundState.UNVERIFIED
        reason = "; ".join(f"{r.name}: {r.reason}" for r in missed) or "No check ran."
    found = diagnose_round(round_.recipe.flags, round_.effective, round_.boot) if round_.boot else ()
    known = {f.id for f in round_.findings}
    return msgspec.structs.replace(
        round_,
        state=state,
        phase=_CHECKING if state is not RoundState.VERIFIED else "",
        reason=reason,
        checks=tuple(results),
        readings=readings,
        findings=(*round_.findings, *(f for f in found if f.id not in known)),
    )


def look(client: ServerClient, window: ReadingsWindow, info: dict[str, Any] | None = None) -> Readings:
    """One poll of the server, taken into ``window``; ``info`` is its ``/server_info``, for what metrics lack."""
    page, loads = client.metrics(), client.loads()
    try:
        metrics = page if isinstance(page, Reach) else parse_metrics(page)
    except MetricsError:
        metrics = Reach.NONSENSE
    return window.add(time.time(), metrics, loads, info)


def api_key_variable(recipe: Recipe) -> str | None:
    """Name of the environment variable that holds the server's key, where the recipe names one."""
    asked = recipe.flags.get("api_key")
    return asked[2:-1] if isinstance(asked, str) and asked.startswith("${") and asked.endswith("}") else None


def api_key(recipe: Recipe, environ: Mapping[str, str]) -> str | None:
    """The server's key, read from the environment variable that the recipe names; never kept."""
    variable = api_key_variable(recipe)
    return environ.get(variable) if variable else None


def _model_name(recipe: Recipe) -> str:
    return str(recipe.flags.get("served_model_name") or recipe.model_path)
