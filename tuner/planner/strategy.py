"""Which prefix-cache strategy is in force, and how many state slots a request then needs."""

from __future__ import annotations

import msgspec

from tuner.modelcard import Family, ModelShape
from tuner.planner.asked import Asked
from tuner.planner.model import CannotPlan
from tuner.planner.versions import EXTRA_BUFFER_SINCE, RADIX_OFF_BEFORE, RADIX_SINCE, Rules

NO_BUFFER = "no_buffer"
EXTRA_BUFFER = "extra_buffer"
LAZY = "extra_buffer_lazy"
RADIX_OFF = "radix off"
#: ``auto`` of a class that the version's lists have forgotten: the word stays, and nothing handles it.
UNRESOLVED = "auto (not resolved)"

_KNOWN = ("auto", NO_BUFFER, EXTRA_BUFFER, LAZY)


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy in force. ``slots_per_request`` is q of the sizing rule; 0 for a model without states."""

    name: str
    slots_per_request: int
    radix: bool
    overlap: bool
    page_size: int


def supports_extra_buffer(architecture: str, rules: Rules) -> bool:
    """Whether this version can keep an extra buffer for the model class (``supports_mamba_cache_extra_buffer``)."""
    since = EXTRA_BUFFER_SINCE.get(architecture)
    return since is not None and rules.version >= since


def resolve_strategy(shape: ModelShape, asked: Asked, rules: Rules) -> Strategy:
    """Follows ``_handle_mamba_radix_cache`` (to 0.5.14) and ``_mamba_radix_cache_resolution`` (from 0.5.15).

    Raises CannotPlan for a strategy that no version knows.
    """
    page = asked.page_size or 1
    radix = not asked.disable_radix
    overlap = not asked.disable_overlap
    if shape.family is Family.PLAIN or shape.state is None:
        return Strategy(
            name="" if radix else RADIX_OFF, slots_per_request=0, radix=radix, overlap=overlap, page_size=page
        )
    if asked.strategy not in _KNOWN:
        raise CannotPlan(f"mamba_radix_cache_strategy is {asked.strategy!r}: use one of {', '.join(_KNOWN)}.")
    off_before = RADIX_OFF_BEFORE.get(shape.architecture)
    if off_before is not None and rules.version < off_before:
        radix = False
    name = asked.strategy
    if radix:
        name, overlap = _resolve_auto(shape, asked, rules, overlap, page)
        if name not in (EXTRA_BUFFER, LAZY):
            if asked.speculation is not None and rules.speculation_without_buffer == "radix-off":
                radix = False
            elif not rules.auto_extra_buffer:
                page = 1
                overlap = overlap and asked.speculation is not None
    if not radix:
        name = RADIX_OFF
    return Strategy(
        name=name,
        slots_per_request=_slots(name, asked, rules, overlap),
        radix=radix,
        overlap=overlap,
        page_size=page,
    )


def _resolve_auto(shape: ModelShape, asked: Asked, rules: Rules, overlap: bool, page: int) -> tuple[str, bool]:
    if asked.strategy != "auto":
        return asked.strategy, overlap
    if not rules.auto_extra_buffer:
        return NO_BUFFER, overlap
    listed = RADIX_SINCE.get(shape.architecture)
    if listed is None or rules.version < listed:
        # Seen on 0.5.17 with Qwen3_5ForCausalLM: neither overlap nor validation is touched.
        return UNRESOLVED, overlap
    wanted = overlap or page > 1
    if wanted and supports_extra_buffer(shape.architecture, rules) and asked.linear_attn_backend == "triton":
        return EXTRA_BUFFER, overlap
    return NO_BUFFER, False


def _slots(name: str, asked: Asked, rules: Rules, overlap: bool) -> int:
    """Slots reserved per request (``_calculate_mamba_ratio``; 0.5.9: ``init_memory_pool``)."""
    if name == RADIX_OFF:
        return 1
    base = 3
    skip = asked.skip_decode_lock and rules.skip_decode_lock
    if name in (EXTRA_BUFFER, LAZY):
        if rules.cheap_speculative_buffer:
            extra = 1 if asked.speculation is not None else 2
        elif not overlap and rules.counts_overlap:
            extra = 1
        else:
            extra = 1 if name == LAZY and rules.lazy else 2
        return base + extra - (1 if skip else 0)
    return base
