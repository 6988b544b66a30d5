"""Shapes from config.json, family by family."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.modelcard import Family, ModelError, shape_from_config
from tuner.modelfile import load_shape, packaged_shapes
from tuner.planner import plan
from tuner.planner.model import PlanInputs, Source, Sourced

GIB = 1 << 30


def bytes_of(config: dict[str, Any] | str, **flags: Any) -> tuple[int, int]:
    """(bytes of a slot, bytes of a token) on one rank."""
    shape = load_shape(config) if isinstance(config, str) else shape_from_config(config)
    result = plan(
        PlanInputs(
            shape=shape,
            flags={"mem_fraction_static": 0.9} | flags,
            free_before=Sourced(140.0, Source.OPERATOR),
            free_after=Sourced(100.0, Source.OPERATOR),
        )
    )
    return result.bytes_per_slot, result.bytes_per_token


@pytest.mark.parametrize(
    ("name", "family", "slot", "token"),
    [
        ("qwen3.8-27b-fp8-text", Family.GDN, 153_944_064, 65_536),
        ("qwen3.8-27b-fp8", Family.GDN, 153_944_064, 65_536),
        ("qwen3-next-80b-a3b-fp8", Family.GDN, 77_266_944, 24_576),
        ("hybrid-tiny", Family.GDN, 12_877_824, 4096),
        ("kimi-linear-48b-a3b", Family.KDA, 43_417_600, 8064),
        ("nemotron-nano-9b-v2", Family.MAMBA2, 143_548_416, 16_384),
        ("falcon-h1-1.5b", Family.MAMBA2, 76_013_568, 24_576),
        ("qwen3-dense-small", Family.PLAIN, 0, 32_768),
    ],
)
def test_a_packaged_model_has_the_bytes_that_sglang_takes(name: str, family: Family, slot: int, token: int) -> None:
    assert load_shape(name).family is family
    assert bytes_of(name) == (slot, token)


@pytest.mark.parametrize(
    ("name", "tp", "slot", "token"),
    [
        ("qwen3-next-80b-a3b-fp8", 2, 38_633_472, 12_288),
        ("qwen3-next-80b-a3b-fp8", 4, 19_316_736, 12_288),
        ("qwen3.8-27b-fp8", 2, 76_972_032, 32_768),
        ("qwen3.8-27b-fp8", 4, 38_486_016, 16_384),
        ("kimi-linear-48b-a3b", 2, 21_708_800, 8064),
    ],
)
def test_a_rank_takes_its_share(name: str, tp: int, slot: int, token: int) -> None:
    assert bytes_of(name, tp_size=tp) == (slot, token)


BAILING = {
    "architectures": ["BailingMoeV2_5ForCausalLM"],
    "model_type": "bailing_hybrid",
    "vocab_size": 157_184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "layer_group_size": 5,
    "max_position_embeddings": 131_072,
}


def test_lightning_layers_keep_no_window_and_attention_is_latent() -> None:
    assert shape_from_config(BAILING).family is Family.LIGHTNING
    assert bytes_of(BAILING) == (16 * 16 * 128 * 128 * 4, 4 * 576 * 2)


def test_bailing_with_short_convolutions_is_kda() -> None:
    config = BAILING | {"architectures": ["BailingMoeV3ForCausalLM"], "short_conv_kernel_size": 4}
    assert shape_from_config(config).family is Family.KDA
    assert bytes_of(config)[0] == 16 * (16 * 128 * 128 * 4 + 3 * 16 * 128 * 3 * 2)


def test_a_layer_list_of_bailing_marks_linear_layers_with_one() -> None:
    config = BAILING | {"layer_group_size": [1, 1, 1, 0] * 5}
    assert shape_from_config(config).attention_layer_ids == (3, 7, 11, 15, 19)


def test_short_convolutions_keep_the_window_alone() -> None:
    config = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": 65_536,
        "hidden_size": 1536,
        "intermediate_size": 10_240,
        "num_hidden_layers": 16,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "conv_L_cache": 3,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "max_position_embeddings": 128_000,
    }
    assert shape_from_config(config).family is Family.SHORT_CONV
    assert bytes_of(config) == (10 * 1536 * 2 * 2, 6 * 8 * 64 * 2 * 2)


def test_jet_layers_keep_a_state_and_sliding_ones_a_full_cache() -> None:
    config = {
        "architectures": ["JetNemotronForCausalLM"],
        "model_type": "jet_nemotron",
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 8,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "layer_types": ["jet", "jet", "attn", "jet", "swa", "jet", "jet", "jet"],
        "efficient_attention_config": {"jet": {"num_heads": 12, "head_dim": 96, "expand_v": 2.0, "conv_size": 4}},
        "max_position_embeddings": 65_536,
    }
    shape = shape_from_config(config)
    assert shape.family is Family.JET and shape.attention_layer_ids == (2, 4)
    conv = (12 * 192 + 2 * 12 * 96) * 3 * 2
    assert bytes_of(config) == (6 * (12 * 192 * 96 * 4 + conv), 2 * 2 * 256 * 2)


def test_latent_attention_of_a_plain_model_is_not_divided_by_ranks() -> None:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 129_280,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 163_840,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    assert bytes_of(config, tp_size=8) == (0, 61 * 576 * 2)
    assert shape_from_config(config).weights_bytes == pytest.approx(671e9, rel=0.03)


@pytest.mark.parametrize(
    ("name", "gib", "tolerance"),
    [
        ("qwen3.8-27b-fp8-text", 27.54, 0.0004),
        ("hybrid-tiny", 0.49, 0.01),
        ("qwen3-dense-small", 0.30, 0.03),
        ("qwen3-next-80b-a3b-fp8", 74.9, 0.03),
        ("kimi-linear-48b-a3b", 91.5, 0.05),
        ("nemotron-nano-9b-v2", 16.6, 0.05),
    ],
)
def test_weights_are_estimated_from_the_shape(name: str, gib: float, tolerance: float) -> None:
    assert load_shape(name).weights_bytes / GIB == pytest.approx(gib, rel=tolerance)


def test_the_draft_head_loads_an_embedding_and_a_head_of_its_own() -> None:
    shape = load_shape("qwen3.8-27b-fp8-text")
    assert shape.draft_weights_bytes / GIB == pytest.approx(5.527, abs=0.005)
    assert shape.draft_shared_bytes / GIB == pytest.approx(4.736, abs=0.001)


def test_every_packaged_shape_reads() -> None:
    for name in packaged_shapes():
        shape = load_shape(name)
        assert shape.name == name and shape.context_len >= 2048
        assert len(shape.attention_layer_ids) == shape.attention_layers


def test_rope_scaling_lengthens_the_context_as_sglang_counts_it() -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 1000,
        "hidden_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 32_768,
    }
    assert shape_from_config(config | {"rope_scaling": {"factor": 4.0}}).context_len == 131_072
    kept = {"factor": 4.0, "original_max_position_embeddings": 32_768}
    assert shape_from_config(config | {"rope_scaling": kept}).context_len == 32_768


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_hidden_layers": 10**9}, "no real model has that"),
        ({"num_hidden_layers": -3}, "no real model has that"),
        ({"num_hidden_layers": "many"}, "a whole number was expected"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"layer_types": ["full_attention"]}, "lists 1 layer_types for 64 layers"),
        ({"layer_types": ["mystery"] * 64}, "'mystery' that the planner does not know"),
        ({"layer_types": ["sliding_attention"] * 64}, "sliding-window layers"),
        ({"layer_types": ["linear_attention"] * 64}, "names no attention layer"),
        ({"index_head_dim": 128}, "it cannot plan it"),
        ({"architectures": "Qwen"}, "a list of words was expected"),
        ({"dtype": "int3"}, "bfloat16, float16 or float32 was expected"),
        ({"quantization_config": "fp8"}, "a table was expected"),
        ({"linear_num_value_heads": None}, "of no family that the planner knows"),
    ],
)
def test_a_config_that_makes_no_sense_is_told_in_one_sentence(change: dict[str, Any], sentence: str) -> None:
    import json
    from importlib import resources

    config = json.loads(resources.files("tuner.shapes").joinpath("qwen3.8-27b-fp8-text.json").read_text("utf-8"))
    with pytest.raises(ModelError) as caught:
        shape_from_config(config | change)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"_class_name": "StableDiffusionPipeline"},
        {"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 768, "vocab_size": 30_522,
         "num_hidden_layers": 12, "num_attention_heads": 12},
        {"architectures": ["MysteryForCausalLM"], "model_type": "mystery", "hidden_size": 8, "num_hidden_layers": 2},
        {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 2,
         "layer_types": ["sliding_attention", "full_attention"]},
        {"architectures": ["RwkvForCausalLM"], "model_type": "rwkv", "rwkv_version": 7},
        {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "ssm_cfg": {}},
    ],
)  # fmt: skip
def test_another_kind_of_file_is_not_planned(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as caught:
        shape_from_config(config)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
