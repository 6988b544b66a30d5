"""Each version by its own rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from planner_cases import inputs_for, shape

from tuner.modelcard import shape_from_config
from tuner.planner import CannotPlan, Plan, plan
from tuner.planner.model import Source, Sourced
from tuner.planner.versions import parse_version, rules_for

VERSIONS = tuple(f"0.5.{patch}" for patch in range(9, 24))
BASE = {"mem_fraction_static": 0.83, "max_running_requests": 64}


def at(version: str, model: str = "qwen3-next-80b-a3b-fp8", **flags: Any) -> Plan:
    return plan(inputs_for(model, version, 78.20, 39.30, **({"tp_size": 2} | BASE | flags)))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_from_0_5_9_to_0_5_23_plans(version: str) -> None:
    result = at(version)
    assert result.fits and result.kv_tokens > 0 and result.sglang_version == version
    assert result.slots_per_request == (3 if version in ("0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13") else 5)


def test_the_default_strategy_changes_at_0_5_14() -> None:
    assert (at("0.5.13").strategy, at("0.5.14").strategy) == ("no_buffer", "extra_buffer")
    assert at("0.5.13", max_running_requests=256).max_running_requests == 114
    assert at("0.5.14", max_running_requests=256).max_running_requests == 68


def test_the_padding_slot_is_paid_from_0_5_17() -> None:
    old, new = at("0.5.16"), at("0.5.17")
    assert old.mamba_slots == new.mamba_slots + 1


def test_draft_weights_count_from_0_5_14() -> None:
    def with_draft(version: str) -> Plan:
        flags = BASE | {"speculative_algorithm": "NEXTN", "mamba_scheduler_strategy": "extra_buffer"}
        return plan(
            inputs_for(
                "qwen3-next-80b-a3b-fp8",
                version,
                78.20,
                39.30,
                tp_size=2,
                draft_weights=Sourced(1.2, Source.OPERATOR),
                free_after_has_draft=False,
                **flags,
            )
        )

    assert with_draft("0.5.13").kv_tokens - with_draft("0.5.14").kv_tokens > 40_000
    assert with_draft("0.5.13").kv_tokens == pytest.approx(with_draft("0.5.14").kv_tokens, rel=0.1)


def test_speculation_is_solved_jointly_from_0_5_13() -> None:
    flags = {"speculative_algorithm": "NEXTN", "mamba_scheduler_strategy": "extra_buffer", "speculative_num_steps": 3}
    assert at("0.5.12", **flags).mamba_slots != at("0.5.13", **flags).mamba_slots


def test_0_5_9_speculating_without_a_buffer_loses_the_prefix_cache() -> None:
    result = at("0.5.9", speculative_algorithm="NEXTN")
    assert result.strategy == "radix off" and result.slots_per_request == 1


def test_multimodal_models_give_up_kv_budget_from_0_5_18() -> None:
    def tokens(version: str) -> int:
        return plan(inputs_for("qwen3.8-27b-fp8", version, 78.6, 49.8, mem_fraction_static=0.83)).kv_tokens

    assert tokens("0.5.17") > tokens("0.5.18") == tokens("0.5.23")


def test_a_newer_version_takes_the_newest_rule_and_says_so() -> None:
    result = at("0.6.1")
    assert "newer than any that was looked at" in result.version_note
    assert result.kv_tokens == at("0.5.23").kv_tokens


def test_a_post_release_and_a_development_build_take_their_versions_rule() -> None:
    assert parse_version("0.5.10.post1") == (0, 5, 10)
    assert parse_version("v0.5.20.dev728+g2929a399") == (0, 5, 20)
    assert rules_for("0.5.17.post1").pays_padding_slot


def test_what_is_no_version_is_told() -> None:
    with pytest.raises(CannotPlan, match="'main' is no SGLang version"):
        at("main")


def test_the_measured_version_needs_no_note() -> None:
    assert at("0.5.17").version_note == ""
    assert "read in its source" in at("0.5.20").version_note


def test_kimi_linear_has_no_prefix_cache_before_0_5_14_and_an_extra_buffer_from_0_5_16() -> None:
    def strategy(version: str) -> str:
        return plan(inputs_for("kimi-linear-48b-a3b", version, 140.0, 48.0, mem_fraction_static=0.9)).strategy

    assert [strategy(v) for v in ("0.5.12", "0.5.14", "0.5.16")] == ["radix off", "no_buffer", "extra_buffer"]


def test_the_text_only_class_keeps_auto_in_0_5_17_and_gets_a_buffer_in_0_5_19() -> None:
    def q(version: str) -> tuple[str, int]:
        result = plan(inputs_for("qwen3.8-27b-fp8-text", version, 78.6, 49.8, mem_fraction_static=0.83))
        return result.strategy, result.slots_per_request

    assert q("0.5.17") == ("auto (not resolved)", 3)
    assert q("0.5.19") == ("extra_buffer", 5)
    note = plan(inputs_for("qwen3.8-27b-fp8-text", "0.5.12", 78.6, 49.8, mem_fraction_static=0.83)).version_note
    assert "does not take Qwen3_5ForCausalLM for a hybrid" in note


@pytest.mark.parametrize(
    ("flags", "environment", "slots"),
    [
        ({"mamba_radix_cache_strategy": "no_buffer"}, {}, 3),
        ({"mamba_radix_cache_strategy": "extra_buffer"}, {}, 5),
        ({"mamba_radix_cache_strategy": "extra_buffer", "disable_overlap_schedule": True}, {}, 4),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, {}, 4),
        ({"disable_radix_cache": True}, {}, 1),
        ({"mamba_radix_cache_strategy": "extra_buffer"}, {"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1"}, 4),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, {"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1"}, 3),
        ({"mamba_radix_cache_strategy": "no_buffer"}, {"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1"}, 3),
    ],
)
def test_slots_per_request_follow_the_strategy(flags: dict[str, Any], environment: dict[str, str], slots: int) -> None:
    assert at("0.5.17", environment=environment, **flags).slots_per_request == slots


def test_pages_round_the_tokens_down_and_a_cap_holds() -> None:
    paged = at("0.5.17", page_size=64)
    assert paged.kv_tokens % 64 == 0
    assert 0 <= at("0.5.17").kv_tokens - paged.kv_tokens < 64
    assert at("0.5.17", page_size=64, max_total_tokens=100_001).kv_tokens == 99_968


def test_a_pipeline_stage_pays_for_its_own_layers_from_0_5_17() -> None:
    whole = plan(inputs_for("qwen3.8-27b-fp8", "0.5.17", 78.6, 49.8, mem_fraction_static=0.83))
    halves = plan(inputs_for("qwen3.8-27b-fp8", "0.5.17", 78.6, 49.8, mem_fraction_static=0.83, pp_size=2))
    old = plan(inputs_for("qwen3.8-27b-fp8", "0.5.16", 78.6, 49.8, mem_fraction_static=0.83, pp_size=2))
    assert halves.bytes_per_slot * 2 == whole.bytes_per_slot == old.bytes_per_slot
    assert halves.bytes_per_token * 2 == whole.bytes_per_token


def test_attention_data_parallel_replicas_share_slots_and_requests() -> None:
    result = at(
        "0.5.17", tp_size=4, dp_size=2, enable_dp_attention=True, max_running_requests=64, max_mamba_cache_size=120
    )
    assert result.mamba_slots == 60
    assert result.max_running_requests == 12
    assert result.bytes_per_slot == 38_633_472


def test_the_replay_ring_takes_the_place_of_the_drafts_states() -> None:
    flags = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "mamba_ssm_dtype": "float32"}
    without = at("0.5.17", **flags)
    with_ring = at("0.5.17", enable_linear_replayssm_spec=True, **flags)
    assert with_ring.mamba_slots > without.mamba_slots
    assert with_ring.spec_buffer_gib < 0.2 * without.spec_buffer_gib
    assert at("0.5.20", enable_linear_replayssm_spec=True, **flags).mamba_slots != with_ring.mamba_slots


def test_unified_memory_has_the_same_upper_bounds() -> None:
    assert at("0.5.17", enable_unified_memory=True).kv_tokens == at("0.5.17").kv_tokens


def test_post_capture_sizing_is_not_guessed() -> None:
    with pytest.raises(CannotPlan, match="cannot be planned"):
        at("0.5.17", environment={"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"})


def test_int8_checkpoints_come_out_of_the_reserve() -> None:
    plain, checkpoints = at("0.5.17"), at("0.5.17", enable_int8_mamba_checkpoint=True)
    assert (plain.mamba_slots, plain.kv_tokens) == (checkpoints.mamba_slots, checkpoints.kv_tokens)
    assert checkpoints.ready_free_gib < plain.ready_free_gib


def test_turning_speculation_off_in_a_preview_gives_the_drafts_memory_back() -> None:
    speculating = inputs_for(
        "qwen3.8-27b-fp8-text",
        "0.5.17",
        46.83,
        13.76,
        mem_fraction_static=0.95,
        speculative_algorithm="NEXTN",
        max_running_requests=3,
        free_after_has_draft=True,
        draft_weights=Sourced(5.53, Source.BOOT_LOG),
    )
    plain = msgspec.structs.replace(speculating, flags={"mem_fraction_static": 0.95, "max_running_requests": 3})
    fresh = inputs_for("qwen3.8-27b-fp8-text", "0.5.17", 46.83, 19.29, mem_fraction_static=0.95, max_running_requests=3)
    assert plan(plain).kv_tokens == pytest.approx(plan(fresh).kv_tokens, abs=40)
    assert all(term.name != "draft" for term in plan(plain).terms)


def test_fp4_and_mxfp8_cells_carry_their_scales() -> None:
    def cell(dtype: str, version: str = "0.5.17") -> int:
        return plan(
            inputs_for("qwen3-dense-small", version, 40.0, 39.0, mem_fraction_static=0.5, kv_cache_dtype=dtype)
        ).bytes_per_token

    assert cell("bfloat16") == 32_768
    assert cell("fp8_e4m3") == 16_384
    assert cell("mxfp8") == 16_384 + 512
    assert cell("fp4_e2m1", "0.5.23") == 8192 + 1024


def test_a_checkpoints_own_kv_scheme_decides_auto() -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 1000,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}},
    }
    result = plan(inputs_for(shape_from_config(config), "0.5.17", 40.0, 39.0, mem_fraction_static=0.5))
    assert result.in_force["kv_cache_dtype"] == "fp8_e4m3"
    assert result.bytes_per_token == shape("qwen3-dense-small").layers * 8 * 256
