"""What SGLang fills in when a flag is not given: memory fraction, chunk size, graph sizes, ratio.

``_handle_gpu_memory_settings`` (``server_args.py``, to 0.5.18) and ``handle_gpu_memory_settings``
(``arg_groups/memory_hook.py``, from 0.5.19). Sizes in MiB there.
"""

from __future__ import annotations

import msgspec

from tuner.modelcard import ModelShape
from tuner.planner.asked import Asked
from tuner.planner.graphs import GraphSizes, decode_sizes, prefill_graphs_on, prefill_sizes
from tuner.planner.model import CannotPlan
from tuner.planner.versions import Rules

#: ``mamba_full_memory_ratio`` when not given (0.9 in all versions read).
DEFAULT_RATIO = 0.9
#: KV budget that 0.5.18 and newer keep for a multimodal model: ``SGLANG_VLM_CACHE_SIZE_MB`` is 100 MiB, 0.0977 GiB.
#: Rounded up as the reference's worked examples do: a third of a MiB on the safe side.
MULTIMODAL_CACHE_GIB = 0.098
#: More of it with a CUDA transport for features: ``SGLANG_MM_FEATURE_CACHE_MB`` (1024 MB).
MULTIMODAL_TRANSPORT_GIB = 1.0


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values in force. ``fraction_given`` tells whether the fraction is the operator's."""

    fraction: float
    fraction_given: bool
    ratio: float
    chunked_prefill_size: int
    decode_max_bs: int
    sizes: GraphSizes


#: Hidden size of a vision tower whose table does not say: the default of its config class.
_VISION_HIDDEN = {"qwen3_5": 1152, "qwen3_5_moe": 1152}

#: Upper end of a card class in MiB -> (chunk size, largest decode batch below 4 ranks, from 4 ranks on).
_CLASSES: tuple[tuple[float, int, int, int], ...] = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 2048, 24, 80),
    (60 * 1024, 4096, 32, 160),
    (90 * 1024, 8192, 256, 512),
    (160 * 1024, 8192, 256, 512),
    (float("inf"), 16_384, 512, 512),
)
_UNKNOWN_CARD = (4096, 160)
#: From 0.5.20 the 24 and 32 GB cards take larger chunks and batches.
_SMALL_CARD_SINCE_0_5_20 = (4096, 48, 160)


def resolve_defaults(shape: ModelShape, asked: Asked, rules: Rules, card_gib: float | None) -> Defaults:
    """Fills in what was not asked for. ``card_gib``: memory of the whole card, None when not known.

    Raises CannotPlan when the fraction is not given and the card is not known: a guess would be a wrong plan.
    """
    card_mib = card_gib * 1024 if card_gib is not None else None
    chunk, max_bs = _card_class(card_mib, asked, rules)
    if asked.chunked_prefill_size is not None:
        chunk = asked.chunked_prefill_size
    if asked.decode_max_bs is not None:
        max_bs = asked.decode_max_bs
    elif rules.version >= (0, 5, 22) and asked.requests is not None:
        max_bs = min(max_bs, asked.requests)
    if asked.decode_bs:
        max_bs = max(asked.decode_bs)
    sizes = _sizes(shape, asked, rules, chunk, max_bs)
    if asked.mem_fraction_static is not None:
        fraction, given = asked.mem_fraction_static, True
    elif card_mib is None:
        raise CannotPlan(
            "mem_fraction_static is not set and the size of the card is not known: set it, or plan on the GPU machine."
        )
    else:
        fraction, given = _default_fraction(shape, asked, rules, card_mib, chunk, max_bs, sizes), False
    return Defaults(
        fraction=fraction,
        fraction_given=given,
        ratio=asked.ratio if asked.ratio is not None else DEFAULT_RATIO,
        chunked_prefill_size=chunk,
        decode_max_bs=max_bs,
        sizes=sizes,
    )


def _card_class(card_mib: float | None, asked: Asked, rules: Rules) -> tuple[int, int]:
    if card_mib is None:
        return _UNKNOWN_CARD
    for index, (end, chunk, few, many) in enumerate(_CLASSES):
        if card_mib < end:
            if index == 1 and rules.version >= (0, 5, 20):
                chunk, few, many = _SMALL_CARD_SINCE_0_5_20
            return chunk, few if asked.tp < 4 else many
    return _UNKNOWN_CARD


def _sizes(shape: ModelShape, asked: Asked, rules: Rules, chunk: int, max_bs: int) -> GraphSizes:
    decode: tuple[int, ...] = ()
    if not asked.decode_graphs_off and asked.pd_mode != "prefill":
        decode = asked.decode_bs or decode_sizes(max_bs, asked.speculation is not None, asked.graph_padding_off)
    prefill: tuple[int, ...] = ()
    if prefill_graphs_on(shape, asked, rules):
        if asked.prefill_bs:
            prefill = asked.prefill_bs
        else:
            largest = asked.prefill_max_tokens or _prefill_limit(shape, rules, chunk, asked)
            prefill = prefill_sizes(largest)
    return GraphSizes(prefill=prefill, decode=decode)


def _prefill_limit(shape: ModelShape, rules: Rules, chunk: int, asked: Asked) -> int:
    tokens = chunk if chunk > 0 else asked.max_prefill_tokens
    if shape.mla_width is not None:
        tokens = min(8192, tokens) if rules.version >= (0, 5, 23) else 2048
    return min(tokens, asked.max_total_tokens) if asked.max_total_tokens else tokens


def _default_fraction(
    shape: ModelShape, asked: Asked, rules: Rules, card_mib: float, chunk: int, max_bs: int, sizes: GraphSizes
) -> float:
    """Default ``mem_fraction_static``: the card less what activations and graphs are thought to need."""
    if asked.pd_mode == "decode" and rules.version >= (0, 5, 15):
        drafts = asked.speculation.draft_tokens if asked.speculation else 1
        activation = max((asked.requests or max_bs) * drafts, 2048)
    else:
        activation = max(chunk if chunk > 0 else asked.max_prefill_tokens, 2048)
    reserved = 512 + 1.5 * activation + asked.tp * asked.pp / 8 * 1024
    if sizes.decode or rules.version < (0, 5, 15):
        reserved += 2 * max_bs
    if asked.dp_attention and asked.pd_mode != "prefill":
        reserved += 3 * max_bs * asked.attn_dp
        if max_bs > 300:
            reserved += 1.5 * max_bs * asked.attn_dp
    if sizes.prefill:
        reserved += 1.5 * 1024 if shape.mla_width is not None else 8 * len(sizes.prefill)
        if asked.moe_a2a_backend == "deepep" and rules.version >= (0, 5, 17):
            reserved += 1024
    if card_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    reserved += _speculation_surcharge(asked, rules)
    if asked.moe_a2a_backend == "deepep" and rules.version >= (0, 5, 15):
        reserved += 2048
    fraction = round((card_mib - reserved) / card_mib, 3)
    if shape.multimodal and not asked.language_only and not (asked.pd_mode == "decode" and rules.version >= (0, 5, 15)):
        fraction *= _multimodal_factor(shape)
    if not 0 < fraction < 1:
        raise CannotPlan(
            f"A card of {card_mib / 1024:.1f} GiB is too small for SGLang's default fraction: set mem_fraction_static."
        )
    return fraction


def _speculation_surcharge(asked: Asked, rules: Rules) -> float:
    """MiB kept for a draft while its weights came after the pools (to 0.5.13)."""
    if asked.speculation is None or rules.draft_before_pools or asked.speculation.algorithm == "NGRAM":
        return 0.0
    if asked.speculation.algorithm == "STANDALONE":
        return 6 * 1024
    return 2 * 1024 if rules.version < (0, 5, 10) else 4 * 1024


def _multimodal_factor(shape: ModelShape) -> float:
    """``adjust_mem_fraction_for_vlm``: the larger the vision tower, the more is kept free."""
    layers = shape.vision_layers or 24
    hidden = shape.vision_hidden or _VISION_HIDDEN.get(shape.model_type.removesuffix("_text"), 1024)
    complexity = layers * hidden**2 / (24 * 1024**2)
    return 0.95 * min(1.05, max(0.8, 1 - 0.1 * (complexity - 1)))


def multimodal_reserve_gib(shape: ModelShape, asked: Asked, rules: Rules) -> float:
    """GiB taken off the KV budget for multimodal models (``mm_runtime_reservation_gb``, from 0.5.18)."""
    if not shape.multimodal or not rules.multimodal_reserve:
        return 0.0
    transport = MULTIMODAL_TRANSPORT_GIB if asked.mm_feature_transport in ("cuda_ipc", "cuda_vmm") else 0.0
    return MULTIMODAL_CACHE_GIB + transport
