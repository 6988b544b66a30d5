"""The strategy of the state cache against page sizes, drafts and the overlap schedule: what SGLang dies of.

From ``_handle_mamba_radix_cache`` (0.5.9, 0.5.12) and ``_mamba_radix_cache_resolution`` (0.5.17, 0.5.23).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.findings import Finding
from tuner.planner.conflict import Case, fatal, warning
from tuner.planner.strategy import EXTRA_BUFFER, LAZY, NO_BUFFER, supports_extra_buffer

#: Prefix snapshots fall on this grid, or on the page size where that is larger (``mamba_cache_chunk_size``).
_SNAPSHOT_GRID = 64
_TRACK_INTERVAL = 256


def _buffer_or_none(case: Case) -> tuple[str, dict[str, Any]]:
    """The nearest strategy that pages and speculates: an extra buffer where the class has one."""
    if supports_extra_buffer(case.shape.architecture, case.rules) or not case.validated:
        return "use the extra_buffer strategy", {_strategy_flag(case): EXTRA_BUFFER}
    return "switch the prefix cache off", {"disable_radix_cache": True}


def _strategy_flag(case: Case) -> str:
    return "mamba_radix_cache_strategy" if case.flag_since((0, 5, 14)) else "mamba_scheduler_strategy"


def _without_buffer(case: Case) -> bool:
    """Whether the prefix cache would run without an extra buffer (asked so, or "auto" up to 0.5.13)."""
    if not case.hybrid or case.asked.disable_radix:
        return False
    return case.asked.strategy == NO_BUFFER or (case.asked.strategy == "auto" and not case.rules.auto_extra_buffer)


def _pages_without_buffer(case: Case) -> Iterator[Finding]:
    page = case.asked.page_size
    if not _without_buffer(case) or page in (None, 1):
        return
    remedy, flags = _buffer_or_none(case)
    if case.flag_since((0, 5, 12)) and not case.flag_since((0, 5, 14)):
        yield warning(
            f"page_size {page} is set back to 1: no_buffer takes no other.",
            remedy=f"Leave page_size out, or {remedy}.",
            flags={"page_size": None},
        )
    else:
        yield fatal(
            f"no_buffer takes no page_size but 1, {page} was asked: the start dies.",
            remedy=f"To keep pages, {remedy}; or leave page_size out.",
            flags=flags,
            evidence=("no_buffer only supports page_size=1.",),
        )


def _overlap_without_buffer(case: Case) -> Iterator[Finding]:
    """From 0.5.14 an explicit no_buffer asserts that the overlap schedule is off (``_validate_mamba_no_buffer``)."""
    if not case.rules.auto_extra_buffer or not case.validated or not _without_buffer(case):
        return
    if case.asked.strategy == NO_BUFFER and not case.asked.disable_overlap:
        yield fatal(
            "no_buffer asked for by name needs the overlap schedule off: the start dies of an assertion.",
            remedy="Set disable_overlap_schedule too, or leave the strategy at auto.",
            flags={"disable_overlap_schedule": True},
            evidence=("no_buffer do not support overlap schedule. Try to set disable_overlap_schedule=True.",),
        )
    if case.asked.attention_backend == "trtllm_mha":
        yield fatal(
            "no_buffer does not run with the trtllm_mha attention backend: the start dies of an assertion.",
            remedy="Use the triton attention backend, or the extra_buffer strategy.",
            flags={"attention_backend": "triton"},
        )


def _speculation_without_buffer(case: Case) -> Iterator[Finding]:
    if case.asked.speculation is None or not _without_buffer(case):
        return
    remedy, flags = _buffer_or_none(case)
    if case.rules.speculation_without_buffer == "radix-off":
        yield warning(
            "Speculation without an extra buffer switches the prefix cache off.",
            remedy=f"To keep the prefix cache, {remedy}.",
            flags=flags,
        )
    else:
        yield fatal(
            "Speculation does not go with a prefix cache without an extra buffer.",
            remedy=f"To speculate, {remedy}.",
            flags=flags,
            evidence=("Speculative decoding ... is not compatible with radix cache when using ... no_buffer.",),
        )


def _extra_buffer(case: Case) -> Iterator[Finding]:
    asked = case.asked
    if not case.hybrid or asked.strategy not in (EXTRA_BUFFER, LAZY):
        return
    if asked.disable_radix:
        if case.flag_since((0, 5, 12)) and not case.flag_since((0, 5, 14)):
            yield fatal(
                "An extra buffer without the prefix cache is refused by this version.",
                remedy="Leave the strategy at auto.",
                flags={_strategy_flag(case): None},
            )
        return
    if case.validated and not supports_extra_buffer(case.shape.architecture, case.rules):
        yield fatal(
            f"{case.shape.architecture} has no extra buffer in SGLang {case.rules.label}.",
            remedy="Use no_buffer, with the overlap schedule off, or a newer SGLang.",
            flags={_strategy_flag(case): NO_BUFFER, "disable_overlap_schedule": True},
            evidence=("extra_buffer is not supported for ...; use no_buffer.",),
        )
    yield from _track_interval(case)
    yield from _lazy(case)
    chunk, grid = asked.chunked_prefill_size, max(_SNAPSHOT_GRID, asked.page_size or 1)
    if chunk is not None and 0 < chunk < grid:
        yield warning(
            f"Chunks of {chunk} tokens are shorter than the snapshot grid of {grid}: prefixes are not kept.",
            remedy=f"Raise chunked_prefill_size to at least {grid}.",
            flags={"chunked_prefill_size": grid},
        )


def _track_interval(case: Case) -> Iterator[Finding]:
    interval = case.flags.get("mamba_track_interval", _TRACK_INTERVAL)
    if not isinstance(interval, int) or isinstance(interval, bool):
        return
    speculation, page = case.asked.speculation, case.asked.page_size or 1
    if speculation is not None and interval < speculation.draft_tokens:
        yield fatal(
            f"mamba_track_interval {interval} is below the {speculation.draft_tokens} draft tokens: an assertion.",
            remedy="Leave mamba_track_interval out (256).",
            flags={"mamba_track_interval": None},
        )
    if interval % page:
        yield fatal(
            f"mamba_track_interval {interval} is no multiple of page_size {page}: the start dies of an assertion.",
            remedy="Choose a page size that divides it, such as 64.",
            flags={"page_size": _SNAPSHOT_GRID, "mamba_track_interval": None},
        )
    if not case.flag_since((0, 5, 13)) and max(_SNAPSHOT_GRID, page) % min(_SNAPSHOT_GRID, page):
        yield fatal(
            f"page_size {page} and the kernels' chunk of {_SNAPSHOT_GRID} must divide one another.",
            remedy="Choose a page size such as 64 or 128.",
            flags={"page_size": _SNAPSHOT_GRID},
        )


def _lazy(case: Case) -> Iterator[Finding]:
    asked = case.asked
    if asked.strategy != LAZY:
        return
    back = {_strategy_flag(case): EXTRA_BUFFER}
    if not case.rules.lazy:
        yield fatal(
            f"SGLang {case.rules.label} does not know extra_buffer_lazy (0.5.13 and newer do).",
            remedy="Use extra_buffer.",
            flags=back,
        )
        return
    if asked.disable_overlap:
        yield fatal(
            "The lazy extra buffer needs the overlap schedule: an assertion.",
            remedy="Leave disable_overlap_schedule out, or use extra_buffer.",
            flags={"disable_overlap_schedule": None},
            evidence=("Lazy extra buffer requires overlap schedule",),
        )
    if asked.pd_mode != "null" and case.flag_since((0, 5, 17)):
        yield fatal("The lazy extra buffer does not go with PD disaggregation.", remedy="Use extra_buffer.", flags=back)
    if asked.speculation is not None:
        dies = not case.flag_since((0, 5, 17)) or (
            asked.speculation.algorithm == "DFLASH" and not case.flag_since((0, 5, 18))
        )
        if dies:
            yield fatal(
                f"The lazy extra buffer does not go with {asked.speculation.algorithm} in SGLang {case.rules.label}.",
                remedy="Use extra_buffer.",
                flags=back,
            )


RULES = (_pages_without_buffer, _overlap_without_buffer, _speculation_without_buffer, _extra_buffer)
