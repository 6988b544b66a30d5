"""The work under way, as a value that events move on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from tuner.checks.model import CheckResult, Verdict
from tuner.findings import Finding, FindingId, Severity
from tuner.rounds.model import FIRST_ANSWERS, Round, RoundState
from tuner.serverlog.model import Phase
from tuner.session.deaths import refused_for_deaths
from tuner.session.events import (
    AutoEnded,
    AutoNews,
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

#: The phases of a start in order; the first answers, after ready, are the tuner's own requests.
START_PHASES: tuple[str, ...] = (
    Phase.LAUNCHING,
    Phase.LOADING,
    Phase.SIZING,
    Phase.CAPTURING,
    Phase.BINDING,
    Phase.WARMING,
    FIRST_ANSWERS,
)

#: Name of the checks' time beside those of the phases.
CHECKS = "checks"

#: What a stop is called that follows a start: the server just started is ended again.
ENDING = "ending what was started"

#: Refusals that rest on the plan or on the command line alone; others stand for something that is in the way.
_FORCEABLE = frozenset(
    {FindingId.FLAG_CONFLICT, FindingId.UNKNOWN_FLAG, FindingId.NO_ROOM_AT_SIZING, FindingId.SLOTS_NEGATIVE}
)


class Work(StrEnum):
    """What the session is asked to do."""

    ROUND = "round"
    VERIFY = "verify"
    STOP = "stop"


class StepState(StrEnum):
    """How far a step is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    #: A check that could not tell.
    UNSURE = "unsure"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. Seconds; ``before``: how long it took in the last good round."""

    name: str
    state: StepState = StepState.WAITING
    seconds: float | None = None
    before: float | None = None
    detail: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a watcher of the work sees."""

    work: Work
    title: str
    steps: tuple[Step, ...] = ()
    checks: tuple[Step, ...] = ()
    #: Clock when it began, and seconds since; phases tell only their own times.
    began: float = 0.0
    total_s: float = 0.0
    #: Seconds before the first phase: the plan was made.
    lead_s: float | None = None
    #: How long the checks took before, all of them.
    checks_before_s: float = 0.0
    last_line: str = ""
    stalled: bool = False
    simulated: bool = False
    findings: tuple[Finding, ...] = ()
    results: tuple[CheckResult, ...] = ()
    round: Round | None = None
    ended: bool = False
    aborting: bool = False
    #: Why the work could not be done; empty when it could.
    problem: str = ""
    #: The last good round, where the work has left something worse or nothing.
    back: Round | None = None

    @property
    def good(self) -> bool:
        """Whether the work ended as wanted."""
        if not self.ended or self.problem:
            return False
        if self.work is Work.ROUND:
            return self.round is not None and self.round.state is RoundState.VERIFIED
        if self.work is Work.VERIFY:
            return bool(self.results) and all(r.verdict is Verdict.PASS for r in self.results)
        return True

    @property
    def lost(self) -> bool:
        """Whether a start ended without a server that could stay up, or was not begun."""
        round_ = self.round if self.ended and self.work is Work.ROUND else None
        return round_ is not None and round_.state in (RoundState.FAILED, RoundState.REFUSED)

    @property
    def total_before_s(self) -> float | None:
        """How long the whole took before, seconds: its phases and checks; None when it was never timed.

        Neither the plan nor a stop of the old server is part of a start: they count as long as they take now.
        """
        known = [s.before for s in self.steps if s.before is not None]
        return sum(known) + self.stop_s + (self.lead_s or 0.0) + self.checks_before_s if known else None

    @property
    def stop_s(self) -> float:
        """Seconds that the stop of the old server has taken."""
        return sum(s.seconds or 0.0 for s in self.steps if s.name == Phase.STOPPING)

    @property
    def forceable(self) -> bool:
        """Whether the work ended in a refusal that the operator may overrule."""
        if not self.ended or self.round is None or self.round.state is not RoundState.REFUSED:
            return False
        if refused_for_deaths(self.round):
            return True
        fatal = [f for f in self.round.findings if f.severity is Severity.FATAL]
        return bool(fatal) and all(f.id in _FORCEABLE for f in fatal)

    @property
    def current(self) -> str:
        """The step under way, in one word or two."""
        running = [s.name for s in (*self.steps, *self.checks) if s.state is StepState.RUNNING]
        return running[-1] if running else ""


def begin(work: Work, *, stops_first: bool, before: Mapping[str, float], simulated: bool, now: float = 0.0) -> Progress:
    """The list of steps before the first event.

    ``before``: seconds by phase of the last good round, and those of its checks together as ``CHECKS``.
    """
    stop = (Step(name=Phase.STOPPING),) if stops_first else ()
    if work is Work.STOP:
        return Progress(work=work, title="Stopping the server", steps=stop, simulated=simulated, began=now)
    if work is Work.VERIFY:
        return Progress(work=work, title="Checking the running server", simulated=simulated, began=now)
    start = tuple(Step(name=p, before=before.get(p)) for p in START_PHASES)
    return Progress(
        work=work,
        title="Starting",
        steps=(*stop, *start),
        checks_before_s=before.get(CHECKS, 0.0),
        simulated=simulated,
        began=now,
    )


def advance(progress: Progress, event: Event, now: float) -> Progress:
    """The progress after one event that came at ``now`` (same clock as at the beginning)."""
    total_s = now - progress.began
    lead_s = progress.lead_s
    if lead_s is None and isinstance(event, PhaseChanged):
        lead_s = max(0.0, total_s - event.elapsed_s - progress.stop_s)
    return msgspec.structs.replace(_advanced(progress, event), total_s=total_s, lead_s=lead_s)


def _advanced(progress: Progress, event: Event) -> Progress:
    change = msgspec.structs.replace
    match event:
        case RoundOpened(round=round_):
            return change(progress, title=f"Starting {round_.name}", round=round_)
        case PhaseChanged():
            return _phase(progress, event)
        case Found(finding=finding):
            return change(progress, findings=(*progress.findings, finding))
        case CheckStarted(name=name):
            settled = _settle(progress.steps, StepState.DONE)
            return change(
                progress,
                steps=settled,
                checks=(*progress.checks, Step(name=name, state=StepState.RUNNING)),
                last_line="",
            )
        case CheckEnded(result=result):
            return change(progress, checks=_checked(progress.checks, result), results=(*progress.results, result))
        case ServerStopped(outcome=outcome):
            state = StepState.DONE if outcome.stopped else StepState.FAILED
            stopping = Step(
                name=_stop_name(progress), state=state, seconds=outcome.seconds, detail=outcome.reason or outcome.how
            )
            problem = "" if outcome.stopped else (outcome.reason or "The server did not stop.")
            return change(progress, steps=_put(progress.steps, stopping), problem=problem)
        case RoundClosed(round=round_):
            return _closed(progress, round_)
        case Planned() | AutoNews() | AutoEnded():
            return progress


def ticked(progress: Progress, now: float) -> Progress:
    """The progress a while after its last event: a check tells nothing before it ends."""
    return progress if progress.ended else msgspec.structs.replace(progress, total_s=now - progress.began)


def aborting(progress: Progress) -> Progress:
    """The progress once it is asked to end."""
    return msgspec.structs.replace(progress, aborting=True)


def offering(progress: Progress, good: Round | None) -> Progress:
    """The progress with the round that may be gone back to."""
    return msgspec.structs.replace(progress, back=good)


def finish(progress: Progress, problem: str, now: float) -> Progress:
    """The progress when the thread at work has returned."""
    if progress.work is Work.STOP:
        # Its phases tell only how long each took; what counts is the whole.
        progress = msgspec.structs.replace(
            progress, steps=tuple(_timed(s, now - progress.began) for s in progress.steps)
        )
    state = StepState.FAILED if problem else StepState.DONE
    return msgspec.structs.replace(
        progress,
        title=_ended_title(progress),
        ended=True,
        problem=problem or progress.problem,
        steps=_settle(progress.steps, state),
        checks=_settle(progress.checks, state),
    )


def _ended_title(progress: Progress) -> str:
    if progress.work is Work.ROUND and progress.round is not None:
        return f"{progress.round.name} {progress.round.state}"
    if progress.problem or progress.work is Work.ROUND:
        return progress.title
    return "Stopped the server" if progress.work is Work.STOP else "Checked the running server"


def _stop_name(progress: Progress) -> str:
    """A stop before the start is of the old server, one after it of the new."""
    started = any(s.name in START_PHASES and s.state is not StepState.WAITING for s in progress.steps)
    return ENDING if progress.work is Work.ROUND and started else Phase.STOPPING


def _phase(progress: Progress, event: PhaseChanged) -> Progress:
    steps = progress.steps
    if event.phase in (Phase.READY, Phase.STOPPED, Phase.DEAD):
        state = StepState.FAILED if event.phase == Phase.DEAD else StepState.DONE
        steps = _settle(steps, state)
    else:
        name = _stop_name(progress) if event.phase == Phase.STOPPING else event.phase
        known = next((s for s in steps if s.name == name), Step(name=name))
        estimate = event.estimate_s if event.phase != Phase.STOPPING else None
        before = estimate if estimate is not None else known.before
        moved = Step(name=name, state=StepState.RUNNING, seconds=event.elapsed_s, before=before)
        steps = _put(_pass(steps, name), moved)
    return msgspec.structs.replace(
        progress,
        steps=steps,
        last_line=event.last_line,
        stalled=event.stalled,
    )


def _closed(progress: Progress, round_: Round) -> Progress:
    failed = round_.state in (RoundState.FAILED, RoundState.ABORTED, RoundState.REFUSED)
    # A server can die in a phase before its first word of it comes.
    steps = _pass(progress.steps, round_.phase) if failed and round_.phase in START_PHASES else progress.steps
    if failed and round_.phase in START_PHASES:
        known = next((s for s in steps if s.name == round_.phase), Step(name=round_.phase))
        steps = _put(steps, msgspec.structs.replace(known, state=StepState.RUNNING))
    steps = _settle(steps, StepState.FAILED if failed else StepState.DONE)
    if round_.phase_seconds:
        steps = tuple(_timed(s, round_.phase_seconds.get(s.name)) for s in steps)
    return msgspec.structs.replace(progress, round=round_, steps=steps, stalled=False)


def _timed(step: Step, seconds: float | None) -> Step:
    return step if seconds is None else msgspec.structs.replace(step, seconds=seconds)


def _pass(steps: tuple[Step, ...], name: str) -> tuple[Step, ...]:
    """Steps before ``name`` that were under way or skipped are done."""
    names = [s.name for s in steps]
    if name not in names:
        return _settle(steps, StepState.DONE)
    at = names.index(name)
    return tuple(
        msgspec.structs.replace(s, state=StepState.DONE) if i < at and s.state is not StepState.FAILED else s
        for i, s in enumerate(steps)
    )


def _settle(steps: tuple[Step, ...], state: StepState) -> tuple[Step, ...]:
    return tuple(msgspec.structs.replace(s, state=state) if s.state is StepState.RUNNING else s for s in steps)


def _put(steps: tuple[Step, ...], step: Step) -> tuple[Step, ...]:
    if any(s.name == step.name for s in steps):
        return tuple(step if s.name == step.name else s for s in steps)
    return (*steps, step)


def _checked(checks: tuple[Step, ...], result: CheckResult) -> tuple[Step, ...]:
    states = {Verdict.PASS: StepState.DONE, Verdict.FAIL: StepState.FAILED, Verdict.CANNOT_TELL: StepState.UNSURE}
    state = states[result.verdict]
    return _put(checks, Step(name=result.name, state=state, seconds=result.seconds, detail=result.reason))
