"""Which CUDA graphs a start captures: their sizes, and what they are guessed to take."""

from __future__ import annotations

import msgspec

from tuner.modelcard import Family, ModelShape
from tuner.planner.asked import Asked
from tuner.planner.versions import Rules

#: Model classes that 0.5.10 to 0.5.14 take the prefill graphs from (``is_piecewise_cuda_graph_disabled_model``).
_PIECEWISE_OFF = frozenset({"Qwen3NextForCausalLM", "BailingMoeV2_5ForCausalLM", "DeepseekV32ForCausalLM"})
#: Multimodal classes that keep prefill graphs in 0.5.15 and newer.
_MULTIMODAL_GRAPHS = frozenset({"Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"})
_MAMBA_OFF = frozenset({"NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"})

#: Guess of the memory of graphs, fitted on two recordings of 0.5.17 (27B: 50 sizes, 64 layers, 1.68 GiB; tiny:
#: 58 sizes, 8 layers, 0.85 GiB; decode 0.05 to 0.10 GiB for three or four sizes). GiB, or bytes where named so.
_PREFILL_BASE_GIB = 0.5
_PREFILL_BYTES_PER_LAYER_AND_SIZE = 100 * 1024
_PREFILL_BYTES_PER_TOKEN_AND_WIDTH = 42
_DECODE_BASE_GIB = 0.03
_DECODE_BYTES_PER_LAYER_AND_SIZE = 300 * 1024
_DRAFT_EXTEND_GIB = 0.08
_GIB = 1 << 30


class GraphSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes to capture: token counts of prefill graphs, batch sizes of decode (or verify) graphs."""

    prefill: tuple[int, ...] = ()
    decode: tuple[int, ...] = ()


def decode_sizes(max_bs: int, speculative: bool, no_padding: bool) -> tuple[int, ...]:
    """Batch sizes of decode graphs (``_generate_decode_cuda_graph_batch_sizes``)."""
    if no_padding:
        return tuple(range(1, max_bs + 1))
    if speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, max_bs + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max_bs + 1, 32)]
    return tuple(sorted({size for size in sizes if size <= max_bs} | {max_bs}))


def prefill_sizes(max_tokens: int) -> tuple[int, ...]:
    """Token counts of prefill graphs (``_generate_prefill_cuda_graph_batch_sizes``): 58 at 8,192 (seen)."""
    sizes = [
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, max_tokens + 1, 512),
    ]
    return tuple(size for size in sizes if size <= max_tokens)


def prefill_graphs_on(shape: ModelShape, asked: Asked, rules: Rules) -> bool:
    """Whether this version captures prefill graphs for the model (reference: section 1.9; read, 0.5.17 seen)."""
    if asked.prefill_graphs_off or asked.pd_mode == "decode":
        return False
    if rules.version < (0, 5, 10):
        return asked.piecewise_asked
    if asked.prefill_graphs_forced:
        return True
    if asked.pp > 1 and (rules.version < (0, 5, 15) or rules.version >= (0, 5, 20)):
        return False
    if rules.version < (0, 5, 15):
        if asked.dp_attention or asked.moe_a2a_backend != "none" or asked.pd_mode != "null":
            return False
        return not (shape.multimodal or shape.architecture in _PIECEWISE_OFF)
    if shape.multimodal and shape.architecture not in _MULTIMODAL_GRAPHS:
        return False
    if rules.version >= (0, 5, 20):
        return shape.family is not Family.KDA
    return shape.mla_width is None and shape.architecture not in _MAMBA_OFF


def captured_sizes(sizes: GraphSizes, requests: int, asked: Asked) -> GraphSizes:
    """Decode sizes are cut at the admitted requests, which join the list (n = 3 captures 1, 2, 3; seen)."""
    if not sizes.decode or requests < 1:
        return GraphSizes(prefill=sizes.prefill)
    kept = {size for size in sizes.decode if size <= requests}
    if requests <= max(sizes.decode):
        kept.add(requests)
    if asked.dp_attention:
        kept = {size for size in kept if size % asked.attn_tp == 0} or {asked.attn_tp}
    return GraphSizes(prefill=sizes.prefill, decode=tuple(sorted(kept)))


def guess_gib(shape: ModelShape, asked: Asked, sizes: GraphSizes) -> tuple[float, float]:
    """(prefill, decode and draft) graph memory in GiB: a guess from two recordings, exact only after a boot log."""
    layers = shape.layers / max(asked.pp, 1)
    prefill = 0.0
    if sizes.prefill:
        tokens = sizes.prefill[-1]
        prefill = (
            _PREFILL_BASE_GIB
            + (
                _PREFILL_BYTES_PER_LAYER_AND_SIZE * layers * len(sizes.prefill)
                + _PREFILL_BYTES_PER_TOKEN_AND_WIDTH * shape.hidden_size * tokens / asked.tp
            )
            / _GIB
        )
    decode = 0.0
    if sizes.decode:
        decode = _DECODE_BASE_GIB + _DECODE_BYTES_PER_LAYER_AND_SIZE * layers * len(sizes.decode) / _GIB
        if asked.speculation is not None and asked.speculation.loads_weights:
            decode += _DRAFT_EXTEND_GIB
    return prefill, decode
