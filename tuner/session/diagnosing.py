"""Gathers what the doctor judges: the running server, or files, with the recipe where one is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tuner.doctor import (
    Remedied,
    Watched,
    diagnose_cards,
    diagnose_log,
    diagnose_plan,
    diagnose_readings,
    diagnose_roles,
    diagnose_round,
    merged,
    with_remedies,
)
from tuner.findings import Finding, FindingId, Severity
from tuner.measure.model import Physics
from tuner.metrics import MetricsError, ReadingsWindow, parse_metrics
from tuner.metrics.model import GpuReading, Reach, Readings
from tuner.modelcard import ModelError
from tuner.planner import plan as make_plan
from tuner.planner.model import HEADROOM_GIB, CannotPlan, PlanInputs
from tuner.recipe.model import Recipe
from tuner.rounds.memory import by_the_card_gib
from tuner.rounds.model import Round, RoundState
from tuner.server.family import family
from tuner.server.model import ServerHandle
from tuner.serverlog.model import BootFacts
from tuner.session.bootlog import read_log
from tuner.session.effective import effective_values
from tuner.session.ends import diagnosed
from tuner.session.needs import stated_need
from tuner.session.runners import OPEN_STATES
from tuner.session.session import Session
from tuner.session.settle import seen_here

#: Longest metrics page that is read, bytes; as much as of a server (``ServerClient``).
_LONGEST_PAGE = 16 << 20
#: Between the two looks that rates need.
_LOOK_APART_S = 1.0
#: Kept readings that are looked back upon.
_LOOK_BACK_S = 3600.0
#: What a metrics route answers where there is none (FastAPI).
_NOT_FOUND = '{"detail":"Not Found"}'
#: Rounds that had a server, and those whose server was ready.
_STARTED = (RoundState.VERIFIED, RoundState.UNVERIFIED, RoundState.FAILED, RoundState.ABORTED)
_CAME_UP = (RoundState.VERIFIED, RoundState.UNVERIFIED)
#: Differences from which on a log is not one of the recipe.
_ANOTHER_COMMAND = 3


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, in words, and what was found, worst first.

    ``unplanned`` says why remedies could not be planned; "" when they were, or when there is no recipe.
    """

    of: str
    findings: tuple[Remedied, ...] = ()
    unplanned: str = ""


class Unreadable(Exception):
    """A file that cannot be read; the message is one sentence for the operator."""


def diagnose_running(session: Session, wait: Callable[[float], None] = time.sleep) -> Diagnosis:
    """Looks at the running server: its log, its readings of the last hour and now, its cards.

    Where none runs, at the last round if it failed, at a server that died since, and at who holds the cards. Takes a
    second.
    """
    look = session.look()
    if look.running is None:
        return _without_server(session, look.gpus)
    wait(_LOOK_APART_S)
    look = session.look()
    running = look.running
    if running is None:
        return _without_server(session, look.gpus)
    handle, round_ = running.handle, running.round
    recipe, headroom = handle.recipe, _headroom(handle.recipe)
    facts, tail = read_log(Path(handle.log_path))
    samples = _kept(session, round_) + ([look.readings] if look.readings is not None else [])
    by_log: tuple[Finding, ...] = ()
    if facts is not None:
        by_log = diagnose_log(
            facts,
            tail,
            headroom_gib=headroom,
            asked=recipe.flags,
            card_gib=_card_gib(look.gpus),
            counted_on_gib=_counted_on_gib(round_),
            ready_free_gib=by_the_card_gib(round_) if round_ is not None else None,
            quiet_s=_quiet_s(Path(handle.log_path)),
        )
    effective = round_.effective if round_ is not None else {}
    found = merged(
        by_log,
        diagnose_readings(
            Watched(
                samples,
                gpus=look.gpus,
                flags=recipe.flags,
                facts=facts,
                headroom_gib=headroom,
                alone_prefill_tokens_per_s=_alone_speed(round_.physics if round_ else None),
            )
        ),
        diagnose_cards(look.gpus, own=_own_pids(handle, look.gpus), headroom_gib=headroom),
        diagnose_round(recipe.flags, effective, facts or BootFacts(), beside_log=facts is not None),
    )
    inputs, why = _inputs(lambda: session.planning_inputs(recipe))
    name = f"{handle.round_name}, " if handle.round_name else ""
    of = f"the running server ({name}{handle.url}{', SIMULATED' if handle.simulated else ''})"
    found_with_plans = with_remedies(found, inputs, stated_need(recipe.tuner))
    return Diagnosis(of=of, findings=found_with_plans, unplanned=why)


def _without_server(session: Session, gpus: Sequence[GpuReading]) -> Diagnosis:
    cards = diagnose_cards(gpus, own=frozenset())
    last = session.history.last()
    if last is None:
        return Diagnosis(of="this machine: no server of the tuner runs, and there are no rounds yet",
                         findings=with_remedies(cards, None))  # fmt: skip
    # A round whose tuner was killed in the middle stands in the history as if it still ran.
    last = seen_here(last, session.home)
    of = f"the last round ({last.name}, {last.state}); no server of the tuner runs"
    if (served := _died_after(session, last)) is not None:
        found = _of_death(served, gpus)
        of = f"the server of {served.name}, which was up and died; none of the tuner runs"
        last = served
    elif last.state is RoundState.REFUSED:
        found = last.findings
    elif last.state is RoundState.FAILED:
        found = _of_death(last, gpus) or (_unexplained(last),)
    elif last.state in OPEN_STATES:
        of = f"this machine: a tuner is in the middle of {last.name} ({last.state}), and its server is not up yet"
        return Diagnosis(of=of, findings=with_remedies(cards, None))
    else:
        of = f"this machine: no server of the tuner runs, and the last round ({last.name}) did not fail"
        return Diagnosis(of=of, findings=with_remedies(cards, None))
    inputs, why = _inputs(lambda: session.planning_inputs(last.recipe))
    remedied = with_remedies(merged(found, cards), inputs, stated_need(last.recipe.tuner))
    return Diagnosis(of=of, findings=remedied, unplanned=why if any(f.flags for f in found) else "")


def _died_after(session: Session, last: Round) -> Round | None:
    """The round whose server was up and died unasked, after all that ``last``, the newest round, tells; else None."""
    round_ = session.history.last(_STARTED) if last.state is RoundState.REFUSED else last
    if round_ is None or round_.state not in _CAME_UP or not round_.log_path:
        return None
    log = Path(round_.log_path)
    quiet_s = _quiet_s(log)
    # A start that was refused because this very server ran is no news once the server is gone.
    beside = any(finding.id is FindingId.DOUBLE_START for finding in last.findings)
    if quiet_s is None or (time.time() - quiet_s < last.started_at and not beside):
        return None
    facts, _ = read_log(log)
    return round_ if facts is not None and not facts.stop_asked else None


def _of_death(round_: Round, gpus: Sequence[GpuReading]) -> tuple[Finding, ...]:
    facts, tail = read_log(Path(round_.log_path)) if round_.log_path else (None, ())
    if facts is None:
        return round_.findings
    found = diagnosed(round_, facts, tail, died=True, card_gib=_card_gib(gpus))
    return merged(found, round_.findings)


def diagnose_ended(round_: Round, inputs: Callable[[BootFacts | None], PlanInputs]) -> Diagnosis:
    """Judges a round that came to its end, by its log where it is still there, else by what the round kept of it.

    ``inputs`` gathers a plan's inputs for its recipe with the numbers of its start.
    """
    found = _as_judged_today(round_)
    if round_.state is RoundState.FAILED and not found:
        found = (_unexplained(round_),)
    known, why = _inputs(lambda: inputs(round_.boot))
    told = "" if found or not round_.reason else f": {round_.reason.rstrip('.')}"
    return Diagnosis(
        of=f"{round_.name} as it ended, {round_.state}{told}",
        findings=with_remedies(found, known, stated_need(round_.recipe.tuner)),
        unplanned=why if any(f.flags for f in found) else "",
    )


def _as_judged_today(round_: Round) -> tuple[Finding, ...]:
    """The findings of a round, those of its log made anew: an earlier tuner may have said something else."""
    facts, tail = read_log(Path(round_.log_path)) if round_.log_path else (None, ())
    died = round_.state is RoundState.FAILED
    facts = facts if facts is not None or died else round_.boot
    if facts is None:
        return round_.findings
    by_log = diagnosed(round_, facts, tail, died=died)
    named = any(f.severity is Severity.FATAL for f in by_log)
    kept = [
        f
        for f in round_.findings
        if f.id is not FindingId.ASKED_NOT_EFFECTIVE and not (named and f.severity is Severity.FATAL)
    ]
    return merged(by_log, diagnose_round(round_.recipe.flags, round_.effective, facts, beside_log=True), kept)


def _unexplained(round_: Round) -> Finding:
    """A failure of which neither the log nor the round keeps a cause."""
    return Finding(
        id=FindingId.UNKNOWN,
        severity=Severity.WARNING,
        title=round_.reason or f"{round_.name} failed, and nothing tells why.",
        evidence=(f"{round_.name}, reached: {round_.phase}",) if round_.phase else (),
        remedy=f"Its log {round_.log_path} is gone: start it again to see."
        if round_.log_path and not Path(round_.log_path).is_file()
        else "Start it again, and leave the tuner running until it is up.",
    )


def _counted_on_gib(round_: Round | None) -> float | None:
    return round_.plan.free_before_gib if round_ is not None and round_.plan is not None else None


def diagnose_files(
    logs: Sequence[Path],
    metrics: Path | None = None,
    recipe: Recipe | None = None,
    inputs: Callable[[BootFacts | None], PlanInputs] | None = None,
) -> Diagnosis:
    """Judges server logs (two of a prefill and a decode role are also compared) and a ``/metrics`` page.

    ``recipe``: what was asked. ``inputs`` gathers a plan's inputs for it, with the log's numbers where there is one;
    without any file its plan is judged. Raises Unreadable, and where a plan alone is asked for, CannotPlan or
    ModelError.
    """
    flags = recipe.flags if recipe is not None else {}
    headroom = _headroom(recipe) if recipe is not None else HEADROOM_GIB
    read = [_log(path) for path in logs]
    groups: list[tuple[Finding, ...]] = []
    for facts, tail in read:
        groups.append(diagnose_log(facts, tail, headroom_gib=headroom, asked=flags))
        groups.append(_not_as_asked(flags, facts))
    if roles := _roles([facts for facts, _ in read]):
        groups.append(diagnose_roles(*roles))
    first = read[0][0] if read else None
    if metrics is not None:
        groups.append(_of_page(metrics, flags, first, headroom))
    known, why = None, ""
    if inputs is not None and not logs and metrics is None:
        known = inputs(None)
        groups.append(diagnose_plan(known, make_plan(known)))
    elif inputs is not None:
        known, why = _inputs(lambda: inputs(first))
    names = [str(path) for path in (*logs, *((metrics,) if metrics is not None else ()))]
    of = " and ".join(names) or f"the plan of {recipe.name or 'the recipe' if recipe is not None else 'nothing'}"
    need = stated_need(recipe.tuner) if recipe is not None else None
    return Diagnosis(of=of, findings=with_remedies(merged(*groups), known, need), unplanned=why)


def _log(path: Path) -> tuple[BootFacts, tuple[str, ...]]:
    facts, tail = read_log(path)
    if facts is None:
        raise Unreadable(f"The log {path} cannot be read: give the path of a file.")
    if facts == BootFacts() and not tail:
        raise Unreadable(f"The log {path} is empty.")
    return facts, tail


def _not_as_asked(flags: Mapping[str, Any], facts: BootFacts) -> tuple[Finding, ...]:
    if not flags or not facts.server_args:
        return ()
    effective = effective_values(flags, facts.server_args, facts)
    found = diagnose_round(flags, effective, facts, beside_log=True)
    if len(found) < _ANOTHER_COMMAND:
        return found
    return (
        Finding(
            id=FindingId.ASKED_NOT_EFFECTIVE,
            severity=Severity.WARNING,
            title=f"{len(found)} flags of the log are not those of the recipe: it is the log of another command.",
            evidence=tuple(f.title for f in found),
            remedy="Name the recipe that this log is of, or leave it out; the plans here are those of the recipe.",
        ),
    )


def _roles(logs: Sequence[BootFacts]) -> tuple[BootFacts, BootFacts] | None:
    by_role = {facts.server_args.get("disaggregation_mode"): facts for facts in logs}
    prefill, decode = by_role.get("prefill"), by_role.get("decode")
    return (prefill, decode) if prefill is not None and decode is not None else None


def _of_page(path: Path, flags: Mapping[str, Any], facts: BootFacts | None, headroom_gib: float) -> tuple[Finding, ...]:
    text = _page(path)
    window, computed = ReadingsWindow(seconds=float("inf")), None
    try:
        snapshot = parse_metrics(text)
    except MetricsError as error:
        reach = Reach.OFF if text.replace(" ", "").strip() == _NOT_FOUND.replace(" ", "") else Reach.NONSENSE
        readings = Readings(at=0.0, metrics=reach, loads=Reach.OFF, notice=str(error))
    else:
        readings, computed = window.add(0.0, snapshot, Reach.OFF), snapshot.prefill_computed
    return diagnose_readings(
        Watched([readings], flags=flags, facts=facts, headroom_gib=headroom_gib, computed_tokens=computed)
    )


def _page(path: Path) -> str:
    """The text of a file; of a pipe, too (``<(curl …)``)."""
    try:
        with path.open("rb") as file:
            page = file.read(_LONGEST_PAGE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Unreadable(f"{path} cannot be read: {reason}.") from error
    if len(page) > _LONGEST_PAGE:
        raise Unreadable(f"{path} is larger than {_LONGEST_PAGE >> 20} MiB: no answer of /metrics is.")
    return page.decode("utf-8", "replace")


def _inputs(gather: Callable[[], PlanInputs]) -> tuple[PlanInputs | None, str]:
    try:
        return gather(), ""
    except (CannotPlan, ModelError) as error:
        return None, str(error)


def _headroom(recipe: Recipe) -> float:
    return recipe.tuner.headroom_gib if recipe.tuner.headroom_gib is not None else HEADROOM_GIB


def _kept(session: Session, round_: Round | None) -> list[Readings]:
    if round_ is None:
        return []
    since = time.time() - _LOOK_BACK_S
    return [reading for reading in session.history.samples(round_.number) if reading.at >= since]


def _card_gib(gpus: Sequence[GpuReading]) -> float | None:
    return gpus[0].total_mib / 1024 if gpus and gpus[0].total_mib else None


def _quiet_s(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def _own_pids(handle: ServerHandle, gpus: Sequence[GpuReading]) -> frozenset[int] | None:
    """Processes of the server; None where the driver numbers them otherwise (containers)."""
    own = frozenset(process.pid for process in family(handle))
    on_cards = {process.pid for gpu in gpus for process in gpu.processes}
    return own if own & on_cards else None


def _alone_speed(physics: Physics | None) -> float | None:
    """Prefill speed of the longest cold prompt that had the server to itself, tokens/s."""
    points = [p for p in physics.points if p.prefill_tokens_per_s is not None] if physics is not None else []
    return max(points, key=lambda p: p.tokens).prefill_tokens_per_s if points else None
