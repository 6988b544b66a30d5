"""Auto as its screen shows it: a value that events move on. Pure."""

from __future__ import annotations

import msgspec

from tuner.session.auto.model import AutoOutcome
from tuner.session.events import (
    AutoEnded,
    AutoNews,
    CheckEnded,
    CheckStarted,
    Event,
    PhaseChanged,
    Planned,
    RoundOpened,
    ServerStopped,
)
from tuner.units import format_gib, format_seconds, format_tokens


class AutoRow(msgspec.Struct, frozen=True, kw_only=True):
    """One round: why it is made, what is planned, what happens now, what came. ``met`` None: not over yet.

    ``number`` 0 is the server that ran already; one that puts things back has none.
    """

    number: int | None = None
    name: str = ""
    why: str = ""
    planned: str = ""
    now: str = ""
    came: str = ""
    met: bool | None = None


class AutoView(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of it. ``of``: how many rounds it may take."""

    need: str = ""
    rows: tuple[AutoRow, ...] = ()
    of: int = 0
    aborting: bool = False
    outcome: AutoOutcome | None = None
    #: Why it could not be done, where it did not even begin.
    problem: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.outcome is not None or bool(self.problem)


def advance(view: AutoView, event: Event) -> AutoView:
    """The view after one event."""
    match event:
        case AutoNews():
            return _news(view, event)
        case AutoEnded(outcome=outcome):
            return msgspec.structs.replace(view, outcome=outcome)
        case RoundOpened(round=round_):
            return _last(view, name=round_.name)
        case Planned(plan=plan):
            slots = f", {plan.mamba_slots} state slots" if plan.mamba_slots else ""
            free = format_gib(plan.ready_free_gib)
            return _last(view, planned=f"{format_tokens(plan.kv_tokens)} KV tokens{slots}, {free} free at ready")
        case PhaseChanged(phase=phase, elapsed_s=elapsed):
            return _last(view, now=f"{phase}, {format_seconds(elapsed)}")
        case CheckStarted(name=name, number=number, of=of):
            return _last(view, now=f"check {number} of {of}: {name}")
        case CheckEnded(result=result):
            return _last(view, now=f"{result.verdict}: {result.name}")
        case ServerStopped(outcome=stop):
            return _last(view, now=f"the old server stopped in {format_seconds(stop.seconds)}")
        case _:
            return view


def ended(view: AutoView, problem: str) -> AutoView:
    """The view when the thread at work has returned."""
    return view if view.outcome is not None else msgspec.structs.replace(view, problem=problem or "It did not begin.")


def _news(view: AutoView, news: AutoNews) -> AutoView:
    match news.kind:
        case "need":
            return msgspec.structs.replace(view, need=news.text, of=news.of)
        case "plan":
            return _added(view, AutoRow(number=news.number, why=news.text))
        case "proof":
            return _last(view, now=f"proof: {news.text}")
        case "proved" | "short":
            return _last(view, came=news.text, now="", met=news.kind == "proved")
        case "back":
            return _added(view, AutoRow(why=news.text))
        case _:
            return view


def _added(view: AutoView, row: AutoRow) -> AutoView:
    return msgspec.structs.replace(view, rows=(*view.rows, row))


def _last(view: AutoView, **changes: object) -> AutoView:
    """The view with its last row changed."""
    if not view.rows:
        return view
    return msgspec.structs.replace(view, rows=(*view.rows[:-1], msgspec.structs.replace(view.rows[-1], **changes)))
