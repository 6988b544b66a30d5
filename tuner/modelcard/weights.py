"""What a model's weights take, estimated from its ``config.json``: for when no checkpoint is at hand.

Tensor shapes follow the Hugging Face models of the same names. Beside its tensors a rank holds the rotary table
whole, in float32 (0.06 GiB at a context of 262,144), and partly filled pages of PyTorch's allocator. Against what
loading took on a card (recordings of SGLang 0.5.17, printed with two decimals): 27B hybrid in fp8 27.53 for 27.54 GiB,
its draft 5.53 for 5.53, 80B MoE hybrid in fp8 74.93 for 74.97, its draft 2.71 for 2.70, hybrid-tiny 0.49 for 0.49,
dense-small 0.31 for 0.30.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tuner.modelcard.families import Layers
from tuner.modelcard.reader import LARGEST, ConfigReader
from tuner.modelcard.types import StateShape

#: Bytes per weight of the unquantised dtypes.
_PLAIN_BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 2.0}

#: Pages of PyTorch's allocator that tensors fill in part: it takes 20 MiB at a time for tensors of 1 to 10 MiB. The
#: recordings allow 10 to 36 MiB; this is no more than 4 MiB outside what any of them prints.
_ALLOCATOR_PAGES = 24 << 20
_ROTARY_ITEM = 4
#: Share of a head that rotates where the config does not say (``srt/configs/qwen3_next.py``, ``qwen3_5.py``).
_ROTATED = {"qwen3_next": 0.25, "qwen3_5_text": 0.25, "qwen3_5_moe_text": 0.25}


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a whole model, over all ranks. Of ``target``, ``whole`` lies on every rank undivided."""

    target: int
    draft: int
    draft_shared: int
    whole: int


class _Precision(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per weight of quantised matrices, and the modules that stay as they are."""

    quantised: float
    plain: float
    kept: tuple[str, ...] = ()

    def of(self, *modules: str) -> float:
        """Bytes per weight of a matrix that goes by one of these names."""
        if any(keep == module or keep.endswith("." + module) for keep in self.kept for module in modules):
            return self.plain
        return self.quantised


def estimate_weights(root: ConfigReader, text: ConfigReader, layers: Layers, draft_layers: int) -> Weights:
    """Bytes of the target, of the draft head as SGLang loads it, and of the draft's own embedding and head.

    Most drafts go by the name "mtp" and stay as they are where the checkpoint excepts it; that of Qwen3-Next goes by
    the names of the target's layers (``prefix`` in ``models/qwen3_next_mtp.py`` and ``qwen3_5_mtp.py``, 0.5.9 to
    0.5.23), so it is quantised like them.

    SGLang loads an MTP head with an embedding and a head of its own and lets go of both after the pools are
    sized (0.5.17, recordings).
    """
    precision = _precision(root, text)
    hidden = text.count("hidden_size", "n_embd", "d_model")
    vocabulary = text.count("vocab_size", most=LARGEST["vocabulary"]) * hidden * precision.plain
    tied = text.flag("tie_word_embeddings", root.flag("tie_word_embeddings"))
    target = vocabulary * (1 if tied else 2)
    for index in range(layers.total):
        target += _layer(text, layers, index, hidden, precision)
    whole = _rotary(text) + _ALLOCATOR_PAGES
    target += _vision(root) + whole
    if not draft_layers:
        return Weights(target=int(target), draft=0, draft_shared=0, whole=whole)
    draft_precision = precision
    if text.text("model_type") != "qwen3_next":
        draft_precision = msgspec.structs.replace(precision, quantised=precision.of("mtp"))
    body = _attention(text, hidden, draft_precision) + _feed_forward(text, layers.total, hidden, draft_precision)
    joined = 2 * hidden * hidden * precision.plain
    shared = vocabulary * 2
    return Weights(
        target=int(target),
        draft=int(draft_layers * (body + joined) + shared),
        draft_shared=int(shared),
        whole=whole,
    )


def _rotary(text: ConfigReader) -> int:
    """Bytes of the table of cosines and sines: positions x rotary width, float32 on CUDA, one for all layers.

    ``RotaryEmbedding._compute_cos_sin_cache`` (``layers/rotary_embedding/base.py``, 0.5.9 to 0.5.23). Nemotron-H and
    Kimi-Linear rotate nothing, Granite hybrids only when their config says so.
    """
    model_type = text.text("model_type")
    if model_type in ("nemotron_h", "kimi_linear"):
        return 0
    if model_type == "granitemoehybrid" and text.text("position_embedding_type") != "rope":
        return 0
    positions = text.optional_count("max_position_embeddings", most=LARGEST["context"]) or 0
    rotary = text.optional_count("qk_rope_head_dim")
    if rotary is None:
        heads = text.optional_count("num_attention_heads", "n_head", "n_heads", most=LARGEST["heads"], least=1)
        hidden = text.count("hidden_size", "n_embd", "d_model")
        width = text.optional_count("head_dim", "attention_head_dim") or (hidden // heads if heads else 0)
        table = text.child("rope_parameters")
        usual = _ROTATED.get(model_type, 1.0)
        share = text.number("partial_rotary_factor", table.number("partial_rotary_factor", usual) if table else usual)
        rotary = int(width * min(1.0, share))
    return positions * rotary * _ROTARY_ITEM


def _precision(root: ConfigReader, text: ConfigReader) -> _Precision:
    name = (text.text("dtype") or text.text("torch_dtype") or root.text("dtype") or "bfloat16").removeprefix("torch.")
    plain = _PLAIN_BYTES.get(name, 2.0)
    table = root.child("quantization_config") or text.child("quantization_config")
    if table is None:
        return _Precision(quantised=plain, plain=plain)
    kept: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
        value = table.table.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str):
            kept += [str(entry).removeprefix("re:").strip("*.") for entry in value]
    return _Precision(quantised=_quantised_bytes(table), plain=plain, kept=tuple(kept))


def _quantised_bytes(table: ConfigReader) -> float:
    """Bytes per quantised weight, its scales in."""
    method = f"{table.table.get('quant_method', '')} {table.table.get('quant_algo', '')}".lower()
    if "fp4" in method or "mxfp4" in method:
        return 0.5 + 1 / 16
    bits = table.optional_count("bits", "num_bits", most=32) or (8 if "8" in method else None)
    if bits is None:
        groups = table.table.get("config_groups")
        found = [
            weights.get("num_bits")
            for group in (groups.values() if isinstance(groups, dict) else ())
            if isinstance(group, dict) and isinstance(weights := group.get("weights"), dict)
        ]
        bits = next((value for value in found if isinstance(value, int) and 0 < value <= 32), 8)
    if bits >= 16:
        return bits / 8
    if bits == 8:
        block = table.numbers("weight_block_size")
        return 1 + (4 / (block[0] * block[1]) if block and len(block) == 2 and min(block) > 0 else 0.0)
    group_size = table.optional_count("group_size", most=65_536) or 128
    return bits / 8 + 2.5 / group_size


def _layer(text: ConfigReader, layers: Layers, index: int, hidden: int, precision: _Precision) -> float:
    size = 2.0 * hidden * precision.plain
    if layers.state is not None and index in layers.states:
        size += _state_layer(text, layers.state, hidden, precision)
    if index in layers.attention:
        size += _attention(text, hidden, precision)
    if layers.feed_forward is None or index in layers.feed_forward:
        size += _feed_forward(text, index, hidden, precision)
    return size


def _state_layer(text: ConfigReader, state: StateShape, hidden: int, precision: _Precision) -> float:
    conv_dim = state.intermediate + 2 * state.groups * state.state_size
    window = conv_dim * state.conv_kernel * precision.plain
    if state.heads == 0:
        return 4 * hidden * hidden * precision.of("conv") + window
    if state.intermediate == 0:
        return 5 * hidden * state.heads * state.head_dim * precision.of("attention") + window
    gates = hidden * 2 * state.heads * precision.of("in_proj_ba", "in_proj_b", "in_proj_a")
    inward = hidden * (conv_dim + state.intermediate) * precision.of("in_proj", "in_proj_qkvz", "in_proj_qkv")
    outward = state.intermediate * hidden * precision.of("out_proj", "o_proj")
    return gates + inward + outward + window


def _attention(text: ConfigReader, hidden: int, precision: _Precision) -> float:
    heads = text.count("num_attention_heads", "n_head", "n_heads", most=LARGEST["heads"])
    rank = text.optional_count("kv_lora_rank")
    per_weight = precision.of("self_attn")
    if rank:
        rope = text.count("qk_rope_head_dim")
        nope = text.count("qk_nope_head_dim", default=128)
        value = text.count("v_head_dim", default=128)
        q_rank = text.optional_count("q_lora_rank")
        query = q_rank * (hidden + heads * (nope + rope)) if q_rank else hidden * heads * (nope + rope)
        latent = hidden * (rank + rope) + rank * heads * (nope + value)
        return (query + latent + heads * value * hidden) * per_weight
    head_dim = text.optional_count("head_dim", "attention_head_dim", least=1) or max(1, hidden // heads)
    kv_heads = text.count("n_head_kv", "num_kv_heads", "num_key_value_heads", most=LARGEST["heads"], default=heads)
    query_width = heads * head_dim * (2 if text.flag("attn_output_gate", _gated_by_default(text)) else 1)
    return hidden * (query_width + 2 * kv_heads * head_dim + heads * head_dim) * per_weight


def _gated_by_default(text: ConfigReader) -> bool:
    """Qwen3-Next always gates its attention's output; its config does not say so."""
    return text.text("model_type") == "qwen3_next"


def expert_count(text: ConfigReader) -> int:
    """Experts of a layer, 0 where there are none."""
    return text.optional_count("num_experts", "n_routed_experts", "num_local_experts", most=65_536) or 0


def _feed_forward(text: ConfigReader, index: int, hidden: int, precision: _Precision) -> float:
    matrices = 2 if text.text("mlp_hidden_act") == "relu2" or text.text("model_type") == "nemotron_h" else 3
    dense = text.optional_count("intermediate_size", "n_inner", least=0) or 4 * hidden
    experts = expert_count(text)
    first_dense = text.optional_count("first_k_dense_replace", most=LARGEST["layers"]) or 0
    if not experts or index < first_dense:
        return matrices * hidden * dense * precision.of("mlp")
    width = text.count("moe_intermediate_size", "expert_hidden_size", default=max(1, dense))
    shared = (
        text.optional_count("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
        or (text.optional_count("n_shared_experts", "num_shared_experts", most=1024) or 0) * width
    )
    router = hidden * experts * precision.plain
    return matrices * hidden * (experts * width + shared) * precision.of("experts") + router


def _vision(root: ConfigReader) -> float:
    vision = root.child("vision_config")
    if vision is None or not vision.has("hidden_size"):
        return 0.0
    width = vision.count("hidden_size")
    depth = vision.optional_count("depth", "num_hidden_layers", most=LARGEST["layers"]) or 24
    inner = vision.optional_count("intermediate_size") or 4 * width
    return depth * (4 * width * width + 2 * width * inner) * 2.0
