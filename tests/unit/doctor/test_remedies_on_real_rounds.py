"""What the doctor and the plan offer for rounds of a real SGLang 0.5.17, and what comes of it by the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from case_table import diagnosed
from test_doctor_plans import R01, inputs

from tuner.doctor import diagnose_plan, diagnose_round, with_remedy
from tuner.findings import Finding, FindingId, Severity
from tuner.modelfile import load_shape
from tuner.planner import plan
from tuner.planner.model import LEAST_FREE_GIB, PlanInputs, Source, Sourced
from tuner.serverlog.reader import read_boot

DATA = Path(__file__).parents[2] / "data" / "real_rounds"


def log(name: str) -> str:
    return (DATA / f"{name}.log").read_text(encoding="utf-8")


def in_the_log(name: str, kind: FindingId) -> Finding:
    return next(f for f in diagnosed(log(name)) if f.id is kind)


def in_the_plan(asked: PlanInputs, kind: FindingId) -> Finding:
    return next(f for f in diagnose_plan(asked, plan(asked)) if f.id is kind)


def next_80b(**flags: Any) -> PlanInputs:
    """An 80B hybrid on a whole H200, with the free memory that its server printed: 256 requests asked, 15 admitted."""
    recorded = msgspec.json.decode((DATA / "next-80b-whole-card.json").read_bytes())
    return PlanInputs(
        shape=load_shape("qwen3-next-80b-a3b-fp8"),
        flags=recorded["recipe"]["flags"] | flags,
        free_before=Sourced(139.03, Source.BOOT_LOG),
        free_after=Sourced(61.36, Source.BOOT_LOG),
    )


def with_flags(asked: PlanInputs, flags: dict[str, Any]) -> PlanInputs:
    return msgspec.structs.replace(asked, flags=asked.flags | flags)


@pytest.mark.parametrize("source", ["log", "plan"])
def test_where_no_card_has_room_for_so_many_requests_as_many_are_offered_as_are_met(source: str) -> None:
    kind, asked = FindingId.REQUESTS_CAPPED_BY_SLOTS, next_80b()
    capped = in_the_log("next-80b-whole-card", kind) if source == "log" else in_the_plan(asked, kind)
    # 1,281 slots take 92 GiB, and all pools have 40.
    assert "max_mamba_cache_size" not in capped.flags and "1281" not in capped.remedy
    assert "256 requests are out of reach" in capped.remedy
    after = plan(with_flags(asked, capped.flags))
    assert after.fits
    assert after.max_running_requests == capped.flags["max_running_requests"] > plan(asked).max_running_requests
    assert after.kv_tokens >= 0.99 * plan(asked).kv_tokens
    assert not any(f.id is kind for f in diagnose_plan(asked, after))


def test_the_most_requests_that_are_named_start_and_leave_a_full_context() -> None:
    asked = next_80b()
    remedy = in_the_plan(asked, FindingId.REQUESTS_CAPPED_BY_SLOTS).remedy
    _, _, named = remedy.partition("With states in bfloat16 about ")
    most = int(named.split()[0])
    pinned = int(named.partition("(max_mamba_cache_size ")[2].split(",")[0])
    flags = {"mamba_ssm_dtype": "bfloat16", "max_mamba_cache_size": pinned, "max_running_requests": most}
    after = plan(with_flags(asked, flags))
    assert after.fits and after.max_running_requests == most
    assert after.kv_tokens >= after.context_len


def test_where_the_pools_have_room_the_slots_that_serve_all_requests_are_offered() -> None:
    asked = next_80b(max_running_requests=48)
    capped = in_the_plan(asked, FindingId.REQUESTS_CAPPED_BY_SLOTS)
    assert capped.flags == {"mamba_ssm_dtype": "bfloat16", "max_mamba_cache_size": 48 * 5 + 1}
    after = plan(with_flags(asked, capped.flags))
    assert after.fits and after.max_running_requests == 48 and after.kv_tokens >= after.context_len


@pytest.mark.parametrize("ratio", [0.05, 0.3, 0.9, 3.0])
@pytest.mark.parametrize("requests", [4, 16, 64, 256])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("slots", [None, 12])
def test_the_requests_of_a_remedy_are_admitted_by_its_plan(
    ratio: float, requests: int, dtype: str, slots: int | None
) -> None:
    flags = {"mamba_full_memory_ratio": ratio, "max_running_requests": requests, "mamba_ssm_dtype": dtype}
    asked = inputs(R01 | flags | ({"max_mamba_cache_size": slots} if slots else {}))
    for found in diagnose_plan(asked, plan(asked)):
        if found.id is FindingId.REQUESTS_CAPPED_BY_SLOTS:
            after = plan(with_flags(asked, found.flags))
            assert after.fits
            assert after.max_running_requests >= found.flags.get("max_running_requests", requests)


def test_requests_that_the_log_caps_are_not_told_twice() -> None:
    facts = read_boot(log("next-80b-whole-card"))
    asked = {"max_running_requests": 256, "speculative_num_draft_tokens": 8}
    effective = {"max_running_requests": 15, "speculative_num_draft_tokens": 4}
    titles = [f.title for f in diagnose_round(asked, effective, facts, beside_log=True)]
    assert titles == ["speculative_num_draft_tokens is 4 in effect, 8 was asked."]


def test_the_log_and_the_plan_call_the_same_slots_of_use() -> None:
    flags = {k: v for k, v in R01.items() if k not in ("mamba_ssm_dtype", "kv_cache_dtype")}
    asked = inputs(flags | {"mamba_radix_cache_strategy": "auto"})
    kind = FindingId.RATIO_MISFIT
    told, planned = in_the_log("27b-48g-r01", kind), in_the_plan(asked, kind)
    assert told.flags == planned.flags == {"max_mamba_cache_size": 16}
    assert told.evidence[0] == planned.evidence[0]
    assert told.title == planned.title


def test_the_longest_input_is_told_to_the_token() -> None:
    # A pool of 109,851 tokens; the same length was answered, and one token more refused.
    assert "Inputs above 109,844 tokens" in in_the_log("27b-48g-r01", FindingId.POOL_BELOW_CONTEXT).title


def test_a_start_that_would_run_out_of_memory_is_brought_to_the_headroom_line() -> None:
    asked = inputs({k: v for k, v in R01.items() if k != "kv_cache_dtype"} | {"mem_fraction_static": 0.997})
    before = plan(asked)
    assert before.lowest_free_gib < 0
    mended = in_the_plan(asked, FindingId.OOM_IN_CAPTURE)
    after = plan(with_flags(asked, mended.flags))
    # The graphs that it had no room for are captured again, and counted.
    assert after.fits and after.ready_free_gib >= after.headroom_line_gib


def test_a_line_that_leaves_no_pools_is_not_insisted_on() -> None:
    asked = msgspec.structs.replace(inputs(R01 | {"mem_fraction_static": 0.997}), headroom_line_gib=30.0)
    after = plan(with_flags(asked, in_the_plan(asked, FindingId.OOM_IN_CAPTURE).flags))
    assert after.fits and after.lowest_free_gib >= LEAST_FREE_GIB


def test_a_lower_fraction_is_lowered_on_until_its_own_start_keeps_to_the_headroom_line() -> None:
    # 0.9 leaves room for the prefill graphs that 0.99 had given up, and they take it.
    asked = inputs({k: v for k, v in R01.items() if k != "kv_cache_dtype"} | {"mem_fraction_static": 0.99})
    first = Finding(
        id=FindingId.OOM_WHILE_SERVING, severity=Severity.FATAL, title="X.", flags={"mem_fraction_static": 0.901}
    )
    assert plan(with_flags(asked, first.flags)).ready_free_gib < 4.4
    remedied = with_remedy(first, asked)
    assert remedied.after is not None and remedied.after.ready_free_gib >= remedied.after.headroom_line_gib
    assert remedied.finding.flags["mem_fraction_static"] < 0.901


def test_what_stays_free_is_what_the_card_was_read_to_have_free() -> None:
    def said(**known: Any) -> str:
        found = diagnosed(log("27b-48g-auto-r2"), **known)
        return next(f.title for f in found if f.id is FindingId.LOW_HEADROOM)

    assert said() == "Only 3.06 GiB of the card stay free."
    assert said(ready_free_gib=2.86) == "Only 2.86 GiB of the card stay free."
