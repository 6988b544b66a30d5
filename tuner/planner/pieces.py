"""What a start allocates, piece by piece: weights, states, KV, buffers of speculation and graphs."""

from __future__ import annotations

from tuner.planner.budget import Pieces, runtime_gib
from tuner.planner.cells import ssm_dtype as ssm_dtype_in_force
from tuner.planner.graphs import captured_sizes, guess_gib
from tuner.planner.model import GIB, PlanInputs, Source
from tuner.planner.resolve import Resolved

#: Free GiB below which 0.5.16 and 0.5.17 give up prefill graphs that were not asked for by name.
_PREFILL_GRAPHS_NEED_GIB = 4.0


def pieces_at(r: Resolved, slots: int, tokens: int, admitted: int) -> Pieces:
    """What a start allocates that came to these slots, tokens and admitted requests, GiB."""
    asked, rules, inputs, page = r.asked, r.rules, r.inputs, r.strategy.page_size
    allocated = slots + 1 if r.cost is not None and slots > 0 else 0
    slot_now = r.cost.slot if r.cost else 0
    ring = r.cost.ring * (allocated if rules.replay_ring == "slot" else admitted + 1) if r.cost and tokens else 0
    held = tokens + page if tokens else 0
    returned = 0.0
    if asked.speculation is not None and rules.gives_draft_vocabulary_back:
        returned = (
            inputs.draft_returned_gib
            if inputs.draft_returned_gib is not None
            else inputs.shape.draft_shared_bytes / GIB / (asked.tp * asked.pp)
        )
        returned = min(returned, r.draft)
    draft_kv = held * r.token.draft / GIB
    states = (allocated * slot_now + ring) / GIB
    spec = _spec_buffer(r, admitted) / GIB if slots > 0 and tokens else 0.0
    before_graphs = r.pre - inputs.startup_loss_gib - r.weights - r.draft - states - spec - draft_kv + returned
    before_graphs -= held * r.token.target / GIB
    prefill, decode, graphs_source = _graphs(r, admitted, before_graphs)
    return Pieces(
        pre=r.pre,
        context=inputs.context_gib,
        context_source=inputs.context_source,
        weights=r.weights,
        weights_source=inputs.free_after.source,
        draft=r.draft,
        draft_source=inputs.draft_weights.source if inputs.draft_weights else Source.ESTIMATE,
        draft_returned=returned,
        sizing_loss=inputs.sizing_loss_gib,
        states=states,
        checkpoints=_checkpoints(r, slots) / GIB,
        spec_buffer=spec,
        kv=held * r.token.target / GIB,
        draft_kv=draft_kv,
        graphs=prefill + decode,
        graphs_source=graphs_source,
        capture_more=(inputs.capture_peak - 1) * max(prefill, decode),
        runtime=runtime_gib(tokens, inputs.runtime_gib),
        runtime_source=Source.BOOT_LOG if inputs.runtime_gib is not None else Source.ESTIMATE,
        draft_before_pools=rules.draft_before_pools,
        startup_loss=inputs.startup_loss_gib,
    )


def _spec_buffer(r: Resolved, admitted: int) -> int:
    """Bytes that the drafts' states really take: n + 1 rows of D states, conv windows without duplicates.

    ``MambaPool`` (``memory_pool.py``): seen on 0.5.17 with D = 2 and D = 4.
    """
    speculation, slot = r.asked.speculation, r.slot
    if speculation is None or slot is None or r.cost is None:
        return 0
    rows, drafts = admitted + 1, speculation.draft_tokens
    share = slot.stage_layers / max(slot.layers, 1)
    temporal = 0 if r.cost.ring_active else rows * drafts * slot.temporal
    window = slot.kernel - 1
    columns = drafts * window
    if r.rules.dedup_conv_windows and speculation.topk <= 1 and r.inputs.shape.family != "kda":
        columns = drafts + window - 1 if window else 0
    conv = rows * slot.conv_dim * columns * slot.conv_item * slot.layers
    return int((temporal + conv) * share)


def _checkpoints(r: Resolved, slots: int) -> int:
    """Bytes of the int8 checkpoint pool (``mamba_checkpoint_pool.py``), which comes out of the reserve."""
    state = r.inputs.shape.state
    if not r.asked.int8_checkpoints or r.slot is None or state is None or slots <= 0:
        return 0
    heads = state.heads // r.asked.attn_tp
    item = 4 if ssm_dtype_in_force(r.inputs.shape, r.asked) == "float32" else 2
    per_slot = state.layers * (heads * state.head_dim * state.state_size + heads * state.state_size * item)
    return (r.asked.int8_checkpoint_slots or 2 * slots) * (per_slot + r.slot.conv)


def _graphs(r: Resolved, admitted: int, free_gib: float) -> tuple[float, float, Source]:
    """(prefill, decode and draft) graphs in GiB."""
    sizes = captured_sizes(r.defaults.sizes, admitted, r.asked)
    if not sizes.prefill and not sizes.decode:
        return 0.0, 0.0, Source.ESTIMATE
    prefill, decode = guess_gib(r.inputs.shape, r.asked, sizes)
    source = Source.ESTIMATE
    if r.inputs.graphs_gib is not None:
        source = Source.BOOT_LOG
        prefill, decode = _measured_graphs(r.inputs, r.inputs.graphs_gib, prefill, decode)
    if r.rules.drops_prefill_graphs and not r.asked.prefill_graphs_forced and free_gib < _PREFILL_GRAPHS_NEED_GIB:
        prefill = 0.0
    return prefill, decode, source


def _measured_graphs(inputs: PlanInputs, measured: float, prefill: float, decode: float) -> tuple[float, float]:
    """(prefill, decode and draft) graphs in GiB as a log told them, scaled to other sizes by the guess."""
    if inputs.prefill_graphs_gib is None:
        scale = (prefill + decode) / inputs.graphs_guess_gib if inputs.graphs_guess_gib else 1.0
        share = prefill / (prefill + decode) if prefill + decode > 0 else 0.0
        return measured * scale * share, measured * scale * (1 - share)
    guess = inputs.prefill_graphs_guess_gib or 0.0
    rest = (inputs.graphs_guess_gib or 0.0) - guess
    if inputs.prefill_graphs_gib > 0 and prefill > 0:
        prefill = inputs.prefill_graphs_gib * (prefill / guess if guess > 0 else 1.0)
    if rest > 0:
        decode *= (measured - inputs.prefill_graphs_gib) / rest
    return prefill, decode
