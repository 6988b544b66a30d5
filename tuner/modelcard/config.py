"""``config.json`` to ``ModelShape``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.modelcard import families
from tuner.modelcard.families import Layers
from tuner.modelcard.reader import LARGEST, ConfigReader, shown
from tuner.modelcard.types import Family, ModelError, ModelShape
from tuner.modelcard.weights import estimate_weights, expert_count

#: Tables that hold the language model of a multimodal one.
_TEXT_TABLES = ("text_config", "llm_config", "language_config")
#: Keys that SGLang asks for the longest context, in its order (``get_context_length``).
_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
#: What SGLang's own config classes assume when a checkpoint does not say (``srt/configs``).
_CONTEXT_DEFAULTS = {"falcon_h1": 8192, "nemotron_h": 4096, "qwen3_next": 32_768, "granitemoehybrid": 131_072}
#: ``get_context_length`` of SGLang falls back to this.
_CONTEXT_FALLBACK = 2048

#: Models whose layers all keep an ordinary KV cache (SGLang's ``DefaultPoolConfigurator``).
_PLAIN_TYPES_TEXT = """
apertus arcee baichuan bailing_moe bailing_moe_v2 chatglm dbrx deepseek deepseek_v2 deepseek_v3 dots1
ernie4_5 ernie4_5_moe exaone gemma glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gptj granite granitemoe
grok-1 hunyuan_v1_dense hunyuan_v1_moe hy_v3 internlm2 internlm3 kimi_k2 kimi_k25 kimi_vl llama mimo minicpm
minicpm3 minimax_m2 ministral3 mistral mistral3 mixtral nemotron olmo olmo2 olmoe orion persimmon phi phi3
phimoe pixtral qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_vl qwen3_vl_moe qwen3_vl_moe_text
qwen3_vl_text seed_oss solar_open stablelm starcoder2 xverse
"""
_PLAIN_TYPES = frozenset(_PLAIN_TYPES_TEXT.split())
#: What a model may hold that the two pools do not describe: each makes SGLang size another kind of pool.
_OTHER_POOLS = (
    ("index_head_dim", "sparse attention with an index cache (DSA)"),
    ("compress_ratios", "compressed sparse attention"),
    ("sparse_attention_config", "sparse attention with an index cache"),
    ("ssm_cfg", "state layers of a kind"),
    ("rwkv_version", "RWKV layers of a kind"),
)


def shape_from_config(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """The shape that ``config`` (a parsed ``config.json``) describes; ``name`` is what to call the model.

    Raises ModelError with one sentence for a config that is no language model's, is damaged, or is of a
    family whose pools the planner does not know.
    """
    if not isinstance(config, Mapping):
        raise ModelError("config.json does not hold a table: it is not the config.json of a language model.")
    root = ConfigReader(config)
    text = next((child for key in _TEXT_TABLES if (child := root.child(key)) is not None), root)
    architecture = _architecture(root)
    model_type = text.text("model_type") or root.text("model_type")
    family, read = _family(root, text, architecture, model_type)
    layers = read(text)
    _check_layers(layers)
    heads = text.optional_count("num_attention_heads", "n_head", "n_heads", most=LARGEST["heads"], least=1)
    hidden = text.count("hidden_size", "n_embd", "d_model")
    mla_width, value_dim, head_dim = _attention_dims(text, heads, hidden)
    vision = root.child("vision_config")
    # Qwen3-Next's checkpoints carry one, of which their config says nothing (``models/qwen3_next_mtp.py``).
    draft_layers = (
        text.optional_count("mtp_num_hidden_layers", "num_nextn_predict_layers", most=64)
        or root.optional_count("mtp_num_hidden_layers", "num_nextn_predict_layers", most=64)
        or _mtp_of_pattern(text)
        or (1 if model_type == "qwen3_next" else 0)
    )
    weights = estimate_weights(root, text, layers, draft_layers)
    return ModelShape(
        name=name or architecture or model_type,
        architecture=architecture,
        model_type=model_type,
        family=family,
        layers=layers.total,
        attention_layers=len(layers.attention),
        kv_heads=_kv_heads(text, heads),
        head_dim=head_dim,
        v_head_dim=value_dim,
        mla_width=mla_width,
        state=layers.state,
        context_len=_context(text, model_type),
        dtype=_dtype(root, text),
        hidden_size=hidden,
        vocab_size=text.count("vocab_size", most=LARGEST["vocabulary"]),
        multimodal=vision is not None and architecture.endswith("ForConditionalGeneration"),
        experts=expert_count(text),
        draft_layers=draft_layers,
        weights_bytes=weights.target,
        draft_weights_bytes=weights.draft,
        draft_shared_bytes=weights.draft_shared,
        whole_bytes=weights.whole,
        attention_layer_ids=layers.attention,
        state_layer_ids=layers.states,
        attention_heads=heads,
        kv_cache_dtype=_checkpoint_kv_dtype(root),
        vision_layers=vision.optional_count("num_hidden_layers", most=LARGEST["layers"]) if vision else None,
        vision_hidden=vision.optional_count("hidden_size") if vision else None,
        nextn_layers=text.optional_count("num_nextn_predict_layers", most=64),
    )


def _architecture(root: ConfigReader) -> str:
    names = root.words("architectures")
    if not names:
        if not root.has("model_type"):
            raise ModelError(
                "config.json has neither architectures nor model_type: it is not the config.json of a language model."
            )
        return ""
    return names[0]


def _family(
    root: ConfigReader, text: ConfigReader, architecture: str, model_type: str
) -> tuple[Family, Callable[[ConfigReader], Layers]]:
    """Which family the config belongs to, told by the keys that its layers need."""
    label = " / ".join(dict.fromkeys(shown(part) for part in (architecture, model_type) if part))
    for key, what in _OTHER_POOLS:
        if text.has(key):
            raise ModelError(f"{label} uses {what} that the planner does not know: it cannot plan it.")
    _refuse_windows(text, label)
    if text.has("linear_num_value_heads"):
        return Family.GDN, families.gdn
    if text.has("linear_attn_config"):
        return Family.KDA, families.kimi_linear
    if text.has("layer_group_size"):
        kda = text.has("short_conv_kernel_size")
        return (Family.KDA if kda else Family.LIGHTNING), families.bailing
    if text.has("mixer_types"):
        return Family.LIGHTNING, families.minicpm_sala
    if text.has("hybrid_override_pattern") or text.has("layers_block_type"):
        return Family.MAMBA2, families.nemotron_h
    if text.has("mamba_d_state") and model_type.startswith("falcon_h1"):
        return Family.MAMBA2, families.falcon_h1
    if text.has("mamba_d_state") and model_type.startswith("granitemoehybrid"):
        return Family.MAMBA2, families.granite_hybrid
    if text.has("conv_L_cache"):
        return Family.SHORT_CONV, families.lfm2
    if text.has("efficient_attention_config"):
        return Family.JET, families.jet_nemotron
    if model_type in _PLAIN_TYPES or root.text("model_type") in _PLAIN_TYPES:
        return Family.PLAIN, families.plain
    raise ModelError(f"{label} is of no family that the planner knows: it cannot plan this model.")


def _refuse_windows(text: ConfigReader, label: str) -> None:
    kinds = set(text.words("layer_types") or ())
    if "sliding_attention" in kinds or "chunked_attention" in kinds:
        raise ModelError(
            f"{label} has sliding-window layers, which SGLang keeps in a third pool: it cannot be planned."
        )


def _check_layers(layers: Layers) -> None:
    if not layers.attention:
        raise ModelError("config.json names no attention layer: a model without a KV cache cannot be planned.")
    if layers.state is not None and not layers.states:
        raise ModelError("config.json describes state layers but names none: the file is damaged.")


def _attention_dims(text: ConfigReader, heads: int | None, hidden: int) -> tuple[int | None, int, int]:
    """(MLA width or None, value head dim, head dim), as ``ModelConfig._derive_model_shapes`` of SGLang has them."""
    rank = text.optional_count("kv_lora_rank")
    value_dim = text.optional_count("v_head_dim")
    if rank:
        rope = text.count("qk_rope_head_dim")
        nope = text.count("qk_nope_head_dim", default=128)
        return rank + rope, value_dim or 128, nope + rope
    if text.has("attention_head_dim") and not text.has("head_dim"):
        head_dim = text.count("attention_head_dim")
    elif text.has("head_dim"):
        head_dim = text.count("head_dim")
    elif heads:
        head_dim = hidden // heads
    else:
        raise ModelError("config.json has no num_attention_heads: it is not the config.json of a language model.")
    if head_dim < 1:
        raise ModelError(f"config.json gives {heads:,} heads to a hidden size of {hidden:,}: the file is damaged.")
    return None, value_dim or head_dim, head_dim


def _kv_heads(text: ConfigReader, heads: int | None) -> int:
    if text.flag("multi_query"):
        return 1
    return text.count(
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_heads",
        most=LARGEST["heads"],
        default=heads,
    )


def _context(text: ConfigReader, model_type: str) -> int:
    """Longest context in tokens (``utils/hf_transformers/common.py: get_context_length``)."""
    scaling = text.child("rope_scaling") or text.child("rope_parameters")
    factor = 1.0
    if (
        scaling is not None
        and not scaling.has("original_max_position_embeddings")
        and scaling.table.get("rope_type") != "llama3"
    ):
        factor = scaling.number("factor", 1.0)
    found = text.optional_count(*_CONTEXT_KEYS, most=LARGEST["context"], least=1)
    return int((found or _CONTEXT_DEFAULTS.get(model_type, _CONTEXT_FALLBACK)) * factor)


def _dtype(root: ConfigReader, text: ConfigReader) -> str:
    """The model's dtype; SGLang runs a float32 checkpoint in half precision (``_get_and_verify_dtype``)."""
    found = next(
        (value for reader in (text, root) for key in ("dtype", "torch_dtype") if (value := reader.text(key))),
        "bfloat16",
    ).removeprefix("torch.")
    if found not in ("bfloat16", "float16", "float32"):
        raise ModelError(f"config.json says dtype is {shown(found)}: bfloat16, float16 or float32 was expected.")
    return "float16" if found == "float32" else found


def _mtp_of_pattern(text: ConfigReader) -> int:
    """Layers of a Nemotron-H draft head, which its own pattern spells."""
    pattern = text.table.get("mtp_hybrid_override_pattern")
    return len(pattern) if isinstance(pattern, str) else 0


def _checkpoint_kv_dtype(root: ConfigReader) -> str | None:
    """KV dtype of the checkpoint: SGLang's ``auto`` follows ``kv_cache_scheme`` of a quantised one."""
    quantization = root.child("quantization_config")
    if quantization is None:
        return None
    scheme = quantization.table.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
        return "fp8_e4m3"
    if str(quantization.table.get("kv_cache_quant_algo", "")).upper() == "FP8":
        return "fp8_e4m3"
    return None
