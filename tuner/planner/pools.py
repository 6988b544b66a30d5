"""How SGLang splits what is left after the weights into the two pools, and what it then admits."""

from __future__ import annotations

import msgspec

from tuner.planner.asked import SPECULATIVE_REQUESTS, Asked
from tuner.planner.model import GIB
from tuner.planner.versions import Rules


class SlotCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the sizing rule charges for states, in bytes per rank. ``ring`` is the replay ring of one slot."""

    slot: int
    slots_per_request: int
    ring: int = 0
    ring_active: bool = False


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The split of one start. ``slots`` is K; not positive when nothing fits. Bytes are per rank."""

    slots: int
    kv_bytes: int
    #: Charged for the drafts' states (more than is allocated from 0.5.17 on).
    spec_reserved: int
    #: Charged for slots, padding and ring.
    states_charged: int
    from_ratio: bool


def requests_per_rank(asked: Asked, rules: Rules) -> int | None:
    """``--max-running-requests`` of one attention-DP rank; with speculation 48 when not given; None: not given."""
    requests = asked.requests
    if requests is None:
        if asked.speculation is None:
            return None
        requests = SPECULATIVE_REQUESTS
    share = requests // asked.attn_dp
    return max(1, share) if rules.at_least_one else share


def split_states(rest_gib: float, ratio: float, asked: Asked, rules: Rules, cost: SlotCost) -> Split:
    """Splits ``rest_gib`` into slots and the KV budget, by the version's own rule.

    To 0.5.12: ``ModelRunner.handle_max_mamba_cache`` (``model_runner_kv_cache_mixin.py``), 0.5.13 to 0.5.15 the
    same with the drafts' states solved jointly, from 0.5.16 ``KVCacheConfigurator._handle_max_mamba_cache``
    (``mem_cache/kv_cache_configurator.py``), from 0.5.17 with the padding slot paid. Floating-point steps are
    SGLang's, so that rounding falls alike.
    """
    drafts = asked.speculation.draft_tokens if asked.speculation and not cost.ring_active else 0
    if asked.pd_mode == "prefill" and rules.version >= (0, 5, 22):
        drafts = 0
    share = requests_per_rank(asked, rules)
    ring_in_slot = cost.ring if rules.replay_ring == "slot" else 0
    ring_fixed = 0
    if cost.ring_active and rules.replay_ring == "fixed":
        ring_fixed = cost.ring * ((share or 0) + 1)
    pad = 1 if rules.pays_padding_slot else 0
    per_slot = cost.slot + ring_in_slot
    q = cost.slots_per_request
    reserved = 0
    from_ratio = False
    if rules.speculation == "upfront" and drafts:
        reserved = cost.slot * (share or 0) * drafts
        rest_gib = rest_gib - reserved / GIB
    if asked.slots is not None:
        slots = asked.slots // asked.attn_dp
        if rules.speculation != "upfront" and drafts:
            reserved = cost.slot * (min(share or 0, slots // q) + pad) * drafts
    elif asked.disable_radix and share is not None:
        slots = share
        if rules.speculation != "upfront" and drafts:
            reserved = cost.slot * (slots + pad) * drafts
    else:
        from_ratio = True
        budget = rest_gib * ratio / (1 + ratio) * GIB
        if rules.speculation != "upfront" and drafts:
            slots = int((budget - pad * cost.slot * (1 + drafts)) // (cost.slot * (1 + drafts / q)))
            reserved = cost.slot * (min(share or 0, slots // q) + pad) * drafts
        else:
            slots = int((budget - ring_fixed - pad * per_slot) // per_slot)
    if rules.speculation != "upfront":
        rest_gib = rest_gib - reserved / GIB
    charged = (slots + pad) * per_slot + ring_fixed
    return Split(
        slots=slots,
        kv_bytes=int((rest_gib - charged / GIB) * GIB),
        spec_reserved=reserved,
        states_charged=charged,
        from_ratio=from_ratio,
    )


def tokens_of(kv_bytes: int, cell: int, page_size: int, cap: int | None) -> int:
    """Tokens of a KV budget: whole pages, at most ``--max-total-tokens`` (``calculate_pool_sizes``)."""
    tokens = max(0, kv_bytes) // cell // page_size * page_size
    if cap is not None:
        tokens = min(tokens, cap) // page_size * page_size
    return tokens


def admitted_requests(tokens: int, context_len: int, slots: int | None, q: int, asked: Asked, rules: Rules) -> int:
    """``max_running_requests`` in effect (``resolve_max_num_reqs``; 0.5.9: ``init_memory_pool``, worker).

    ``slots`` is None for a model without states.
    """
    estimate = max(min(int(tokens / context_len * 512), 4096), 2048)
    share = requests_per_rank(asked, rules)
    by_slots = slots // q if slots is not None and q else None
    if rules.request_cap == "rows":
        requests = asked.requests if asked.requests is not None or not asked.speculation else SPECULATIVE_REQUESTS
        rows = requests if requests is not None else estimate
        if by_slots is not None:
            rows = min(rows, by_slots)
        return max(0, min(share if share is not None else tokens // 2, rows))
    if share is None:
        admitted = min(estimate, tokens // 2)
    elif rules.request_cap == "estimate":
        admitted = min(share, estimate)
    else:
        admitted = min(share, tokens // 2)
    if by_slots is not None:
        admitted = min(admitted, by_slots)
    return max(0, admitted)
