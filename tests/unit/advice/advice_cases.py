"""Questions that several tests of the adviser share."""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.advice import Advice, Proposal, Question, Usage, usage_of
from tuner.metrics.model import Reach, Readings
from tuner.modelfile import load_shape
from tuner.paths import Home, find_preset
from tuner.planner import plan
from tuner.planner.model import PlanInputs, Source, Sourced
from tuner.recipe import load

TEXT_27B = "qwen3.8-27b-fp8-text"
#: What the recordings of 27B on a 48 GB share saw before and after the weights, without and with the draft.
BEFORE, AFTER, AFTER_WITH_DRAFT = 46.83, 19.29, 13.76


def inputs(model: str = TEXT_27B, version: str = "0.5.17", **flags: Any) -> PlanInputs:
    """A start on the 48 GB share. ``before``, ``after``, ``headroom``: GiB."""
    before, after = flags.pop("before", BEFORE), flags.pop("after", AFTER)
    headroom = flags.pop("headroom", 4.4)
    return PlanInputs(
        shape=load_shape(model),
        flags={"mem_fraction_static": 0.86, **flags},
        sglang_version=version,
        free_before=Sourced(before, Source.OPERATOR),
        free_after=Sourced(after, Source.OPERATOR),
        card_gib=47.5,
        headroom_line_gib=headroom,
    )


def preset(name: str, after: float = AFTER, **changes: Any) -> PlanInputs:
    """A packaged preset on the 48 GB share."""
    flags = load(find_preset(name, Home.find())).flags | changes
    flags = {key: value for key, value in flags.items() if value is not None}
    return msgspec.structs.replace(inputs(after=after), flags=flags)


def ask(start: PlanInputs, looks: tuple[Readings, ...] = (), usage: Usage | None = None, **more: Any) -> Question:
    """A question on a start with its readings, or what they come to."""
    if usage is None:
        usage = usage_of([("r1", looks)], slots_per_request=plan(start).slots_per_request)
    return Question(inputs=start, usage=usage, **more)


def look(minute: float = 0.0, **values: Any) -> Readings:
    """One look, ``minute`` minutes in."""
    return Readings(at=1_790_000_000.0 + 60 * minute, metrics=Reach.OK, loads=Reach.OK, **values)


def ids(advice: Advice) -> list[str]:
    return [proposal.id for proposal in advice.proposals]


def named(advice: Advice, name: str) -> Proposal:
    return next(proposal for proposal in advice.proposals if proposal.id == name)


def effect(proposal: Proposal, name: str) -> tuple[float, float]:
    """(old, new)"""
    return next((e.old, e.new) for e in proposal.effects if e.name == name)
