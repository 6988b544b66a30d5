"""Starts that SGLang refuses while it sizes its pools: these want more fraction, not less."""

from __future__ import annotations

import re

from tuner.doctor.case import LogCase, finding
from tuner.doctor.fraction import fraction_above
from tuner.findings import Finding, FindingId, Severity
from tuner.units import format_gib

_STATES_REFUSED = re.compile(
    r"Not enough GPU memory for hybrid \(mamba/linear-attention\) state cache\. "
    r"Computed max_mamba_cache_size=(?P<slots>-?\d{1,12}) "
    r"\(total_rest_memory=(?P<rest>-?[\d.]{1,12}) GB, mamba_cache_per_req=(?P<slot>[\d.]{1,12}) MB\)"
)
_STATES_TOO_FEW = re.compile(r"state cache is too small to serve any requests\.")
_SLOTS_AND_SHARE = re.compile(r"max_mamba_cache_size=(?P<slots>-?\d{1,12}), mamba_ratio=(?P<per_request>\d{1,6})")
_STATES_FAILED = re.compile(r"(?i)(?:mamba|state)[ _](?:cache |state )?pool.{0,20}allocation failed")
_WEIGHTS_LEAVE_NOTHING = re.compile(
    r"Loaded weights leave no GPU memory for the KV cache"
    r"(?: under --mem-fraction-static=[\d.]+\. Raise --mem-fraction-static above (?P<least>\d?\.\d+))?"
    r"|minimum viable = (?P<least2>\d?\.\d+)"
)
_NOT_ENOUGH = re.compile(
    r"Not enough memory\. Please try to increase --mem-fraction-static|max_running_request is zero|"
    r"Memory pool size is too small"
)
_IN_FORCE = re.compile(r"mem_fraction_static=(?P<fraction>\d?\.\d+)")
_RAISE_RATIO = "Raise mamba_full_memory_ratio; with speculation lower max_running_requests or the draft tokens."
#: Lines that say that too little memory was there.
REFUSALS = (_WEIGHTS_LEAVE_NOTHING, _NOT_ENOUGH, _STATES_REFUSED)


def share_too_small(case: LogCase) -> bool:
    """Whether the pools had room for a slot, and the states' share of it held none: a matter of the ratio."""
    seen = case.find(_STATES_REFUSED)
    return seen is not None and float(seen.match["rest"]) * 1024 >= float(seen.match["slot"])


def slots_negative(case: LogCase) -> Finding | None:
    """Slots that come out negative: weights larger than the fraction allows, or a share smaller than one slot."""
    seen = case.find(_STATES_REFUSED)
    if not seen or int(seen.match["slots"]) >= 0:
        return None
    rest = float(seen.match["rest"])
    if rest >= 0:
        return finding(
            FindingId.SLOTS_NEGATIVE,
            Severity.FATAL,
            f"The states' share of {seen.match['rest']} GiB is smaller than one slot.",
            evidence=(seen.line,),
            remedy=_RAISE_RATIO,
        )
    remedy, flags = _raise_fraction(case, shortfall_gib=-rest)
    return finding(
        FindingId.SLOTS_NEGATIVE,
        Severity.FATAL,
        f"The weights alone are {format_gib(-rest)} larger than mem_fraction_static allows: no state slot fits.",
        evidence=(seen.line,),
        remedy=remedy,
        flags=flags,
    )


def no_room_at_sizing(case: LogCase) -> Finding | None:
    """Pools that SGLang refuses to size: the opposite of running out of memory later on."""
    return _states_refused(case) or _weights_leave_nothing(case)


def _states_refused(case: LogCase) -> Finding | None:
    if seen := case.find(_STATES_REFUSED):
        return _no_room(
            f"The states' share of {seen.match['rest']} GiB holds no slot.",
            seen.line,
            _RAISE_RATIO,
        )
    if seen := case.find(_STATES_TOO_FEW):
        told = _SLOTS_AND_SHARE.search(seen.line)
        behind = None if told else case.find_after(seen, _SLOTS_AND_SHARE)
        numbers = told or (behind.match if behind else None)
        need = int(numbers["per_request"]) + 1 if numbers else None
        return _no_room(
            "The state slots are too few for a single request.",
            seen.line if not behind else f"{seen.line} {behind.line}",
            "Raise max_mamba_cache_size or mamba_full_memory_ratio, or keep states in bfloat16.",
            {"max_mamba_cache_size": need} if need else {},
        )
    if seen := case.find(_STATES_FAILED):
        return _no_room(
            "The pool of states could not be allocated.",
            seen.line,
            "Raise mamba_full_memory_ratio (0.35 to 0.45, say), keep mem_fraction_static at 0.9 or below, and leave "
            "room for two slots at least.",
        )
    return None


def _weights_leave_nothing(case: LogCase) -> Finding | None:
    if seen := case.find(_WEIGHTS_LEAVE_NOTHING):
        told = seen.match["least"] or seen.match["least2"]
        remedy, flags = fraction_above(float(told)) if told else _raise_fraction(case)
        return _no_room(
            "The weights leave nothing for the pools at this mem_fraction_static.",
            seen.line,
            f"First look whether another process holds some of the card. {remedy}",
            flags,
        )
    if seen := case.find(_NOT_ENOUGH):
        remedy, flags = _raise_fraction(case)
        told = _IN_FORCE.search(seen.line)
        in_force = told["fraction"] if told else case.argument("mem_fraction_static")
        return _no_room(
            "No memory is left for the KV pool" + (f" at a mem_fraction_static of {in_force}." if in_force else "."),
            seen.line,
            f"{remedy} If a higher one then dies while graphs are captured, no fraction works: fewer graphs, no "
            "speculation, smaller weights or more cards do.",
            flags,
        )
    return None


def _no_room(title: str, line: str, remedy: str, flags: dict[str, float] | None = None) -> Finding:
    return finding(FindingId.NO_ROOM_AT_SIZING, Severity.FATAL, title, evidence=(line,), remedy=remedy, flags=flags)


def _raise_fraction(case: LogCase, shortfall_gib: float | None = None) -> tuple[str, dict[str, float]]:
    """Remedy and flags of a fraction that is too low. The rule: rest = free after loading - before x (1 - fraction)."""
    before, after, asked = case.facts.free_before_gib, case.facts.free_after_gib, case.number("mem_fraction_static")
    if before and shortfall_gib is not None and asked is not None:
        return fraction_above(asked + shortfall_gib / before)
    if before and after is not None:
        return fraction_above(1 - after / before)
    return "Raise mem_fraction_static in steps of 0.02, or load smaller weights.", {}
