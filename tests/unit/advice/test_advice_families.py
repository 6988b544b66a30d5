"""Each kind of proposal: when it is offered, when it is not, and what it then really gives."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from advice_cases import AFTER_WITH_DRAFT, ask, effect, ids, inputs, look, named, preset

from tuner.advice import Tried, Usage, advise
from tuner.measure.model import Physics, SpeedPoint
from tuner.planner import plan
from tuner.planner.need import Need

HYBRID: dict[str, Any] = {
    "mamba_ssm_dtype": "bfloat16",
    "kv_cache_dtype": "fp8_e4m3",
    "mamba_radix_cache_strategy": "extra_buffer",
    "max_running_requests": 3,
    "chunked_prefill_size": 4096,
    "max_prefill_tokens": 8192,
}
SPECULATIVE: dict[str, Any] = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 2,
}
#: A server that serves its work: nothing waits, nothing is evicted, most prompts are found again.
CALM = Usage(
    rounds=("r1",), looks=3000, watched_s=50_000, busy_looks=2000, peak_running=2, peak_queued=0, peak_at_once=2,
    kv_total=220_000, peak_kv_used=90_000, peak_kv_held=150_000, longest_request=60_000, slots_total=81,
    peak_slots_used=10, peak_slots_cached=30, hit_ratio=0.8, computed_tokens=5e6, itl_p50_s=0.012, itl_p95_s=0.02,
    ttft_p50_s=0.4, ttft_p95_s=0.9, prefill_tokens_per_s=5000.0,
)  # fmt: skip


def used(**changes: Any) -> Usage:
    return msgspec.structs.replace(CALM, **changes)


# when to stop


def test_a_server_that_serves_its_work_is_good_enough() -> None:
    advice = advise(ask(inputs(**HYBRID), usage=CALM))
    assert (advice.enough, advice.proposals) == (True, ())
    assert advice.sentence.startswith("Good enough, stop: what was seen at work is served, 4.")
    assert advice.derived_need is not None and advice.derived_need.agents == 2


def test_a_stated_need_that_is_met_is_enough_too_and_is_not_called_derived() -> None:
    advice = advise(ask(inputs(**HYBRID), need=Need(input_tokens=90_000, agents=2)))
    assert advice.enough and "the need is met" in advice.sentence
    assert advice.derived_need is None


def test_without_readings_and_need_nothing_is_called_enough_for_a_need() -> None:
    advice = advise(ask(inputs(**HYBRID, context_length=100_000)))
    assert advice.proposals == ()
    assert advice.sentence.startswith("Nothing idle is worth a restart")
    assert "the advice stands on the start alone" in advice.notes[0]


def test_a_need_that_no_single_change_reaches_names_the_next_step_and_what_is_missing() -> None:
    advice = advise(ask(preset("qwen3.8-27b-r01"), need=Need(input_tokens=120_000, agents=3)))
    assert not advice.enough
    assert advice.sentence.startswith("Needed: 3 requests at once, 120,000 tokens the longest. Not served")
    assert any("KV pool" in sentence for sentence in advice.missing)
    assert "tuner solve finds several" in advice.sentence


# idle memory


def test_idle_memory_comes_first_and_keeps_the_headroom() -> None:
    advice = advise(ask(inputs(**HYBRID | {"mem_fraction_static": 0.75})))
    first = advice.proposals[0]
    assert first.id == "raise-fraction"
    old, new = effect(first, "ready_free_gib")
    assert old > 9 and 4.4 <= new < 4.6
    assert effect(first, "kv_tokens")[1] > 1.5 * effect(first, "kv_tokens")[0]


def test_idle_memory_is_left_alone_where_hours_show_that_the_pool_is_never_filled() -> None:
    start = inputs(**HYBRID | {"mem_fraction_static": 0.80})
    assert "raise-fraction" in ids(advise(ask(start)))
    assert ids(advise(ask(start, usage=used(peak_kv_held=100_000)))) == []


def test_a_start_that_leaves_too_little_gives_headroom_back() -> None:
    advice = advise(ask(inputs(**HYBRID | {"mem_fraction_static": 0.93}), usage=CALM))
    assert ids(advice) == ["lower-fraction"]
    assert effect(advice.proposals[0], "ready_free_gib")[1] >= 4.4
    assert effect(advice.proposals[0], "kv_tokens")[1] < effect(advice.proposals[0], "kv_tokens")[0]
    assert advice.proposals[0].gives_up == "KV tokens and state slots"


def test_headroom_is_not_bought_with_what_a_stated_need_takes() -> None:
    start = inputs(**HYBRID | {"mem_fraction_static": 0.93, "max_running_requests": 4})
    need = Need(input_tokens=88_000, agents=3)
    assert plan(start).kv_tokens > 264_000
    assert "lower-fraction" not in ids(advise(ask(start, need=need)))


def test_requests_that_nobody_sends_give_their_draft_states_back() -> None:
    start = inputs(after=AFTER_WITH_DRAFT, **HYBRID | SPECULATIVE | {"max_running_requests": 10, "headroom": 2.0})
    start = msgspec.structs.replace(start, flags=start.flags | {"mem_fraction_static": 0.95})
    advice = advise(ask(start, usage=used(retracted=3)))
    fewer = named(advice, "fewer-requests")
    assert fewer.flags == {"max_running_requests": 3}
    assert effect(fewer, "kv_tokens")[1] > effect(fewer, "kv_tokens")[0]


def test_requests_that_wait_beside_pools_that_would_serve_them_run() -> None:
    usage = used(peak_running=3, peak_queued=2, peak_at_once=5, queue_share=0.4)
    more = named(advise(ask(inputs(**HYBRID), usage=usage)), "more-requests")
    assert more.flags == {"max_running_requests": 5}
    assert more.meets_need


def test_a_cap_that_was_asked_for_goes_when_it_holds_back_the_need() -> None:
    need = Need(input_tokens=120_000, agents=1)
    advice = advise(ask(inputs(**HYBRID, context_length=65_536), need=need))
    assert (advice.proposals[0].id, advice.proposals[0].flags) == ("longer-context", {"context_length": None})
    advice = advise(ask(inputs(**HYBRID, max_total_tokens=80_000), need=need))
    assert (advice.proposals[0].id, advice.proposals[0].flags) == ("no-token-cap", {"max_total_tokens": None})


# the ratio


def test_the_ratio_follows_a_stated_need_both_ways() -> None:
    to_kv = advise(ask(inputs(**HYBRID), need=Need(input_tokens=150_000, agents=2)))
    assert to_kv.proposals[0].id == "smaller-ratio" and to_kv.proposals[0].meets_need
    many = inputs(**HYBRID | {"max_running_requests": 30, "mamba_full_memory_ratio": 0.5})
    to_states = advise(ask(many, need=Need(input_tokens=3_000, agents=18)))
    assert to_states.proposals[0].id == "larger-ratio" and to_states.proposals[0].meets_need
    assert effect(to_states.proposals[0], "max_running_requests")[1] >= 18


def test_pinned_slots_are_moved_by_their_number_and_not_by_a_ratio_without_effect() -> None:
    start = inputs(**HYBRID | {"max_mamba_cache_size": 70})
    first = advise(ask(start, need=Need(input_tokens=150_000, agents=2))).proposals[0]
    assert (first.id, first.flags) == ("fewer-slots", {"max_mamba_cache_size": 11})


def test_the_warm_conversations_of_a_need_keep_their_slots() -> None:
    need = Need(input_tokens=150_000, agents=2, warm_prefixes=20, warm_tokens=0)
    first = advise(ask(inputs(**HYBRID), need=need)).proposals[0]
    assert first.id == "smaller-ratio"
    assert effect(first, "mamba_slots")[1] >= 2 * 5 + 1 + 20


def test_unified_memory_has_no_ratio_to_move() -> None:
    start = inputs(**HYBRID | {"enable_unified_memory": True, "kv_cache_dtype": "auto", "attention_backend": "triton"})
    assert "smaller-ratio" not in ids(advise(ask(start, need=Need(input_tokens=150_000, agents=2))))


# dtypes


def test_smaller_states_alone_give_slots_and_with_the_ratio_kv() -> None:
    float32 = HYBRID | {"mamba_ssm_dtype": "float32"}
    for_kv = named(advise(ask(inputs(**float32), need=Need(input_tokens=150_000, agents=2))), "16-bit-states")
    assert set(for_kv.flags) == {"mamba_ssm_dtype", "mamba_full_memory_ratio"}
    assert effect(for_kv, "kv_tokens")[1] > 1.3 * effect(for_kv, "kv_tokens")[0]
    many = float32 | {"max_running_requests": 30}
    for_slots = named(advise(ask(inputs(**many), need=Need(input_tokens=3_000, agents=12))), "16-bit-states")
    assert for_slots.flags == {"mamba_ssm_dtype": "bfloat16"}
    assert effect(for_slots, "mamba_slots")[1] > 1.8 * effect(for_slots, "mamba_slots")[0]


def test_8_bit_kv_is_offered_only_where_kv_is_wanted_and_not_8_bit_yet() -> None:
    need = Need(input_tokens=150_000, agents=2)
    wide = inputs(**HYBRID | {"kv_cache_dtype": "auto"})
    kv = named(advise(ask(wide, need=need)), "8-bit-kv")
    assert effect(kv, "kv_tokens")[1] == pytest.approx(2 * effect(kv, "kv_tokens")[0], rel=1e-4)
    assert "scales" in kv.risk
    assert "8-bit-kv" not in ids(advise(ask(inputs(**HYBRID), need=need)))
    assert ids(advise(ask(wide, usage=CALM))) == []


# strategy


def test_slots_that_cap_requests_lead_to_the_lazy_buffer_where_the_version_has_one() -> None:
    flags = HYBRID | {"max_running_requests": 30}
    need = Need(input_tokens=3_000, agents=20)
    lazy = named(advise(ask(inputs(**flags), need=need)), "lazy-buffer")
    old, new = effect(lazy, "max_running_requests")
    assert (old, new) == (16, 20)
    old_name = flags | {"mamba_scheduler_strategy": "extra_buffer"}
    del old_name["mamba_radix_cache_strategy"]
    model = "qwen3-next-80b-a3b-fp8"
    old_version = inputs(model, "0.5.12", before=130.0, after=50.0, **old_name)
    assert "lazy-buffer" not in ids(advise(ask(old_version, need=Need(input_tokens=3_000, agents=400))))


@pytest.mark.parametrize(("version", "flag"), [("0.5.12", "mamba_scheduler_strategy"),
                                               ("0.5.17", "mamba_radix_cache_strategy")])  # fmt: skip
def test_few_hits_without_a_buffer_lead_to_one_under_the_name_of_the_version(version: str, flag: str) -> None:
    start = inputs("qwen3.8-27b-fp8", version, **{"mamba_ssm_dtype": "bfloat16", "max_running_requests": 3,
                                                  flag: "no_buffer", "disable_overlap_schedule": True})  # fmt: skip
    buffer = named(advise(ask(start, usage=used(hit_ratio=0.05))), "extra-buffer")
    assert buffer.flags == {flag: "extra_buffer", "disable_overlap_schedule": None}
    assert "extra-buffer" not in ids(advise(ask(start, usage=used(hit_ratio=0.6))))


def test_a_failed_check_of_the_prefix_cache_is_evidence_enough() -> None:
    start = preset("qwen3.8-27b-r01")
    assert "extra-buffer" in ids(advise(ask(start, prefix_reused=False)))
    assert "extra-buffer" not in ids(advise(ask(start, prefix_reused=True)))


def test_prompts_that_never_share_a_beginning_need_no_cache() -> None:
    usage = used(hit_ratio=0.001, queue_share=0.5, peak_queued=20, peak_at_once=36, peak_running=16)
    start = inputs(**HYBRID | {"max_running_requests": 40})
    off = named(advise(ask(start, usage=usage)), "prefix-cache-off")
    assert off.flags == {"disable_radix_cache": True, "mamba_radix_cache_strategy": None}
    assert effect(off, "max_running_requests")[1] > 2 * effect(off, "max_running_requests")[0]


# speculation


def test_slow_decoding_with_few_requests_is_worth_a_draft_that_the_need_survives() -> None:
    slow = used(itl_p50_s=0.04, itl_p95_s=0.06)
    on = named(advise(ask(inputs(**HYBRID), usage=slow)), "draft-on")
    assert on.flags["speculative_algorithm"] == "NEXTN"
    assert effect(on, "kv_tokens")[1] >= 90_000
    assert "draft-on" not in ids(advise(ask(inputs(**HYBRID), usage=used(itl_p50_s=0.04, peak_running=20))))
    assert "draft-on" not in ids(advise(ask(inputs(**HYBRID), usage=CALM)))
    assert "draft-on" in ids(advise(ask(inputs(**HYBRID), usage=CALM, slo_itl_s=0.010)))


def test_a_draft_is_not_offered_where_its_weights_would_take_what_is_needed() -> None:
    slow = used(itl_p50_s=0.04, itl_p95_s=0.06)
    need = Need(input_tokens=200_000, agents=1, headroom_gib=4.6)
    start = inputs(version="0.5.12", model="qwen3.8-27b-fp8", **HYBRID)
    assert "draft-on" not in ids(advise(ask(start, usage=slow, need=need)))


def test_drafts_that_are_refused_are_not_made() -> None:
    start = inputs(after=AFTER_WITH_DRAFT, headroom=2.0, **HYBRID | SPECULATIVE | {"mem_fraction_static": 0.95})
    off = named(advise(ask(start, usage=used(acceptance_length=1.1))), "draft-off")
    assert set(off.flags) == set(SPECULATIVE) and set(off.flags.values()) == {None}
    assert effect(off, "kv_tokens")[1] > effect(off, "kv_tokens")[0]
    assert off.gives_up == "nothing that was used"
    assert "draft-off" not in ids(advise(ask(start, usage=used(acceptance_length=1.6))))


def test_later_drafts_that_are_refused_are_cut() -> None:
    three = {"speculative_num_steps": 3, "speculative_num_draft_tokens": 4}
    start = inputs(after=AFTER_WITH_DRAFT, headroom=2.0, **HYBRID | SPECULATIVE | three | {"mem_fraction_static": 0.95})
    shorter = named(advise(ask(start, usage=used(acceptance_length=2.0))), "draft-shorter")
    assert shorter.flags == {"speculative_num_steps": 1, "speculative_num_draft_tokens": 2}


# policy


def test_lpm_needs_a_queue_and_hits() -> None:
    waits = used(queue_share=0.05, peak_queued=1)
    lpm = named(advise(ask(inputs(**HYBRID), usage=waits)), "longest-prefix-first")
    assert lpm.flags == {"schedule_policy": "lpm"}
    for usage in (CALM, used(queue_share=0.05, hit_ratio=0.01), used(queue_share=0.05, peak_queued=400)):
        assert "longest-prefix-first" not in ids(advise(ask(inputs(**HYBRID), usage=usage)))
    has_it = inputs(**HYBRID, schedule_policy="lpm")
    assert "longest-prefix-first" not in ids(advise(ask(has_it, usage=waits)))


def test_answers_that_stand_while_prompts_are_computed_want_smaller_chunks() -> None:
    for stalls in (used(itl_p95_s=0.2), used(stalled_share=0.2)):
        chunk = named(advise(ask(inputs(**HYBRID), usage=stalls)), "smaller-chunk")
        assert chunk.flags == {"chunked_prefill_size": 2048}


def test_long_prompts_in_many_small_chunks_want_larger_ones() -> None:
    start = inputs(**HYBRID | {"chunked_prefill_size": 1024})
    assert named(advise(ask(start, usage=CALM)), "larger-chunk").flags == {"chunked_prefill_size": 2048}


def test_retracted_requests_want_kv_first_and_more_caution_last() -> None:
    advice = advise(ask(inputs(**HYBRID), usage=used(retracted=7)))
    assert ids(advice)[0] == "smaller-ratio"
    assert ids(advice)[-1] == "more-conservative"
    assert advice.proposals[-1].flags == {"schedule_conservativeness": 1.3}


# physics, leaks, too few readings


@pytest.mark.parametrize(("ttft", "words"), [(25.0, "physics, no flag mends it"), (90.0, "requests wait")])
def test_a_slow_first_token_is_told_from_a_flag_by_what_the_card_does_alone(ttft: float, words: str) -> None:
    points = tuple(SpeedPoint(tokens=n, ttft_s=n / 2700, prefill_tokens_per_s=2700.0) for n in (1_024, 16_384, 65_536))
    question = ask(inputs(**HYBRID), usage=used(ttft_p95_s=ttft), physics=Physics(at=0.0, points=points))
    assert any(words in note and "(measured)" in note for note in advise(question).notes)


def test_slots_that_no_request_can_hold_are_a_leak() -> None:
    looks = tuple(look(m, running=1, queued=0, slots_used=40, slots_total=81) for m in range(60))
    notes = advise(ask(inputs(**HYBRID), looks)).notes
    assert any("35 state slots are in use beyond" in note and "a leak" in note for note in notes)


def test_few_readings_say_so() -> None:
    notes = advise(ask(inputs(**HYBRID), usage=used(watched_s=120.0, looks=12))).notes
    assert any("hours of the real work make better advice" in note for note in notes)
    notes = advise(ask(inputs(**HYBRID), usage=used(metrics=False))).notes
    assert any("set enable_metrics" in note for note in notes)


def test_a_fresh_start_is_judged_by_the_work_of_the_round_before_it() -> None:
    fresh = used(watched_s=20.0, busy_looks=9, peak_running=1, peak_at_once=1, longest_request=40, itl_p50_s=0.09)
    small = inputs(**HYBRID | {"max_running_requests": 1})
    advice = advise(ask(small, usage=fresh, before=CALM))
    assert advice.derived_need is not None and advice.derived_need.input_tokens == CALM.longest_request
    assert ids(advice) == ["more-requests"]
    assert advise(ask(small, usage=fresh)).derived_need is None


# what was tried before, models without states, starts that do not come up


def test_what_died_or_was_rejected_before_is_not_offered_again() -> None:
    start, need = inputs(**HYBRID), Need(input_tokens=150_000, agents=2)
    first = advise(ask(start, need=need)).proposals[0]
    flags = {**start.flags, **first.flags, "port": 31000}
    bad = advise(ask(start, need=need, tried=(Tried(name="r7", flags=flags, bad=True),)))
    assert first.flags not in [p.flags for p in bad.proposals]
    good = advise(ask(start, need=need, tried=(Tried(name="r7", flags=flags, bad=False),)))
    assert good.proposals[0].evidence[-1] == "r7 ran with these flags before"


def test_a_model_without_states_is_advised_too() -> None:
    start = inputs("qwen3-dense-small", before=40.0, after=30.0, mem_fraction_static=0.6, max_running_requests=4)
    advice = advise(ask(start, need=Need(input_tokens=30_000, agents=4)))
    assert "slots" not in " ".join(line for p in advice.proposals for line in (p.reason, *p.evidence))
    assert set(ids(advice)) <= {"raise-fraction", "8-bit-kv", "more-requests"}


def test_a_start_that_died_of_something_else_is_left_to_the_findings() -> None:
    advice = advise(ask(inputs(**HYBRID | {"mem_fraction_static": 0.75}), failed="A kernel crashed."))
    assert not advice.enough and advice.proposals == ()
    assert advice.sentence == "This start failed: A kernel crashed. Mend that first: the findings say how."


def test_a_start_without_room_for_pools_is_told_to_take_more() -> None:
    start = inputs(**HYBRID | {"mem_fraction_static": 0.55})
    advice = advise(ask(start))
    assert not advice.enough and advice.sentence.startswith("These flags do not start: ")
    assert ids(advice)[0] == "raise-fraction"
    assert effect(advice.proposals[0], "kv_tokens")[1] > 100_000
