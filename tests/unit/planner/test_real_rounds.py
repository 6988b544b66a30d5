"""The plans of rounds on a real server, against what came."""

from __future__ import annotations

import msgspec
import pytest
from real_rounds import PAIRS, facts_of, inputs_from_the_card, planned_from

from tuner.doctor import diagnose_plan
from tuner.findings import FindingId
from tuner.modelfile import load_shape
from tuner.planner import plan
from tuner.planner.calibrate import calibrate
from tuner.planner.need import Need, longest_answer, tokens_needed


@pytest.mark.parametrize("name", PAIRS)
def test_the_first_round_is_planned_from_the_card_alone(name: str) -> None:
    planned, came = plan(inputs_from_the_card(name)), facts_of(name)
    assert planned.mamba_slots == came.mamba_slots == 41
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.002)
    assert planned.max_running_requests == came.max_running_requests == 3


@pytest.mark.parametrize(("first", "second"), PAIRS.items())
def test_the_second_round_is_planned_from_the_log_of_the_first(first: str, second: str) -> None:
    planned, came = planned_from(first, second), facts_of(second)
    assert planned.mamba_slots == came.mamba_slots
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.0005)
    assert planned.longest_input_tokens == load_shape("qwen3.8-27b-fp8-text").context_len - 7


def test_a_pool_that_answers_a_need_narrowly_says_how_long_answers_may_grow() -> None:
    planned, came = planned_from("27b-48g-auto-r1", "27b-48g-auto-r2"), facts_of("27b-48g-auto-r2")
    need = Need(input_tokens=88_165, agents=3, output_tokens=64)
    assert came.kv_tokens is not None
    longest = longest_answer(need, planned, came.kv_tokens)
    # Three of the answers that were proved filled 264,681 of its 265,176 tokens.
    assert 64 < longest < 264
    fits, grown = (msgspec.structs.replace(need, output_tokens=tokens) for tokens in (longest, longest + 1))
    assert tokens_needed(fits, planned) <= came.kv_tokens < tokens_needed(grown, planned)
    assert longest_answer(need, planned, 264_000) == 0


def test_experts_and_a_draft_that_the_config_does_not_name_are_counted() -> None:
    inputs = inputs_from_the_card("next-80b-whole-card")
    planned, came = plan(inputs), facts_of("next-80b-whole-card")
    assert planned.mamba_slots == came.mamba_slots == 78
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.002)
    assert planned.ready_free_gib == pytest.approx(came.available_gib, abs=0.1)


def test_the_256_requests_that_were_asked_are_told_as_the_15_that_they_become() -> None:
    inputs = inputs_from_the_card("next-80b-whole-card")
    planned, came = plan(inputs), facts_of("next-80b-whole-card")
    assert inputs.flags["max_running_requests"] == 256
    assert planned.max_running_requests == came.max_running_requests == came.requests_capped_to == 15
    capped = next(f for f in diagnose_plan(inputs, planned) if f.id is FindingId.REQUESTS_CAPPED_BY_SLOTS)
    assert capped.title == "The state slots admit 15 requests at once, 256 are asked."


def test_a_plain_transformer_on_the_whole_card_has_no_state_pool() -> None:
    planned = plan(inputs_from_the_card("dense-whole-card"))
    came = facts_of("dense-whole-card")
    assert planned.mamba_slots == 0 and came.mamba_slots is None
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.002)


def test_prefill_graphs_are_told_apart_from_the_others() -> None:
    known = calibrate(inputs_from_the_card("27b-48g-r01"), facts_of("27b-48g-r01"), name="r1")
    assert known.prefill_graphs_gib == 1.68 and known.graphs_gib == pytest.approx(1.75)
    without = msgspec.structs.replace(known, flags=known.flags | {"cuda_graph_backend_prefill": "disabled"})
    assert plan(without).ready_free_gib - plan(known).ready_free_gib == pytest.approx(1.68, abs=0.01)
