"""Memory that ran out: on the card, by the phase it struck in, and the state slots while serving."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tuner.doctor.case import LogCase, Seen, finding
from tuner.doctor.sizing_causes import REFUSALS, share_too_small
from tuner.findings import Finding, FindingId, Severity
from tuner.serverlog.model import Phase
from tuner.units import format_gib

_STEP = 0.02
#: Left free beyond what an allocation lacked, GiB: it was hardly the last one.
_SPARE_GIB = 0.5
#: Below this share of the card something else was on it before the weights came.
_CARD_SHARE = 0.95
#: As much less than planned is free before the weights without anybody's doing: contexts differ by that.
_AS_PLANNED_GIB = 0.5

OOM = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|HIP out of memory")
_LACKED = re.compile(
    r"Tried to allocate (?P<tried>[\d.]{1,9}) (?P<unit>[MG])iB.{0,200}? of which (?P<free>[\d.]{1,9}) (?P<unit2>[MG])iB"
)
_OTHER_PROCESS = re.compile(r"Process (?P<pid>\d{1,9}) has (?P<gib>\d{1,4}(?:\.\d+)?) GiB memory in use")
_CAPTURING = re.compile(r"Capture (?:\w+ )?(?:cuda )?graph failed|cuda_graph_runner|Capturing batches", re.IGNORECASE)
_UNBALANCED = re.compile(r"memory capacity is unbalanced")
_RUN_OOM = re.compile(
    r"(?:Prefill|Decode) out of memory\. Try to lower|alloc_req_slots runs out of memory|"
    r"Out of memory even after retracting all other requests"
)
_SLOT_ASSERT = re.compile(r"Can not alloc mamba cache|Not enough space for mamba (?:cache|ping pong idx)")


def gpu_busy(case: LogCase) -> Finding | None:
    """Another process on the card, as far as the log or the card's size tells."""
    if seen := case.find(_UNBALANCED):
        return finding(
            FindingId.GPU_BUSY,
            Severity.FATAL,
            "The GPUs do not have the same free memory: another process holds some of it.",
            evidence=(seen.line,),
            remedy="Look at the processes on each GPU and end what is not needed.",
        )
    short = next((seen for pattern in (OOM, *REFUSALS) if (seen := case.find(pattern))), None)
    if short is None or share_too_small(case):
        return None
    other = case.find(_OTHER_PROCESS)
    if other and 1 <= float(other.match["gib"]) < 2048 and not _held_when_planned(case, float(other.match["gib"])):
        return finding(
            FindingId.GPU_BUSY,
            Severity.FATAL,
            f"The card was out of memory while process {other.match['pid']} held {other.match['gib']} GiB of it.",
            evidence=(other.line,),
            remedy="End that process if it is not needed, or plan with what it leaves free.",
        )
    before, card = case.facts.free_before_gib, case.card_gib
    if before is not None and card and before < _CARD_SHARE * card - 1 and not _free_as_planned(case):
        return finding(
            FindingId.GPU_BUSY,
            Severity.FATAL,
            f"Only {format_gib(before)} of the card's {format_gib(card)} were free before the weights: something else "
            "holds the rest.",
            evidence=(short.line, f"Load weight begin. avail mem={before:.2f} GB"),
            remedy="Look at the processes on the card and end what is not needed, before any flag is changed.",
        )
    return None


def _free_as_planned(case: LogCase) -> bool:
    """Whether no less was free before the weights than planned: the flags did not fit what others left, as known."""
    before, counted_on = case.facts.free_before_gib, case.counted_on_gib
    return before is not None and counted_on is not None and before >= counted_on - _AS_PLANNED_GIB


def _held_when_planned(case: LogCase, gib: float) -> bool:
    """Whether a process with so much held no more of the card than others did when the start was planned."""
    if case.counted_on_gib is None or case.card_gib is None:
        return False
    return gib <= case.card_gib - case.counted_on_gib + _AS_PLANNED_GIB


def out_of_memory(case: LogCase) -> Finding | None:
    """CUDA out of memory: which phase it struck in decides what helps."""
    seen = case.find(OOM) or case.find(_RUN_OOM)
    if not seen:
        return None
    evidence = [seen.line]
    if case.free_gib is not None:
        evidence.append(f"free memory told last: {format_gib(case.free_gib)}")
    if case.find(_RUN_OOM) and not case.find(OOM):
        return finding(
            FindingId.OOM_WHILE_SERVING,
            Severity.FATAL,
            "The pools could not take the requests that were running.",
            evidence=evidence,
            remedy="Lower max_running_requests or chunked_prefill_size, or give the KV pool more.",
        )
    if case.reached in (Phase.LAUNCHING, Phase.LOADING):
        return _oom_while_loading(case, evidence)
    lower = _lower_fraction(case, _lacking_gib(seen))
    if case.reached in (Phase.BINDING, Phase.WARMING, Phase.READY):
        return finding(
            FindingId.OOM_WHILE_SERVING,
            Severity.FATAL,
            "The card ran out of memory while serving: what lives outside the pools had too little room.",
            evidence=evidence,
            remedy=f"Lower mem_fraction_static so that {format_gib(case.headroom_gib)} stay free at ready, or "
            "chunked_prefill_size.",
            flags=_with_headroom(case) or lower,
        )
    if case.reached is Phase.SIZING and not case.find(_CAPTURING):
        return _oom_in_pools(case, evidence, lower)
    return _oom_in_capture(case, evidence, lower)


def _oom_while_loading(case: LogCase, evidence: Sequence[str]) -> Finding:
    if case.reached is Phase.LAUNCHING and case.facts.free_before_gib is None and not case.facts.server_args:
        return finding(
            FindingId.OOM_WHILE_LOADING,
            Severity.FATAL,
            "The card ran out of memory, and these lines do not say in which phase of the start.",
            evidence=evidence,
            remedy="Give the log from its first line on: while loading only a free card or smaller weights help, later "
            "a lower mem_fraction_static.",
        )
    return finding(
        FindingId.OOM_WHILE_LOADING,
        Severity.FATAL,
        "The card was full before the weights were loaded.",
        evidence=evidence,
        remedy="Free the card, or use smaller weights (a checkpoint that is quantised already) or more cards; "
        "flags of the pools do not help here.",
    )


def _oom_in_pools(case: LogCase, evidence: Sequence[str], lower: dict[str, float]) -> Finding:
    if case.facts.free_after_pools_gib is None:
        title = "The card ran out of memory while the pools were allocated, before any graph was captured."
    else:
        title = (
            "The card ran out of memory after the pools, before any graph was captured: the draft's pool and "
            "the workspaces of the backends lie outside them."
        )
    return finding(
        FindingId.OOM_IN_POOLS,
        Severity.FATAL,
        title,
        evidence=evidence,
        remedy="Lower mem_fraction_static by what was lacking; if the plan shows room enough, something else took "
        "memory of this card meanwhile.",
        flags=lower,
    )


def _oom_in_capture(case: LogCase, evidence: Sequence[str], lower: dict[str, float]) -> Finding:
    states = (case.facts.spec_state_gib or 0.0) + (case.facts.spec_conv_gib or 0.0)
    draft = "" if states < 1 else f" The drafts' states take {format_gib(states)}: fewer requests or drafts free them."
    return finding(
        FindingId.OOM_IN_CAPTURE,
        Severity.FATAL,
        "The card ran out of memory while the CUDA graphs were captured: they live outside the pools.",
        evidence=evidence,
        remedy="Lower mem_fraction_static a little, or cuda_graph_max_bs_decode to the requests really running."
        + draft,
        flags=lower,
    )


def _lacking_gib(seen: Seen) -> float:
    """What an allocation lacked, and a little more; 0 when the line does not tell."""
    if not (told := _LACKED.search(seen.line)):
        return 0.0
    tried = float(told["tried"]) / (1024 if told["unit"] == "M" else 1)
    free = float(told["free"]) / (1024 if told["unit2"] == "M" else 1)
    return tried - free + _SPARE_GIB


def _with_headroom(case: LogCase) -> dict[str, float]:
    """The fraction that leaves the headroom line free at ready; empty where that leaves no pools, or is not known."""
    free, before, after = case.facts.available_gib, case.facts.free_before_gib, case.facts.free_after_gib
    if free is None or not before or free >= case.headroom_gib:
        return {}
    flags = _lower_fraction(case, case.headroom_gib - free)
    # What the pools have at a fraction: free after the weights - before x (1 - fraction).
    pools = after is None or any(after > before * (1 - fraction) for fraction in flags.values())
    return flags if pools else {}


def _lower_fraction(case: LogCase, gib: float) -> dict[str, float]:
    """The fraction that leaves ``gib`` more outside the pools, and one step less at least."""
    fraction, before = case.number("mem_fraction_static"), case.facts.free_before_gib
    if fraction is None or fraction <= 0.1:
        return {}
    step = max(_STEP, gib / before) if before else _STEP
    lower = math.floor((fraction - step) * 1000 + 1e-6) / 1000
    return {"mem_fraction_static": lower} if lower > 0.1 else {}


def slot_assert(case: LogCase) -> Finding | None:
    """The scheduler's assertion when no state slot is free."""
    seen = case.find(_SLOT_ASSERT)
    if not seen:
        return None
    facts = case.facts
    slots, requests = facts.mamba_slots, facts.max_running_requests
    pinned = case.number("max_mamba_cache_size")
    evidence = [seen.line]
    flags: dict[str, float | bool | None] = {}
    if slots is not None and requests is not None:
        evidence.append(f"{slots} state slots, {requests} running requests admitted")
        if requests > 1:
            flags = {"max_running_requests": requests - 1}
    elif pinned and (asked := case.number("max_running_requests")):
        evidence.append(f"asked: max_mamba_cache_size={pinned:.0f}, max_running_requests={asked:.0f}")
        if asked > 1:
            flags = {"max_running_requests": int(asked) - 1}
    notes = ["Admit fewer requests, or raise max_mamba_cache_size to requests x slots per request + 1 and more."]
    if pinned:
        notes.append("The slots are pinned, so a higher ratio does nothing.")
    if case.on("enable_hierarchical_cache"):
        notes.append("A cache tier in host memory locks slots while it writes: leave enable_hierarchical_cache out.")
        flags = {"enable_hierarchical_cache": None}
    if case.on("enable_unified_memory"):
        notes.append("With enable_unified_memory this is a fault of SGLang (seen in August 2026): leave it out.")
        flags = {"enable_unified_memory": None}
    if case.argument("disaggregation_mode") == "decode":
        notes.append("Up to 0.5.9 the decode role ignores max_mamba_cache_size: compare the log's slots with it.")
    return finding(
        FindingId.SLOT_ASSERT,
        Severity.FATAL,
        "The state slots ran out while serving, and the scheduler died of it.",
        evidence=evidence,
        remedy=" ".join(notes),
        flags=flags,
    )
