"""Follows a session's events as lines for a person."""

from __future__ import annotations

from collections.abc import Callable

from tuner.cli.output import say
from tuner.session.events import (
    CheckEnded,
    Event,
    Found,
    PhaseChanged,
    Planned,
    RoundOpened,
    ServerStopped,
)
from tuner.units import format_seconds, format_tokens


def narrator(*, quiet: bool) -> Callable[[Event], None]:
    """A watcher that prints each new phase, finding and check to standard error; silent when ``quiet``."""
    phase = ""

    def watch(event: Event) -> None:
        nonlocal phase
        if quiet:
            return
        match event:
            case RoundOpened(round_):
                mark = " [SIMULATED]" if round_.simulated else ""
                say(f"{round_.name}{mark}", err=True)
            case Planned(plan):
                slots = f", {plan.mamba_slots} state slots" if plan.bytes_per_slot else ""
                say(f"  planned: {format_tokens(plan.kv_tokens)} KV tokens{slots}", err=True)
            case PhaseChanged() if event.phase != phase:
                phase = event.phase
                before = f" (before: {format_seconds(event.estimate_s)})" if event.estimate_s else ""
                say(f"  {event.total_s:6.1f} s  {event.phase}{before}", err=True)
            case PhaseChanged() if event.stalled:
                say(f"  {event.total_s:6.1f} s  {event.phase}: no news; last line: {event.last_line}", err=True)
            case Found(finding):
                say(f"  {finding.severity}: {finding.title} {finding.remedy}", err=True)
            case CheckEnded(result):
                say(f"  {result.verdict}: {result.name} ({format_seconds(result.seconds)}) {result.reason}", err=True)
            case ServerStopped(outcome):
                say(f"  stopped in {format_seconds(outcome.seconds)}: {outcome.how}", err=True)
            case _:
                pass

    return watch
