"""Bytes of one state slot, of one token, of the speculative buffers and of the replay ring, per rank."""

from __future__ import annotations

import math

import msgspec

from tuner.modelcard import Family, ModelShape, StateShape
from tuner.planner.asked import Asked
from tuner.planner.model import CannotPlan
from tuner.planner.versions import Rules

_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_KV_BYTES = {
    "bf16": 2,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float32": 4,
    "float": 4,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "mxfp8": 1,
    "fp4_e2m1": 1,
    "nvfp4": 1,
    "fp4_mx_block16": 1,
}
_FP4 = frozenset({"fp4_e2m1", "nvfp4", "fp4_mx_block16"})
#: KV heads or state heads cannot be fewer than one on a rank.
_FP4_BLOCK, _MXFP8_BLOCK = 16, 32


class SlotBytes(msgspec.Struct, frozen=True, kw_only=True):
    """One state slot on one rank. ``conv`` and ``temporal`` are bytes over all state layers that SGLang charges."""

    conv: int
    temporal: int
    conv_dim: int
    kernel: int
    conv_item: int
    layers: int
    #: Of the linear layers, the share of the fullest pipeline stage.
    stage_layers: int

    @property
    def all_layers(self) -> int:
        """Bytes over all layers, as ``mamba_cache_per_req`` has them."""
        return self.conv + self.temporal


def ssm_dtype(shape: ModelShape, asked: Asked) -> str:
    """Flag or environment, then config, then float32 (``mamba2_state_dtype``)."""
    if asked.ssm_dtype is not None:
        if asked.ssm_dtype not in _STATE_BYTES:
            raise CannotPlan(f"mamba_ssm_dtype is {asked.ssm_dtype!r}: use one of {', '.join(_STATE_BYTES)}.")
        return asked.ssm_dtype
    if asked.replayssm and asked.speculation is not None:
        return "float32"
    return (shape.state.ssm_dtype if shape.state else None) or "float32"


def slot_bytes(shape: ModelShape, asked: Asked) -> SlotBytes | None:
    """Bytes of a state slot on one rank; None for a model without states.

    ``Mamba2StateShape.create`` and ``KimiLinearStateShape.create`` of ``configs/mamba_utils.py``, with the
    attention tensor-parallel size (0.5.9 to 0.5.23; seen on 0.5.17 for GDN). Raises CannotPlan when the heads
    cannot be divided.
    """
    state = shape.state
    if state is None:
        return None
    conv_dim, heads = _shares(state, asked.attn_tp)
    conv_item = _STATE_BYTES.get(asked.conv_dtype, 2)
    conv = conv_dim * (state.conv_kernel - 1) * conv_item * state.layers
    temporal = heads * state.head_dim * state.state_size * _STATE_BYTES[ssm_dtype(shape, asked)] * state.layers
    return SlotBytes(
        conv=conv,
        temporal=temporal,
        conv_dim=conv_dim,
        kernel=state.conv_kernel,
        conv_item=conv_item,
        layers=state.layers,
        stage_layers=_fullest_stage(shape.state_layer_ids, shape.layers, asked.pp, state.layers),
    )


def _shares(state: StateShape, tp: int) -> tuple[int, int]:
    """(convolution channels, heads) on one rank. Groups that do not divide are padded up to the rank count."""
    groups = state.groups if state.groups % tp == 0 else state.groups + (tp - state.groups)
    conv_dim = state.intermediate + 2 * groups * state.state_size
    if conv_dim % tp or state.heads % tp:
        raise CannotPlan(
            f"{state.heads} state heads do not divide over {tp} ranks: choose another tensor-parallel size."
        )
    return conv_dim // tp, state.heads // tp


def stage_slot_bytes(slot: SlotBytes, rules: Rules) -> int:
    """Bytes that the sizing rule charges for a slot: from 0.5.17 only the fullest pipeline stage's layers."""
    if not rules.stage_share or slot.stage_layers == slot.layers:
        return slot.all_layers
    return int(slot.all_layers * (slot.stage_layers / max(slot.layers, 1)))


def _fullest_stage(ids: tuple[int, ...], layers: int, stages: int, fallback: int) -> int:
    if stages <= 1 or not ids:
        return fallback
    return max(sum(1 for i in ids if start <= i < end) for start, end in stage_bounds(layers, stages))


def stage_bounds(layers: int, stages: int) -> list[tuple[int, int]]:
    """Layer ranges of the pipeline stages: the rest goes to the stages before the last (``get_pp_indices``)."""
    base, rest = divmod(layers, stages)
    sizes = [base] * stages
    for i in range(2, rest + 2):
        sizes[-i] += 1
    bounds, start = [], 0
    for size in sizes:
        bounds.append((start, start + size))
        start += size
    return bounds


def ring_bytes(shape: ModelShape, asked: Asked, rules: Rules, slot: SlotBytes) -> int:
    """Bytes of the speculative replay ring for one slot, 0 without it (``replayssm_ring_bytes_per_req``).

    Two layouts: raw values, keys, beta and gate (0.5.15 to 0.5.19); values and keys with low parts and a gate
    for GDN (from 0.5.20). Read, not measured.
    """
    state = shape.state
    if not ring_active(shape, asked, rules) or state is None:
        return 0
    tp = asked.attn_tp
    heads = state.heads // tp
    key_heads = -(-state.groups // tp)
    values, keys = state.head_dim, state.state_size
    kda = shape.family is Family.KDA
    drafts = asked.speculation.draft_tokens if asked.speculation else None
    length = drafts if rules.ring_follows_drafts and not kda and drafts else asked.replayssm_len
    item = slot.conv_item
    records = heads * length * values * item + key_heads * length * keys * item
    if kda:
        per_layer = 2 * records + heads * length * 4 + heads * length * keys * 4
    elif rules.replay_ring == "fixed":
        per_layer = records * (1 if item == 4 else 2) + heads * length * 4
    else:
        per_layer = records + 2 * heads * length * 4
    total = per_layer * state.layers
    return int(total * (slot.stage_layers / max(slot.layers, 1))) if rules.stage_share else total


def ring_active(shape: ModelShape, asked: Asked, rules: Rules) -> bool:
    """Whether the replay ring takes the place of the drafts' states, and the sizing rule knows it."""
    return (
        asked.replayssm
        and asked.speculation is not None
        and rules.replay_ring != "none"
        and shape.family in (Family.GDN, Family.KDA)
    )


def kv_dtype(shape: ModelShape, asked: Asked) -> str:
    """KV dtype in force: ``auto`` follows the checkpoint's own scheme, then the model's dtype."""
    if asked.kv_cache_dtype != "auto":
        if asked.kv_cache_dtype not in _KV_BYTES:
            raise CannotPlan(f"kv_cache_dtype is {asked.kv_cache_dtype!r}: use auto, bfloat16, fp8_e4m3 or fp8_e5m2.")
        return asked.kv_cache_dtype
    if shape.kv_cache_dtype is not None:
        return shape.kv_cache_dtype
    return shape.dtype if asked.dtype in ("auto", "") else asked.dtype


class TokenBytes(msgspec.Struct, frozen=True, kw_only=True):
    """One token's KV on one rank: what sizing divides by, what the target's pool takes, what the draft's takes."""

    sizing: int
    target: int
    draft: int
    #: Layers of a draft that the sizing rule has put into its cell; 0 when none.
    draft_layers_charged: int


def token_bytes(shape: ModelShape, asked: Asked, rules: Rules, draft_layers_seen: int | None = None) -> TokenBytes:
    """Bytes of one token on the fullest pipeline stage (``get_cell_size_per_token``; ``DefaultPoolConfigurator``).

    ``draft_layers_seen`` is the number of draft layers in the cell that a boot log has shown.
    Raises CannotPlan when the pools of the model would hold nothing.
    """
    dtype = kv_dtype(shape, asked)
    _check_heads(shape, asked.attn_tp)
    layers = _fullest_stage(shape.attention_layer_ids, shape.layers, asked.pp, shape.attention_layers)
    if layers < 1:
        raise CannotPlan("No pipeline stage has an attention layer: the KV pool cannot be planned.")
    target = _layers_bytes(shape, asked, rules, dtype, layers)
    speculation = asked.speculation
    if speculation is None or not speculation.loads_weights:
        return TokenBytes(sizing=target, target=target, draft=0, draft_layers_charged=0)
    own = max(1, shape.draft_layers) if speculation.eagle_like else _path_layers(shape, rules)
    draft = target * own // layers
    charged = draft_layers_seen if draft_layers_seen is not None else _charged_layers(shape, asked, rules)
    if speculation.algorithm in ("DFLASH", "DSPARK"):
        charged = draft_layers_seen if draft_layers_seen is not None else 0
        sizing = math.ceil(target * (layers + charged) / layers)
    elif rules.draft_in_cell == "sum":
        sizing = target + int(target * charged / layers)
    else:
        sizing = int(target * (1 + charged / layers))
    return TokenBytes(sizing=sizing, target=target, draft=draft, draft_layers_charged=charged)


def _check_heads(shape: ModelShape, tp: int) -> None:
    """Attention layers assert that heads divide over the ranks, or ranks over the KV heads."""
    heads, kv_heads = shape.attention_heads or tp, shape.kv_heads
    whole = kv_heads % tp == 0 if kv_heads >= tp else tp % kv_heads == 0
    if heads % tp or (shape.mla_width is None and not whole):
        raise CannotPlan(
            f"{heads} heads and {kv_heads} KV heads do not divide over {tp} ranks: choose another tensor-parallel size."
        )


def _charged_layers(shape: ModelShape, asked: Asked, rules: Rules) -> int:
    """Draft layers in the sizing cell: only with a draft named by path (``spec_aux_hidden_state.py``)."""
    speculation = asked.speculation
    if speculation is None or speculation.draft_path is None or rules.draft_in_cell == "none":
        return 0
    return _path_layers(shape, rules)


def _path_layers(shape: ModelShape, rules: Rules) -> int:
    """Layers that SGLang counts for a draft named by path.

    Before 0.5.18 a multimodal wrapper's draft is read from the wrong table, and all the target's layers count
    (reference: seen by execution on 0.5.17; read as 1 on 0.5.23).
    """
    if shape.multimodal and shape.family is Family.GDN and rules.version < (0, 5, 18):
        return shape.layers
    return max(1, shape.draft_layers)


def _layers_bytes(shape: ModelShape, asked: Asked, rules: Rules, dtype: str, layers: int) -> int:
    item = _KV_BYTES[dtype]
    if shape.mla_width is not None:
        cell = shape.mla_width * layers * item
        if dtype in _FP4:
            return cell // 2 + shape.mla_width // _FP4_BLOCK * layers * item
        return cell
    heads = max(1, shape.kv_heads // asked.attn_tp)
    cell = heads * (shape.head_dim + shape.v_head_dim) * layers * item
    if dtype in _FP4:
        scales = (heads * shape.head_dim * layers * 2 * item) // _FP4_BLOCK
        workspace = heads * shape.head_dim * 2 * item if rules.version >= (0, 5, 12) and rules.fp4_workspace else 0
        return cell // 2 + scales + workspace
    if dtype == "mxfp8":
        return cell + heads * (shape.head_dim + shape.v_head_dim) * layers // _MXFP8_BLOCK
    return cell
