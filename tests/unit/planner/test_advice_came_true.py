"""What the adviser promises on one recorded round, against the round that was then recorded with just that change.

The asked need and headroom are chosen so that the proposal is the very change of the later recording.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from recordings import calibrated_on, facts, predicted_from, recorded_flags, seen

from tuner.advice import Proposal, Question, Usage, advise
from tuner.advice.confirm import effects_of
from tuner.planner import plan
from tuner.planner.model import CAPTURE_PEAK, PlanInputs
from tuner.planner.need import Need
from tuner.planner.resolve import pin_draft
from tuner.planner.solve import solve
from tuner.session.solving import solved

FP32, BF16 = "27b-48g-fp32-frac086", "27b-48g-bf16-frac086"
RATIO, SLOTS, MTP, FULL = (
    "27b-48g-bf16-frac086-ratio03",
    "27b-48g-bf16-frac095-slots24",
    "27b-48g-bf16-frac098-mtp",
    "27b-48g-r15-full",
)
#: Three agents at work on slow answers, nothing waits.
SLOW = Usage(
    rounds=("r1",), looks=3000, watched_s=50_000, busy_looks=2000, peak_running=3, peak_queued=0, peak_at_once=3,
    kv_total=220_000, peak_kv_used=90_000, peak_kv_held=150_000, longest_request=60_000, slots_total=81,
    peak_slots_used=10, peak_slots_cached=30, hit_ratio=0.8, computed_tokens=5e6, itl_p50_s=0.034, itl_p95_s=0.058,
    ttft_p50_s=1.6, ttft_p95_s=24.8, prefill_tokens_per_s=2700.0,
)  # fmt: skip


def on(source: str, headroom: float = 4.4, **flags: Any) -> PlanInputs:
    """The start of a recording, calibrated on its log, with some flags changed."""
    inputs = calibrated_on(source)
    return msgspec.structs.replace(inputs, flags=inputs.flags | flags, headroom_line_gib=headroom)


def warm(agents: int, tokens: int, prefixes: int) -> Need:
    return Need(input_tokens=tokens, agents=agents, warm_prefixes=prefixes, warm_tokens=500)


CASES: list[tuple[str, Question, str, str]] = [
    # 74 slots are needed and 41 are there: 16-bit states alone double them.
    (FP32, Question(inputs=on(FP32), need=warm(1, 30_000, 70)), "16-bit-states", BF16),
    # 39 slots are enough and the KV pool is not: ratio 0.9 to 0.3.
    (BF16, Question(inputs=on(BF16), need=warm(2, 230_000, 32)), "smaller-ratio", RATIO),
    # 24 pinned slots, and 2.15 GiB are enough at ready: 0.86 to 0.95.
    (
        RATIO,
        Question(
            inputs=on(RATIO, headroom=2.15, **recorded_flags(SLOTS) | {"mem_fraction_static": 0.86}),
        ),
        "raise-fraction",
        SLOTS,
    ),
    # The draft, and with it the fraction that its vocabulary makes possible.
    (BF16, Question(inputs=on(BF16, 4.95, mamba_radix_cache_strategy="extra_buffer"), usage=SLOW), "draft-on", MTP),
    (
        FP32,
        Question(
            inputs=on(FP32, 4.95, mamba_radix_cache_strategy="extra_buffer", mamba_ssm_dtype="bfloat16"), usage=SLOW
        ),
        "draft-on",
        MTP,
    ),
]


def proposed(question: Question, name: str) -> Proposal:
    return next(proposal for proposal in advise(question).proposals if proposal.id == name)


@pytest.mark.parametrize(("source", "question", "name", "came"), CASES, ids=[f"{s}-{n}-{c}" for s, _, n, c in CASES])
def test_what_was_promised_came(source: str, question: Question, name: str, came: str) -> None:
    proposal, boot = proposed(question, name), facts(came)
    changed = msgspec.structs.replace(question.inputs, flags=question.inputs.flags | proposal.flags)
    # The proposal is the recorded start: both plan to the same pools.
    recorded = plan(msgspec.structs.replace(question.inputs, flags=recorded_flags(came)))
    assert (plan(changed).kv_tokens, plan(changed).mamba_slots) == (recorded.kv_tokens, recorded.mamba_slots)
    promised = {effect.name: effect.new for effect in proposal.effects}
    assert promised["mamba_slots"] == boot.mamba_slots
    assert promised["max_running_requests"] == boot.max_running_requests
    assert boot.kv_tokens is not None and boot.available_gib is not None
    assert promised["kv_tokens"] == pytest.approx(boot.kv_tokens, rel=0.0002)
    # The log's last line is 0.06 GiB before ready.
    assert promised["ready_free_gib"] == pytest.approx(boot.available_gib - 0.06, abs=0.03)


@pytest.mark.parametrize("target", [FP32, BF16, RATIO, SLOTS, MTP, FULL])
@pytest.mark.parametrize("source", [FP32, BF16, RATIO, SLOTS, MTP, FULL])
def test_any_recorded_change_has_the_effects_that_advice_would_name(source: str, target: str) -> None:
    before, after = facts(source), facts(target)
    effects = {e.name: e for e in effects_of(plan(calibrated_on(source)), predicted_from(source, target))}
    for name, old, new in (
        ("mamba_slots", before.mamba_slots, after.mamba_slots),
        ("max_running_requests", before.max_running_requests, after.max_running_requests),
    ):
        assert (effects[name].old, effects[name].new) == (old, new)
    assert before.kv_tokens is not None and after.kv_tokens is not None
    assert effects["kv_tokens"].old == before.kv_tokens
    assert effects["kv_tokens"].new == pytest.approx(after.kv_tokens, rel=0.0005)
    assert before.available_gib is not None and after.available_gib is not None
    change = effects["ready_free_gib"].new - effects["ready_free_gib"].old
    assert change == pytest.approx(after.available_gib - before.available_gib, abs=0.12)


def test_a_start_as_near_to_its_end_as_any_that_came_up_is_foreseen() -> None:
    # Pools of one log, lowest point of another: 0.44 GiB after the draft's pool, twice.
    for source in (FP32, BF16, RATIO, SLOTS):
        for target in (MTP, FULL):
            assert predicted_from(source, target).lowest_free_gib == pytest.approx(
                facts(target).free_after_draft_pools_gib, abs=0.01
            )


def test_the_peak_of_the_capture_is_what_the_card_read() -> None:
    # Before the graphs 138,582 MiB were in use, while they were captured 141,298, and they take 1.68 GiB in the end.
    round_ = seen(FULL)
    used = [mib for second, mib in round_["vram_timeline"] if second > 42.5]
    prefill = facts(FULL).graphs_gib["prefill"]
    assert (max(used) - min(used)) / 1024 == pytest.approx(CAPTURE_PEAK * prefill, abs=0.03)


def test_a_solution_of_little_headroom_lives_through_the_capture() -> None:
    inputs = pin_draft(calibrated_on(FULL))
    flags = {k: v for k, v in inputs.flags.items() if not k.startswith("speculative_")}
    inputs = msgspec.structs.replace(inputs, flags=flags | {"cuda_graph_backend_prefill": "breakable"})
    need, keep = Need(input_tokens=261_000, agents=2, headroom_gib=0.1), ("cuda_graph",)
    blind = solve(inputs, need, keep=keep)
    graphs = next(term.gib for term in blind.plan.terms if term.name == "graphs")
    assert blind.met and blind.plan.ready_free_gib < 0.9 * (CAPTURE_PEAK - 1) * graphs
    assert not solved(inputs, need, keep).met
