"""The forward rule: flags, shape and free memory to both pools and the budget."""

from __future__ import annotations

from typing import Literal

import msgspec

from tuner.planner.admission import counts_twice
from tuner.planner.asked import Asked
from tuner.planner.budget import lay_out
from tuner.planner.model import GIB, Plan, PlanInputs, Source
from tuner.planner.pieces import pieces_at
from tuner.planner.pools import Split, admitted_requests, requests_per_rank, split_states, tokens_of
from tuner.planner.resolve import Resolved, resolve
from tuner.planner.told import sources_of, values_in_force, version_note

#: ``max_req_len`` is one less than the context or the pool, ``max_req_input_len`` five less than that, and an input
#: must be shorter still (``get_worker_info`` of ``managers/tp_worker.py``, ``validate_input_length``).
_REQUEST_MARGIN, _INPUT_MARGIN = 1, 5
#: A printed GiB may be off by half its last decimal.
_PRINTED_GIB = 0.005
_PRINTED = (Source.BOOT_LOG, Source.OPERATOR)


def plan(inputs: PlanInputs) -> Plan:
    """What a start with these inputs would give. A start that SGLang would refuse has ``fits`` False.

    Raises CannotPlan with one sentence when there is nothing to plan from. Pure, below a millisecond.
    """
    return plan_of(resolve(inputs))


def plan_of(r: Resolved) -> Plan:
    """The plan of resolved inputs."""
    asked, rules, token = r.asked, r.rules, r.token
    split = split_states(r.rest, r.defaults.ratio, asked, rules, r.cost) if r.cost else None
    kv_bytes = split.kv_bytes if split else int(r.rest * GIB)
    page = r.strategy.page_size
    slots = split.slots if split else None
    refused_slots = slots is not None and slots <= 0
    tokens = 0 if refused_slots else tokens_of(kv_bytes, token.sizing, page, asked.max_total_tokens)
    q = r.strategy.slots_per_request
    admitted = admitted_requests(tokens, r.context_len, slots, q, asked, rules) if tokens else 0
    refusal = _refusal(r, split, kv_bytes, tokens, admitted)
    shown_slots = max(0, slots) if slots is not None else 0
    fits = not refusal
    pieces = pieces_at(r, shown_slots, tokens, admitted)
    budget = lay_out(pieces)
    if fits and budget.lowest_free < 0:
        refusal = (
            f"The pools fit, but the start runs out of memory by {-budget.lowest_free:.2f} GiB: "
            "lower mem_fraction_static."
        )
        fits = False
    asked_share = requests_per_rank(asked, rules)
    reach = _reach(r)
    return Plan(
        fits=fits,
        binds=_binds(slots, q, asked_share, tokens, r.context_len, admitted),
        basis="calibrated" if r.inputs.calibrated_by else "formula",
        mamba_slots=shown_slots,
        kv_tokens=tokens,
        max_running_requests=admitted,
        slots_per_request=q,
        bytes_per_slot=r.cost.slot if r.cost else 0,
        bytes_per_token=token.target,
        mamba_gib=pieces.states,
        kv_gib=pieces.kv,
        spec_buffer_gib=pieces.spec_buffer,
        reserve_gib=r.reserve,
        longest_input_tokens=longest_input(r.context_len, tokens, reserved_tokens(asked)),
        context_len=r.context_len,
        ready_free_gib=budget.ready_free,
        lowest_free_gib=budget.lowest_free,
        headroom_line_gib=r.inputs.headroom_line_gib,
        terms=budget.terms,
        sources=sources_of(r),
        calibrated_by=r.inputs.calibrated_by,
        sglang_version=r.inputs.sglang_version,
        version_note=version_note(r),
        calibration_note=r.inputs.calibration_note,
        mamba_slots_low=reach.slots_low if reach else None,
        mamba_slots_high=reach.slots_high if reach else None,
        kv_tokens_low=reach.tokens_low if reach else None,
        kv_tokens_high=reach.tokens_high if reach else None,
        free_before_gib=r.inputs.free_before.gib,
        free_after_gib=r.inputs.free_after.gib,
        startup_loss_gib=r.inputs.startup_loss_gib,
        card_gib=r.inputs.card_gib,
        requests_asked=asked.requests,
        strategy=r.strategy.name,
        chunk_counts_twice=chunk_counts_twice(r),
        decode_ahead_tokens=decode_ahead(asked),
        refusal=refusal,
        in_force=values_in_force(r),
    )


def chunk_counts_twice(r: Resolved) -> bool:
    """Whether a request in chunks takes two of the requests that are admitted; see ``admission.counts_twice``."""
    return counts_twice(r.rules, pipelined=r.asked.pp > 1, mixed_chunk=r.asked.mixed_chunk)


def longest_input(context_len: int, tokens: int, reserved: int = 0) -> int:
    """Longest prompt that is answered, in tokens. ``reserved``: see ``reserved_tokens``.

    The scheduler refuses a prompt of ``max_req_input_len`` = min(context, pool) - 6 tokens or more
    (``validate_input_length``, ``managers/utils.py``; ``/server_info`` showed 262,138 at a context of 262,144), the
    tokenizer one that with ``reserved`` comes to the context length (``_validate_one_request``,
    ``managers/tokenizer_manager.py``). Read in 0.5.9, 0.5.10, 0.5.12 to 0.5.14, 0.5.16, 0.5.17, 0.5.20 and 0.5.23.
    """
    by_scheduler = min(context_len, tokens) - _REQUEST_MARGIN - _INPUT_MARGIN - 1
    by_tokenizer = context_len - 1 - reserved
    return max(0, min(by_scheduler, by_tokenizer))


def reserved_tokens(asked: Asked) -> int:
    """Tokens that the tokenizer adds to a prompt for EAGLE-like drafts (``compute_num_reserved_tokens``; 2 seen)."""
    speculation = asked.speculation
    if speculation is None or not speculation.eagle_like:
        return 0
    return max(speculation.topk * speculation.steps, speculation.draft_tokens)


def decode_ahead(asked: Asked) -> int:
    """KV tokens that a running request holds for its next step: twice the longest draft, as drafts overlap.

    ``get_alloc_reserve_per_decode`` (``mem_cache/allocation_sizing.py``, 0.5.17), for pages of one token or top-k 1.
    """
    speculation = asked.speculation
    if speculation is None:
        return 1
    return 2 * max(speculation.topk * speculation.steps, speculation.draft_tokens)


class _Reach(msgspec.Struct, frozen=True, kw_only=True):
    slots_low: int
    slots_high: int
    tokens_low: int
    tokens_high: int


def _reach(r: Resolved) -> _Reach | None:
    """The pools at both ends of what the two printed decimals of the inputs allow; None where that says nothing.

    Tokens are taken with the most slots at the low end and with the fewest at the high end, so that they hold
    wherever in between a slot is won.
    """
    inputs = r.inputs
    if inputs.calibrated_by or inputs.free_before.source not in _PRINTED or inputs.free_after.source not in _PRINTED:
        return None
    off = _PRINTED_GIB * (1 + 1 - r.defaults.fraction)
    if r.cost is None:
        ends = [_tokens_at(r, rest, None) for rest in (r.rest - off, r.rest + off)]
        return _Reach(slots_low=0, slots_high=0, tokens_low=ends[0], tokens_high=ends[1])
    low, high = (
        max(0, split_states(rest, r.defaults.ratio, r.asked, r.rules, r.cost).slots)
        for rest in (r.rest - off, r.rest + off)
    )
    return _Reach(
        slots_low=low,
        slots_high=high,
        tokens_low=_tokens_at(r, r.rest - off, high) if low else 0,
        tokens_high=_tokens_at(r, r.rest + off, low) if high else 0,
    )


def _tokens_at(r: Resolved, rest: float, slots: int | None) -> int:
    kv_bytes = int(rest * GIB)
    if slots is not None:
        kv_bytes = charged_for(r, slots, rest).kv_bytes
    return tokens_of(kv_bytes, r.token.sizing, r.strategy.page_size, r.asked.max_total_tokens)


def charged_for(r: Resolved, slots: int, rest: float | None = None) -> Split:
    """What the rule charges for ``slots`` slots, whatever way it came to them; ``rest``: GiB, as resolved when None."""
    assert r.cost is not None
    asked = msgspec.structs.replace(r.asked, slots=slots * r.asked.attn_dp)
    return split_states(r.rest if rest is None else rest, r.defaults.ratio, asked, r.rules, r.cost)


def _refusal(r: Resolved, split: Split | None, kv_bytes: int, tokens: int, admitted: int) -> str:
    """The start that SGLang refuses at sizing, in our words; "" when it goes on."""
    minimum = 1 - r.free_at_sizing / r.pre
    if split is not None and split.slots <= 0:
        if r.rest <= 0:
            return (
                f"The weights leave nothing for the pools at mem_fraction_static {r.defaults.fraction:g}: "
                f"raise it above {minimum:.3f}."
            )
        return (
            f"No state slot fits into {r.rest:.2f} GiB at ratio {r.defaults.ratio:g}: "
            "raise mamba_full_memory_ratio or mem_fraction_static, or lower max_running_requests."
        )
    if kv_bytes <= 0 or tokens <= 0:
        if r.rest <= 0:
            return (
                f"The weights leave nothing for the KV pool at mem_fraction_static {r.defaults.fraction:g}: "
                f"raise it above {minimum:.3f}."
            )
        return "The state slots leave nothing for the KV pool: fewer slots, a smaller ratio or a higher fraction."
    if longest_input(r.context_len, tokens, reserved_tokens(r.asked)) <= 0:
        return f"A KV pool of {tokens} tokens holds no request at all."
    if admitted <= 0:
        if split is not None:
            return (
                f"{split.slots} state slots serve no request, each needs {r.strategy.slots_per_request}: "
                "raise max_mamba_cache_size or the ratio."
            )
        return "max_running_requests leaves no request for a data-parallel replica: raise it."
    return ""


def _binds(
    slots: int | None, q: int, asked_share: int | None, tokens: int, context_len: int, admitted: int
) -> Literal["kv", "mamba", "requests"]:
    """What to change first for more: states when they cap requests, KV when it cannot hold one full context."""
    by_slots = slots // q if slots is not None and q else None
    if by_slots is not None and (admitted < asked_share if asked_share is not None else by_slots <= admitted):
        return "mamba"
    if tokens < context_len:
        return "kv"
    return "requests"
