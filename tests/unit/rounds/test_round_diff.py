from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.checks.model import CheckResult, Verdict
from tuner.metrics.model import Reach, Readings, Spread
from tuner.planner.model import Plan
from tuner.recipe.model import Recipe, TunerSettings
from tuner.rounds.diff import diff
from tuner.rounds.model import Change, ChangeVerdict, Round, RoundDiff, RoundState
from tuner.rounds.noise import compare_percentiles
from tuner.serverlog.model import BootFacts, Phase

PASSED = tuple(
    CheckResult(name=name, verdict=Verdict.PASS, reason="good", seconds=1.2) for name in ("thinking", "tool call")
)


def plan(**fields: Any) -> Plan:
    known: dict[str, Any] = {
        "fits": True, "binds": "kv", "basis": "formula", "mamba_slots": 81, "kv_tokens": 220_711,
        "max_running_requests": 3, "slots_per_request": 3, "bytes_per_slot": 78_446_592, "bytes_per_token": 32_768,
        "mamba_gib": 5.92, "kv_gib": 6.74, "spec_buffer_gib": 0.0, "reserve_gib": 6.6, "longest_input_tokens": 220_000,
        "context_len": 262_144, "ready_free_gib": 4.5, "lowest_free_gib": 3.1, "headroom_line_gib": 4.4, "terms": (),
        "sources": {},
    }  # fmt: skip
    return Plan(**{**known, **fields})


def boot(kv_tokens: int = 220_711, mamba_slots: int = 81, **fields: Any) -> BootFacts:
    return BootFacts(
        phase=Phase.READY, ready=True, kv_tokens=kv_tokens, mamba_slots=mamba_slots, max_running_requests=3, **fields
    )


def latencies(p50: float = 0.8, p95: float = 1.0, count: int = 200, **fields: Any) -> Readings:
    return Readings(
        at=1.0, metrics=Reach.OK, ttft_s=Spread(p50=p50, p95=p95, count=count),
        itl_s=Spread(p50=0.03, p95=0.04, count=count), **fields,
    )  # fmt: skip


def round_(number: int, flags: dict[str, Any] | None = None, **fields: Any) -> Round:
    known: dict[str, Any] = {
        "started_at": 1_796_000_000.0,
        "state": RoundState.VERIFIED,
        "recipe": Recipe(flags={"model_path": "/models/hybrid-27b-fp8", "mem_fraction_static": 0.86, **(flags or {})}),
        "plan": plan(),
        "boot": boot(),
        "checks": PASSED,
        "readings": latencies(),
        "ready_seconds": 50.0,
        "gpu_name": "NVIDIA H200",
    }
    return Round(number=number, **{**known, **fields})


def named(changes: tuple[Change, ...]) -> dict[str, Change]:
    return {change.name: change for change in changes}


def nothing(difference: RoundDiff) -> bool:
    parts = ("flags_changed", "effective_changed", "pools", "checks", "metrics")
    return not any(getattr(difference, part) for part in parts)


def test_two_equal_rounds_differ_in_nothing() -> None:
    difference = diff(round_(1), round_(2))
    assert nothing(difference)
    assert difference.summary == "The same flags and the same pools."


def test_what_was_bought_with_what_is_said_in_one_sentence() -> None:
    new = round_(
        15,
        {"mamba_full_memory_ratio": 0.3},
        boot=boot(kv_tokens=298_711, mamba_slots=57),
        readings=latencies(p50=0.81),
    )
    assert diff(round_(1), new).summary == "+78,000 KV tokens for 24 slots; TTFT within noise."


def test_only_what_changed_is_told_flags_first_with_old_and_new() -> None:
    old = round_(1, {"kv_cache_dtype": "auto", "schedule_policy": "fcfs"})
    new = round_(2, {"mem_fraction_static": 0.98, "kv_cache_dtype": "fp8_e4m3", "enable_metrics": True})
    assert diff(old, new).flags_changed == (
        Change(name="mem_fraction_static", old=0.86, new=0.98, change="+0.12"),
        Change(name="kv_cache_dtype", old="auto", new="fp8_e4m3"),
        Change(name="enable_metrics", old=None, new=True),
        Change(name="schedule_policy", old="fcfs", new=None),
    )


def test_environment_interpreter_and_versions_are_part_of_what_changed() -> None:
    old = round_(1, sglang_version="0.5.17")
    recipe = Recipe(
        flags=old.recipe.flags,
        environment={"CUDA_VISIBLE_DEVICES": "3"},
        python="simulator",
        tuner=TunerSettings(simulator={"speed": 20}),
    )
    difference = diff(old, round_(2, recipe=recipe, sglang_version="0.5.23"))
    assert [(c.name, c.old, c.new) for c in difference.flags_changed] == [
        ("environment CUDA_VISIBLE_DEVICES", None, "3"),
        ("interpreter", None, "simulator"),
        ("simulator speed", None, 20),
    ]
    assert [c.name for c in difference.effective_changed] == ["SGLang"]


def test_values_in_effect_are_told_but_not_those_drawn_anew_at_each_start() -> None:
    old = round_(1, effective={"max_running_requests": 3, "random_seed": 1})
    new = round_(2, effective={"max_running_requests": 9, "random_seed": 2})
    assert diff(old, new).effective_changed == (Change(name="max_running_requests", old=3, new=9, change="+6"),)


def test_one_and_true_are_not_the_same_value_but_one_and_1_0_are() -> None:
    assert len(diff(round_(1, {"x": 1}), round_(2, {"x": True})).flags_changed) == 1
    assert not diff(round_(1, {"x": 1}), round_(2, {"x": 1.0})).flags_changed


def test_pools_are_told_predicted_and_actual() -> None:
    new = round_(
        2,
        plan=plan(kv_tokens=322_000, mamba_slots=39, ready_free_gib=4.0),
        boot=boot(321_259, 39, available_gib=4.02, kv_gib=9.8, ssm_state_gib=2.7, conv_state_gib=0.1),
        effective={"max_req_input_len": 262_138},
    )
    old = round_(1, boot=boot(kv_gib=6.74, available_gib=4.5), effective={"max_req_input_len": 220_705})
    pools = named(diff(old, new).pools)
    assert (pools["KV tokens (predicted)"].old, pools["KV tokens (predicted)"].new) == (220_711, 322_000)
    assert pools["KV tokens"] == Change(
        name="KV tokens", old=220_711, new=321_259, change="+100,548", verdict=ChangeVerdict.BETTER
    )
    assert pools["state slots"].verdict is ChangeVerdict.WORSE
    assert pools["longest input, tokens"].change == "+41,433"
    assert pools["free at ready, GiB"].change == "-0.48"
    assert pools["free at ready, GiB (predicted)"].change == "-0.50"
    assert pools["KV pool, GiB"].change == "+3.06"
    assert (pools["states, GiB"].old, pools["states, GiB"].new) == (None, 2.8)
    assert "running requests" not in pools


def test_a_plain_transformer_without_slots_needs_none() -> None:
    dense = plan(mamba_slots=0)
    old, new = (round_(n, plan=dense, boot=boot(kv, None)) for n, kv in ((1, 1_000), (2, 2_000)))  # type: ignore[arg-type]
    assert diff(old, new).summary == "+1,000 KV tokens."


def test_a_check_that_fails_now_is_worse_and_said_in_the_sentence() -> None:
    broken = (PASSED[0], CheckResult(name="tool call", verdict=Verdict.FAIL, reason="no call", seconds=1.21))
    new = round_(2, state=RoundState.UNVERIFIED, checks=broken)
    difference = diff(round_(1), new)
    checks = named(difference.checks)
    assert (checks["outcome"].old, checks["outcome"].new) == ("verified", "unverified")
    assert checks["tool call"] == Change(name="tool call", old="pass", new="fail", verdict=ChangeVerdict.WORSE)
    assert "thinking" not in checks
    assert difference.summary.endswith("tool call does not pass any more.")
    assert diff(new, round_(3)).summary.endswith("tool call passes now.")


def test_the_time_of_a_check_taken_once_changes_but_is_no_verdict() -> None:
    slow = tuple(msgspec.structs.replace(check, seconds=83.7) for check in PASSED)
    checks = named(diff(round_(1), round_(2, checks=slow)).checks)
    assert checks["thinking, s"].verdict is ChangeVerdict.CHANGED
    assert checks["thinking, s"].change == "+6,875 %"
    near = tuple(msgspec.structs.replace(check, seconds=1.255) for check in PASSED)
    assert named(diff(round_(1), round_(2, checks=near)).checks)["thinking, s"].verdict is ChangeVerdict.WITHIN_NOISE


def test_a_start_that_failed_is_told_with_its_phase_and_its_predicted_pools() -> None:
    new = round_(
        2,
        {"mem_fraction_static": 0.99},
        state=RoundState.FAILED,
        phase="capturing graphs",
        plan=plan(kv_tokens=240_711),
        boot=None,
        readings=None,
        ready_seconds=None,
        checks=(),
    )
    difference = diff(round_(1), new)
    assert difference.summary == ("r2 failed at capturing graphs; +20,000 KV tokens (predicted).")
    assert named(difference.checks)["thinking"].new is None
    assert not difference.metrics


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (round_(2, simulated=True), "r2 is simulated and r1 is not"),
        (round_(2, {"model_path": "/models/other"}), "the models differ (hybrid-27b-fp8 and other)"),
        (round_(2, gpu_name="NVIDIA A100"), "the cards differ (NVIDIA H200 and NVIDIA A100)"),
    ],
)
def test_rounds_of_different_kinds_are_not_comparable(new: Round, why: str) -> None:
    new = msgspec.structs.replace(new, boot=boot(kv_tokens=9), readings=latencies(p50=0.1))
    difference = diff(round_(1), new)
    assert difference.summary == f"Not comparable, {why}."
    judged = (*difference.pools, *difference.metrics)
    assert judged
    assert {change.verdict for change in judged} == {ChangeVerdict.NOT_COMPARABLE}
    assert difference.simulated == new.simulated


def test_the_same_model_in_another_folder_is_the_same_model() -> None:
    difference = diff(round_(1), round_(2, {"model_path": "/data/hybrid-27b-fp8/"}))
    assert difference.summary == "Pools unchanged."


@pytest.mark.parametrize(
    ("p50", "verdict", "words"),
    [
        (0.84, ChangeVerdict.WITHIN_NOISE, "TTFT within noise"),
        (0.60, ChangeVerdict.BETTER, "TTFT 25 % lower"),
        (1.00, ChangeVerdict.WORSE, "TTFT 25 % higher"),
    ],
)
def test_latencies_are_judged_beyond_the_noise(p50: float, verdict: ChangeVerdict, words: str) -> None:
    difference = diff(round_(1), round_(2, readings=latencies(p50=p50, p95=p50 + 0.2)))
    assert named(difference.metrics)["TTFT p50, s"].verdict is verdict
    assert difference.summary.endswith(f"{words}.")


def test_percentiles_of_too_few_samples_are_not_compared() -> None:
    few = diff(round_(1), round_(2, readings=latencies(p50=0.4, p95=0.5, count=9)))
    assert named(few.metrics)["TTFT p50, s"].verdict is ChangeVerdict.NOT_COMPARABLE
    assert few.summary.endswith("TTFT not comparable (too few samples).")
    some = named(diff(round_(1), round_(2, readings=latencies(p50=0.4, p95=0.5, count=129))).metrics)
    assert some["TTFT p50, s"].verdict is ChangeVerdict.BETTER
    assert some["TTFT p95, s"].verdict is ChangeVerdict.NOT_COMPARABLE


def test_a_wide_spread_hides_a_small_change() -> None:
    old = round_(1, readings=latencies(p50=1.0, p95=4.0, count=20))
    new = round_(2, readings=latencies(p50=1.3, p95=4.3, count=20))
    assert named(diff(old, new).metrics)["TTFT p50, s"].verdict is ChangeVerdict.WITHIN_NOISE


def test_hit_ratio_is_judged_and_rates_of_the_moment_are_only_told() -> None:
    old = round_(1, readings=latencies(prefix_hit_ratio=0.4, decode_tokens_per_s=50.0, acceptance_length=1.7))
    new = round_(2, readings=latencies(prefix_hit_ratio=0.6, decode_tokens_per_s=90.0, acceptance_length=1.75))
    metrics = named(diff(old, new).metrics)
    assert metrics["prefix hit ratio"].verdict is ChangeVerdict.BETTER
    assert metrics["decode, tokens/s"].verdict is ChangeVerdict.CHANGED
    assert metrics["acceptance length"].verdict is ChangeVerdict.WITHIN_NOISE


def test_longer_drafts_do_not_make_a_longer_acceptance_better() -> None:
    old = round_(1, {"speculative_num_steps": 1}, readings=latencies(acceptance_length=1.7))
    new = round_(2, {"speculative_num_steps": 3}, readings=latencies(acceptance_length=2.9))
    assert named(diff(old, new).metrics)["acceptance length"].verdict is ChangeVerdict.CHANGED


def _spread(chance: random.Random, median: float, count: int) -> Spread:
    samples = sorted(chance.gauss(median, 0.05 * median) for _ in range(count))
    return Spread(p50=samples[count // 2], p95=samples[int(count * 0.95)], count=count)


def test_noise_is_called_noise_and_a_tenth_is_found() -> None:
    """5 % from request to request, 2 % from round to round, 90 requests a round."""
    chance = random.Random(5)
    level, far = 0, 0
    for _ in range(200):
        old = _spread(chance, chance.gauss(1.0, 0.02), 90)
        same = _spread(chance, chance.gauss(1.0, 0.02), 90)
        slower = _spread(chance, chance.gauss(1.1, 0.02 * 1.1), 90)
        level += compare_percentiles(old, same, "p50") is ChangeVerdict.WITHIN_NOISE
        far += compare_percentiles(old, slower, "p50") is ChangeVerdict.WORSE
    assert level >= 184
    assert far >= 174


SPREADS = st.none() | st.builds(Spread, p50=st.floats(0, 10), p95=st.floats(0, 100), count=st.integers(0, 1000))
READINGS = st.none() | st.builds(
    Readings,
    at=st.just(1.0),
    ttft_s=SPREADS,
    itl_s=SPREADS,
    prefix_hit_ratio=st.none() | st.floats(0, 1),
    acceptance_length=st.none() | st.floats(0, 8),
)
FLAG_VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
ROUNDS = st.builds(
    round_,
    number=st.integers(1, 99),
    flags=st.dictionaries(st.sampled_from(["a", "b", "mem_fraction_static"]), FLAG_VALUES),
    state=st.sampled_from(RoundState),
    phase=st.sampled_from(["", "checks", "sizing pools"]),
    plan=st.none() | st.builds(plan, kv_tokens=st.integers(-9, 10**7), mamba_slots=st.integers(0, 999)),
    boot=st.none() | st.builds(boot, kv_tokens=st.none() | st.integers(0, 10**7), mamba_slots=st.integers(0, 999)),
    readings=READINGS,
    ready_seconds=st.none() | st.floats(0, 1000),
    checks=st.lists(
        st.builds(
            CheckResult,
            name=st.sampled_from(["thinking", "tool call"]),
            verdict=st.sampled_from(Verdict),
            reason=st.just("x"),
            seconds=st.floats(0, 90),
        ),
        max_size=2,
        unique_by=lambda check: check.name,
    ).map(tuple),
)


@settings(max_examples=120, deadline=None)
@given(old=ROUNDS, new=ROUNDS)
def test_any_two_rounds_can_be_compared_either_way(old: Round, new: Round) -> None:
    there, back = diff(old, new), diff(new, old)
    assert there.summary.endswith(".")
    assert "\n" not in there.summary
    assert {c.name for c in there.flags_changed} == {c.name for c in back.flags_changed}
    assert {(c.name, str(c.old), str(c.new)) for c in there.pools} == {
        (c.name, str(c.new), str(c.old)) for c in back.pools
    }
    for change in (*there.flags_changed, *there.pools, *there.metrics):
        assert (
            change.old != change.new
            or isinstance(change.old, bool) != isinstance(change.new, bool)
            or (change.verdict is not ChangeVerdict.CHANGED)
        )
    assert msgspec.json.decode(msgspec.json.encode(there), type=RoundDiff).summary == there.summary


@settings(max_examples=60, deadline=None)
@given(same=ROUNDS)
def test_a_round_never_differs_from_itself(same: Round) -> None:
    assert nothing(diff(same, same))
