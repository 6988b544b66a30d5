"""Rounds of real servers: pools, calibration and the sum of terms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from planner_cases import shape
from recordings import (
    ROUNDS,
    ROUNDS_27B,
    STARTED,
    calibrated_on,
    facts,
    own_share_gib,
    predicted_from,
    printed_inputs,
    terms_gib,
)

from tuner.planner import CannotPlan, plan
from tuner.planner.accuracy import accuracy, accuracy_text
from tuner.planner.calibrate import calibrate
from tuner.planner.conditions import conditions, void_reason
from tuner.planner.model import GIB, Source, Sourced


@pytest.mark.parametrize("name", ROUNDS)
def test_the_printed_numbers_alone_give_the_pools_of_a_recording(name: str) -> None:
    boot, result = facts(name), plan(printed_inputs(name))
    assert boot.kv_tokens is not None
    assert result.kv_tokens == pytest.approx(boot.kv_tokens, rel=0.002)
    assert result.max_running_requests == boot.max_running_requests
    assert result.fits
    if boot.mamba_slots is not None:
        assert result.mamba_slots_low is not None and result.mamba_slots_high is not None
        assert result.mamba_slots_low <= boot.mamba_slots <= result.mamba_slots_high
        if name in ROUNDS_27B:
            assert result.mamba_slots == boot.mamba_slots


@pytest.mark.parametrize("target", ROUNDS_27B)
@pytest.mark.parametrize("source", ROUNDS_27B)
def test_one_calibrated_round_predicts_the_others(source: str, target: str) -> None:
    result, boot = predicted_from(source, target), facts(target)
    assert boot.kv_tokens is not None
    off = abs(result.kv_tokens - boot.kv_tokens)
    assert off <= max(0.0005 * boot.kv_tokens, 0.006 * GIB / result.bytes_per_token)
    assert result.mamba_slots == boot.mamba_slots
    assert result.basis == "calibrated"


@pytest.mark.parametrize("name", ROUNDS)
def test_a_calibrated_plan_of_its_own_round_is_exact(name: str) -> None:
    result, boot = plan(calibrated_on(name)), facts(name)
    assert (result.mamba_slots or None, result.kv_tokens) == (boot.mamba_slots, boot.kv_tokens)
    assert accuracy(result, boot).tokens_percent == 0


@pytest.mark.parametrize("name", STARTED)
def test_the_named_terms_add_up_to_the_servers_share(name: str) -> None:
    share = own_share_gib(name)
    assert terms_gib(plan(printed_inputs(name))) == pytest.approx(share, rel=0.015)
    assert terms_gib(plan(calibrated_on(name))) == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("name", STARTED)
def test_the_cards_own_reading_makes_the_terms_exact(name: str) -> None:
    inputs = calibrate(printed_inputs(name), facts(name), own_share_gib=own_share_gib(name))
    assert terms_gib(plan(inputs)) == pytest.approx(own_share_gib(name), abs=0.01)


def test_the_drafts_vocabulary_comes_back_before_the_graphs() -> None:
    result = plan(printed_inputs("27b-48g-r15-full"))
    boot = facts("27b-48g-r15-full")
    assert boot.free_after_draft_pools_gib is not None and boot.available_gib is not None
    assert result.lowest_free_gib == pytest.approx(boot.free_after_draft_pools_gib, abs=0.1)
    assert result.ready_free_gib == pytest.approx(boot.available_gib, abs=0.2)


def test_a_fraction_that_is_too_low_is_refused_with_the_minimum() -> None:
    result = plan(printed_inputs("27b-48g-fraction-too-low"))
    assert not result.fits
    assert result.kv_tokens == 0
    assert "raise it above 0.589" in result.refusal


def test_a_log_of_another_start_is_not_taken_for_a_calibration() -> None:
    boot = facts("27b-48g-bf16-frac086")
    other = msgspec.structs.replace(boot, kv_tokens=900_000, kv_gib=900_000 * 32_768 / GIB, server_args={})
    with pytest.raises(CannotPlan, match="belongs to another start"):
        calibrate(printed_inputs("27b-48g-bf16-frac086"), other)


def test_the_log_is_believed_about_the_flags_of_its_start() -> None:
    inputs = printed_inputs("27b-48g-bf16-frac086")
    dreamt = msgspec.structs.replace(inputs, flags=inputs.flags | {"mem_fraction_static": 0.95})
    calibrated = calibrate(dreamt, facts("27b-48g-bf16-frac086"))
    assert calibrated.flags["mem_fraction_static"] == 0.95
    assert plan(msgspec.structs.replace(calibrated, flags=inputs.flags)).kv_tokens == 220_711


def test_a_loss_before_the_first_reading_is_not_taken_for_one_after_the_weights() -> None:
    """A 139 GiB card at 0.3: what is missing in front of the first reading counts 0.7 there and nothing at 0.98."""
    inputs, boot = printed_inputs("tiny-api-key-no-metrics"), facts("tiny-api-key-no-metrics")
    without = msgspec.structs.replace(inputs, startup_loss_gib=0.0)
    calibrated = calibrate(without, boot)
    assert calibrated.startup_loss_gib == pytest.approx(0.06, abs=0.02)
    assert calibrated.sizing_loss_gib == pytest.approx(0.0, abs=0.001)


def test_a_start_that_was_refused_gives_its_free_memory_but_is_no_calibration() -> None:
    name = "27b-48g-fraction-too-low"
    inputs = calibrate(printed_inputs(name), facts(name))
    assert inputs.calibrated_by is None
    result = plan(msgspec.structs.replace(inputs, flags=inputs.flags | {"mem_fraction_static": 0.86}))
    assert (result.basis, result.mamba_slots) == ("formula", 81)


def test_a_log_without_free_memory_cannot_calibrate() -> None:
    empty = msgspec.structs.replace(facts("dense-small"), free_before_gib=None)
    with pytest.raises(CannotPlan, match="has no free memory before and after the weights"):
        calibrate(printed_inputs("dense-small"), empty)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"sglang_version": "0.5.18"}, "is of SGLang 0.5.17, this start would be 0.5.18"),
        ({"driver_version": "590.1"}, "is of driver 580.159.04, here it is 590.1"),
        ({"driver_version": None}, None),
        ({"gpu_name": "RTX 4090"}, "is of card NVIDIA H200"),
        ({"environment": {}}, "another setting of PyTorch's allocator"),
        ({"shape": shape("hybrid-tiny")}, "of another model"),
    ],
)
def test_a_calibration_is_void_when_what_it_was_made_on_changes(change: dict[str, Any], reason: str | None) -> None:
    base: dict[str, Any] = {
        "shape": shape("qwen3.8-27b-fp8-text"),
        "sglang_version": "0.5.17",
        "environment": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "driver_version": "580.159.04",
        "gpu_name": "NVIDIA H200",
    }
    told = void_reason(conditions(**base), conditions(**(base | change)))
    assert (told is None) == (reason is None)
    assert reason is None or (told is not None and reason in told)


@pytest.mark.parametrize("name", ROUNDS)
def test_two_printed_decimals_are_shown_as_a_range_that_holds_the_recording(name: str) -> None:
    boot, result = facts(name), plan(printed_inputs(name))
    assert result.mamba_slots_low is not None and result.mamba_slots_high is not None
    assert result.kv_tokens_low is not None and result.kv_tokens_high is not None
    assert result.mamba_slots_low <= (boot.mamba_slots or 0) <= result.mamba_slots_high
    assert boot.kv_tokens is not None
    # The start-up loss is not printed: it is as uncertain as the decimals are.
    slack = 0.003 * GIB / result.bytes_per_token
    assert result.kv_tokens_low - slack <= boot.kv_tokens <= result.kv_tokens_high + slack
    for low_high in (-0.004, 0.004):
        moved = plan(printed_inputs(name, after_shift=low_high, before_shift=-low_high))
        assert result.mamba_slots_low <= moved.mamba_slots <= result.mamba_slots_high
        assert result.kv_tokens_low <= moved.kv_tokens <= result.kv_tokens_high


def test_a_calibrated_plan_and_a_rough_one_have_no_range() -> None:
    assert plan(calibrated_on("27b-48g-r15-full")).kv_tokens_low is None
    inputs = printed_inputs("27b-48g-r15-full")
    rough = msgspec.structs.replace(inputs, free_after=Sourced(inputs.free_after.gib, Source.ESTIMATE))
    assert plan(rough).kv_tokens_low is None


def test_the_error_of_a_plan_is_one_line() -> None:
    boot = facts("27b-48g-r15-full")
    told = accuracy(plan(printed_inputs("27b-48g-r15-full")), boot)
    line = accuracy_text(told)
    assert line.startswith("KV tokens +0.055 %, slots exact, requests exact, free at ready ")
    exact = accuracy_text(accuracy(plan(calibrated_on("27b-48g-r15-full")), boot))
    assert exact.startswith("KV tokens exact, slots exact")
    assert accuracy_text(accuracy(plan(printed_inputs("27b-48g-r15-full")), msgspec.structs.replace(
        boot, kv_tokens=None, mamba_slots=None, max_running_requests=None, available_gib=None
    ))) == ""  # fmt: skip


@pytest.mark.parametrize("name", STARTED)
def test_every_term_and_every_input_says_where_it_comes_from(name: str) -> None:
    printed, exact = plan(printed_inputs(name)), plan(calibrated_on(name))
    terms = {term.name: term.source for term in printed.terms}
    assert terms["weights"] is Source.BOOT_LOG and terms["kv"] is Source.FORMULA
    assert terms["runtime"] is Source.ESTIMATE
    assert {t.name: t.source for t in exact.terms}["runtime"] is Source.BOOT_LOG
    assert exact.sources["startup_loss"] == "boot log" and printed.sources["startup_loss"] == "recordings of 0.5.17"
    assert all(printed.sources.values())
