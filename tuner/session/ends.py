"""How a start or a round ended, and of what."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tuner.doctor import diagnose_log
from tuner.doctor.merging import merged
from tuner.findings import Finding, FindingId, Severity
from tuner.paths import Home
from tuner.planner.accuracy import accuracy
from tuner.planner.model import HEADROOM_GIB
from tuner.rounds.memory import by_the_card_gib
from tuner.rounds.model import Round, RoundState
from tuner.server.machine import died_of_full_disk
from tuner.server.model import ReadyOutcome, ReadyState, ServerHandle
from tuner.serverlog.model import BootFacts, Phase
from tuner.session.bench import Bench
from tuner.session.bootlog import read_log
from tuner.session.events import Found, Publish, ServerStopped

CHECKING = "checks"
#: From a scheduler's crash to the end of the server (0.5.17: 5 s).
_DYING_S = 8.0
#: What is found when a log names no cause.
_NO_CAUSE = (FindingId.UNKNOWN, FindingId.SILENT_END)


def refused(round_: Round, found: tuple[Finding, ...], publish: Publish) -> Round:
    """The round as one that was not started."""
    for finding in found:
        publish(Found(finding))
    fatal = [f for f in found if f.severity is Severity.FATAL] or list(found)
    return msgspec.structs.replace(
        round_,
        state=RoundState.REFUSED,
        phase="preflight",
        reason=" ".join(f"{f.title} {f.remedy}".strip() for f in fatal),
        findings=merged(found, round_.findings),
    )


def started(round_: Round, outcome: ReadyOutcome, vram_mib: dict[str, int]) -> Round:
    """The round once its start came to an end, good or bad; ``vram_mib`` as in ``Round``."""
    facts = outcome.facts
    quiet_s = outcome.quiet_s if outcome.state is ReadyState.TIMED_OUT else None
    round_ = msgspec.structs.replace(round_, vram_mib=vram_mib)
    found = diagnosed(round_, facts, outcome.last_lines, died=outcome.state is ReadyState.DIED, quiet_s=quiet_s)
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
        phase=_last_phase(outcome) if ended else CHECKING,
        reason=reason,
        boot=facts,
        phase_seconds=outcome.phase_seconds,
        ready_seconds=None if ended else outcome.seconds,
        accuracy=accuracy(round_.plan, facts, ready_mib=vram_mib.get("ready"))
        if round_.plan is not None and facts.kv_tokens is not None
        else None,
        findings=after_start(found, round_.findings, came_up=not ended),
        sglang_version=facts.version if facts.version and "-" not in facts.version else round_.sglang_version,
    )


def after_start(found: Sequence[Finding], foreseen: Sequence[Finding], *, came_up: bool) -> tuple[Finding, ...]:
    """What a log told (``found``) and what was foreseen of its start as one list, worst first.

    Of one cause the log tells more. That a start would fail is no news once it came up, nor beside the cause that it
    died of; the plan of the round keeps it.
    """
    named = any(f.severity is Severity.FATAL and f.id not in _NO_CAUSE for f in found)
    if came_up or named:
        foreseen = [f for f in foreseen if f.severity is not Severity.FATAL]
    return merged(found, foreseen)


def diagnosed(
    round_: Round,
    facts: BootFacts,
    tail: Sequence[str],
    *,
    died: bool,
    card_gib: float | None = None,
    quiet_s: float | None = None,
) -> tuple[Finding, ...]:
    """What the log of ``round_`` tells, with what the round knows beside it.

    ``card_gib``: memory of the whole card where it is known now; else the plan's.
    """
    plan = round_.plan
    if card_gib is None and plan is not None:
        card_gib = plan.card_gib
    wanted = plan.headroom_line_gib if plan is not None else round_.recipe.tuner.headroom_gib
    return diagnose_log(
        facts,
        tail,
        died=died,
        headroom_gib=HEADROOM_GIB if wanted is None else wanted,
        asked=round_.recipe.flags,
        card_gib=card_gib,
        counted_on_gib=plan.free_before_gib if plan is not None else None,
        ready_free_gib=by_the_card_gib(round_),
        quiet_s=quiet_s,
    )


def _last_phase(outcome: ReadyOutcome) -> str:
    phases = [p for p in outcome.phase_seconds if p not in (Phase.DEAD, Phase.STOPPED, Phase.STOPPING)]
    return phases[-1] if phases else str(outcome.facts.phase)


def perhaps_of_full_disk(home: Home, round_: Round) -> Round:
    """A death whose log names no cause, on a full disk: the log may end before the cause."""
    full = died_of_full_disk(home)
    named = [f for f in round_.findings if f.severity is Severity.FATAL and f.id not in _NO_CAUSE]
    if full is None or named:
        return round_
    rest = (f for f in round_.findings if f.severity is not Severity.FATAL)
    return msgspec.structs.replace(round_, reason=f"{full.title} {full.remedy}", findings=(full, *rest))


def not_ours(sentence: str) -> Finding:
    """The finding on what could not be verified of a server that is ready."""
    return Finding(
        id=FindingId.BEHIND_LAUNCHER,
        severity=Severity.WARNING,
        title=sentence,
        remedy="After a stop, look whether the port is free; stop the rest with the program that started it.",
    )


def died_while_checked(bench: Bench, round_: Round, handle: ServerHandle, publish: Publish) -> Round:
    """The round with its server's death when that is why checks failed; what is left of the server is stopped."""
    facts, tail = read_log(Path(handle.log_path))
    if facts is not None and facts.phase is Phase.DEAD:
        deadline = time.monotonic() + _DYING_S
        while bench.supervisor.main_lives(handle) and time.monotonic() < deadline:
            time.sleep(0.1)
    if bench.supervisor.main_lives(handle):
        return round_
    facts, tail = read_log(Path(handle.log_path))
    publish(ServerStopped(bench.supervisor.stop(handle, publish, drain=False)))
    found = diagnosed(round_, facts, tail, died=True) if facts is not None else ()
    for finding in found:
        publish(Found(finding))
    worst = next((f for f in found if f.severity is Severity.FATAL), None)
    cause = f" {worst.title} {worst.remedy}".rstrip() if worst is not None else ""
    return msgspec.structs.replace(
        round_,
        state=RoundState.FAILED,
        reason=f"The server died while it was checked.{cause}",
        boot=facts or round_.boot,
        findings=merged(found, round_.findings),
    )
