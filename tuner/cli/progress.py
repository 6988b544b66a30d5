"""Follows a session's events as lines for a person."""

from __future__ import annotations

import time
from collections.abc import Callable

from tuner.cli.output import say
from tuner.session.events import (
    CheckEnded,
    Event,
    Found,
    PhaseChanged,
    Planned,
    Publish,
    RoundOpened,
    ServerStopped,
)
from tuner.units import format_seconds, format_tokens

#: A start that says nothing is told of once, and then not more often than this (seconds).
_NO_NEWS_EVERY_S = 30.0


def narrator(*, quiet: bool, clock: Callable[[], float] = time.monotonic) -> Publish:
    """A watcher that prints each new phase, finding and check to standard error; silent when ``quiet``.

    Times are seconds since the watcher was made: a stop, a start and a second start count on from each other.
    """
    began = clock()
    phase = ""
    told_of_silence_at: float | None = None

    def tell(event: Event) -> None:
        nonlocal phase, told_of_silence_at
        seconds = clock() - began
        match event:
            case RoundOpened(round_):
                mark = " [SIMULATED]" if round_.simulated else ""
                say(f"{round_.name}{mark}", err=True)
            case Planned(plan):
                slots = f", {plan.mamba_slots} state slots" if plan.bytes_per_slot else ""
                say(f"  planned: {format_tokens(plan.kv_tokens)} KV tokens{slots}", err=True)
            case PhaseChanged() if event.phase != phase:
                phase, told_of_silence_at = event.phase, None
                before = f" (before: {format_seconds(event.estimate_s)})" if event.estimate_s else ""
                say(f"  {seconds:6.1f} s  {event.phase}{before}", err=True)
            case PhaseChanged() if event.stalled:
                if told_of_silence_at is None or seconds - told_of_silence_at >= _NO_NEWS_EVERY_S:
                    told_of_silence_at = seconds
                    say(f"  {seconds:6.1f} s  {event.phase}: no news; last line: {event.last_line}", err=True)
            case Found(finding):
                say(f"  {finding.severity}: {finding.title} {finding.remedy}", err=True)
            case CheckEnded(result):
                say(f"  {result.verdict}: {result.name} ({format_seconds(result.seconds)}) {result.reason}", err=True)
            case ServerStopped(outcome):
                say(f"  stopped in {format_seconds(outcome.seconds)}: {outcome.how}", err=True)
            case _:
                pass

    def watch(event: Event) -> None:
        nonlocal quiet
        if quiet:
            return
        try:
            tell(event)
        except BrokenPipeError:
            # Whoever listened (head, less) has gone; the round goes on.
            quiet = True

    return watch
