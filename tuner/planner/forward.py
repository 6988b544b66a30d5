"""The forward rule: flags, shape and free memory to both pools and the budget."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from tuner.modelcard import ModelShape
from tuner.planner.asked import Asked, read_flags
from tuner.planner.budget import Pieces, lay_out, runtime_gib
from tuner.planner.cells import (
    SlotBytes,
    TokenBytes,
    ring_active,
    ring_bytes,
    slot_bytes,
    stage_slot_bytes,
    token_bytes,
)
from tuner.planner.cells import kv_dtype as kv_dtype_in_force
from tuner.planner.cells import ssm_dtype as ssm_dtype_in_force
from tuner.planner.defaults import Defaults, multimodal_reserve_gib, resolve_defaults
from tuner.planner.graphs import captured_sizes, guess_gib
from tuner.planner.model import GIB, CannotPlan, Plan, PlanInputs, Source
from tuner.planner.pools import SlotCost, Split, admitted_requests, requests_per_rank, split_states, tokens_of
from tuner.planner.strategy import RADIX_OFF, Strategy, resolve_strategy
from tuner.planner.versions import Rules, rules_for

#: Free GiB below which 0.5.16 and 0.5.17 give up prefill graphs that were not asked for by name.
_PREFILL_GRAPHS_NEED_GIB = 4.0
#: Text-only classes of Qwen3.5: 0.5.9 and 0.5.12 find no states in their config (executed), 0.5.17 does (seen).
_TEXT_ONLY, _TEXT_ONLY_SINCE = frozenset({"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"}), (0, 5, 17)
#: ``max_req_len`` is one less than the context or the pool, ``max_req_input_len`` five less than that, and an input
#: must be shorter still (``get_worker_info`` of ``managers/tp_worker.py``, ``validate_input_length``).
_REQUEST_MARGIN, _INPUT_MARGIN = 1, 5
#: A printed GiB may be off by half its last decimal.
_PRINTED_GIB = 0.005
_PRINTED = (Source.BOOT_LOG, Source.OPERATOR)


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plan is worked out from, once: what was asked and what is in force."""

    inputs: PlanInputs
    rules: Rules
    asked: Asked
    defaults: Defaults
    strategy: Strategy
    slot: SlotBytes | None
    cost: SlotCost | None
    token: TokenBytes
    context_len: int
    #: GiB: free memory that the rule starts from, weights of target and draft, free memory at sizing.
    pre: float
    weights: float
    draft: float
    free_at_sizing: float
    #: GiB that SGLang keeps out of the pools, and what is left for them.
    slack: float
    rest: float


def resolve(inputs: PlanInputs) -> Resolved:
    """Reads the flags by the version's rule. Raises CannotPlan with one sentence."""
    rules = rules_for(inputs.sglang_version)
    shape = inputs.shape
    asked = read_flags(inputs)
    defaults = resolve_defaults(shape, asked, rules, inputs.card_gib)
    strategy = resolve_strategy(shape, asked, rules)
    slot = slot_bytes(shape, asked)
    cost = _slot_cost(inputs, asked, rules, strategy, slot)
    token = token_bytes(shape, asked, rules, inputs.draft_layers_in_cell)
    if inputs.bytes_per_token is not None:
        token = _measured_token(token, inputs.bytes_per_token)
    _check_memory(inputs)
    pre = inputs.free_before.gib + inputs.startup_loss_gib
    weights, draft, moved = _weights(inputs, asked, rules)
    free_at_sizing = inputs.free_after.gib + moved - inputs.sizing_loss_gib
    slack = pre * (1 - defaults.fraction)
    if asked.post_capture and rules.post_capture and cost is not None:
        raise CannotPlan("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING sizes the pools after the graphs: it cannot be planned.")
    rest = free_at_sizing - slack - multimodal_reserve_gib(shape, asked, rules)
    return Resolved(
        inputs=inputs,
        rules=rules,
        asked=asked,
        defaults=defaults,
        strategy=strategy,
        slot=slot,
        cost=cost,
        token=token,
        context_len=_context_len(shape, asked, inputs),
        pre=pre,
        weights=weights,
        draft=draft,
        free_at_sizing=free_at_sizing,
        slack=slack,
        rest=rest,
    )


def plan(inputs: PlanInputs) -> Plan:
    """What a start with these inputs would give. A start that SGLang would refuse has ``fits`` False.

    Raises CannotPlan with one sentence when there is nothing to plan from. Pure, below a millisecond.
    """
    return plan_of(resolve(inputs))


def pin_draft(inputs: PlanInputs) -> PlanInputs:
    """``inputs`` that say whether ``free_after`` counts a draft's weights, told by the flags they came with.

    Whoever changes flags afterwards, speculation among them, starts from these. Raises CannotPlan for flags that
    cannot be read.
    """
    if inputs.free_after_has_draft is not None:
        return inputs
    speculation = read_flags(inputs).speculation
    counted = speculation is not None and speculation.loads_weights
    counted = counted and rules_for(inputs.sglang_version).draft_before_pools
    return msgspec.structs.replace(inputs, free_after_has_draft=counted)


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
    if refusal:
        admitted = 0 if not tokens else admitted
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
        reserve_gib=r.slack,
        longest_input_tokens=longest_input(r.context_len, tokens, reserved_tokens(asked)),
        context_len=r.context_len,
        ready_free_gib=budget.ready_free,
        lowest_free_gib=budget.lowest_free,
        headroom_line_gib=r.inputs.headroom_line_gib,
        terms=budget.terms,
        sources=_sources(r),
        calibrated_by=r.inputs.calibrated_by,
        sglang_version=r.inputs.sglang_version,
        version_note=_version_note(r),
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
        decode_ahead_tokens=decode_ahead(asked),
        refusal=refusal,
        in_force=_in_force(r),
    )


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


def _check_memory(inputs: PlanInputs) -> None:
    for name, value in (("free-before", inputs.free_before.gib), ("free-after", inputs.free_after.gib)):
        if not math.isfinite(value) or not -1e5 < value < 1e5:
            raise CannotPlan(f"{name} is {value} GiB: a card never has that much.")
    if inputs.free_before.gib <= 0:
        raise CannotPlan(f"free-before is {inputs.free_before.gib:.2f} GiB: there is no memory to plan with.")
    if inputs.free_after.gib > inputs.free_before.gib:
        raise CannotPlan(
            f"free-after ({inputs.free_after.gib:.2f} GiB) is above free-before ({inputs.free_before.gib:.2f} GiB): "
            "weights take memory; were the two exchanged?"
        )


def _weights(inputs: PlanInputs, asked: Asked, rules: Rules) -> tuple[float, float, float]:
    """(target, draft, moved) in GiB on one rank: weights, and what sizing sees more than ``free_after``.

    A preview turns speculation on and off, so the draft is moved out of or into the memory that is free.
    """
    speculation = asked.speculation
    speculates = speculation is not None and speculation.loads_weights
    if inputs.draft_weights is not None:
        draft = inputs.draft_weights.gib
    else:
        draft = inputs.shape.draft_weights_bytes / GIB / (asked.tp * asked.pp)
    counts_now = speculates and rules.draft_before_pools
    counted = inputs.free_after_has_draft if inputs.free_after_has_draft is not None else counts_now
    taken = inputs.free_before.gib - inputs.free_after.gib
    if counted:
        draft = min(draft, taken)
    moved = (draft if counted else 0.0) - (draft if counts_now else 0.0)
    return taken - (draft if counted else 0.0), draft if speculates else 0.0, moved


def _slot_cost(
    inputs: PlanInputs, asked: Asked, rules: Rules, strategy: Strategy, slot: SlotBytes | None
) -> SlotCost | None:
    if slot is None:
        return None
    charged = inputs.bytes_per_slot or stage_slot_bytes(slot, rules)
    if charged <= 0:
        raise CannotPlan("The state layers of this model keep nothing: its shape is damaged.")
    return SlotCost(
        slot=charged,
        slots_per_request=strategy.slots_per_request,
        ring=ring_bytes(inputs.shape, asked, rules, slot),
        ring_active=ring_active(inputs.shape, asked, rules),
    )


def _measured_token(token: TokenBytes, target: int) -> TokenBytes:
    """Measured bytes of a token in the target's pool; the draft's share stays in proportion."""
    return TokenBytes(
        sizing=target + (token.sizing - token.target) * target // token.target,
        target=target,
        draft=token.draft * target // token.target,
        draft_layers_charged=token.draft_layers_charged,
    )


def _context_len(shape: ModelShape, asked: Asked, inputs: PlanInputs) -> int:
    longest = shape.context_len
    if asked.context_length is None:
        return longest
    allowed = inputs.environment.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in ("1", "true")
    if asked.context_length > longest and not allowed:
        raise CannotPlan(
            f"context_length {asked.context_length:,} is above the model's {longest:,}: SGLang refuses it "
            "unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 is set."
        )
    return asked.context_length


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


def _sources(r: Resolved) -> dict[str, str]:
    """Where each input comes from, by name; every number that the plan was worked out from is here."""
    inputs = r.inputs
    flag = "recipe"
    default = "SGLang's default"
    log = Source.BOOT_LOG.value
    estimate = Source.ESTIMATE.value
    sources = {"model_shape": inputs.shape.name, "sglang_version": inputs.version_source or "given"}
    if inputs.card_gib is not None:
        sources["card"] = Source.MEASURED.value
    sources |= {
        "free_before": inputs.free_before.source.value,
        "free_after": inputs.free_after.source.value,
        "startup_loss": log if inputs.calibrated_by else "recordings of 0.5.17",
        "context": inputs.context_source.value,
        "graphs": log if inputs.graphs_gib is not None else estimate,
        "runtime": log if inputs.runtime_gib is not None else estimate,
        "bytes_per_token": log if inputs.bytes_per_token else "model shape",
        "mem_fraction_static": flag if r.defaults.fraction_given else default,
    }
    if r.cost is not None:
        sources["bytes_per_slot"] = log if inputs.bytes_per_slot else "model shape"
        sources["mamba_full_memory_ratio"] = flag if r.asked.ratio is not None else default
        if r.asked.slots is not None:
            sources["max_mamba_cache_size"] = flag
    if r.asked.requests is not None or r.asked.speculation is not None:
        sources["max_running_requests"] = flag if r.asked.requests is not None else default
    if r.draft:
        sources["draft_weights"] = inputs.draft_weights.source.value if inputs.draft_weights else estimate
        sources["draft_returned"] = log if inputs.draft_returned_gib is not None else estimate
        sources["draft_layers_in_cell"] = log if inputs.draft_layers_in_cell is not None else "formula"
    return sources


def _version_note(r: Resolved) -> str:
    notes = [r.rules.note]
    if r.inputs.shape.architecture in _TEXT_ONLY and r.rules.version < _TEXT_ONLY_SINCE:
        notes.append(
            f"SGLang {r.rules.label} does not take {r.inputs.shape.architecture} for a hybrid: "
            "the plan holds for the multimodal wrapper of the same model only."
        )
    speculation = r.asked.speculation
    if speculation is not None and speculation.loads_weights and not r.inputs.draft_weights:
        if not speculation.eagle_like:
            notes.append(
                "The draft's own config is not known: its weights and KV are guessed from the model's own head."
            )
        elif not r.inputs.shape.draft_weights_bytes:
            notes.append("The model's config names no draft head: its weights count as nothing until a boot log tells.")
    return " ".join(note for note in notes if note)


def _in_force(r: Resolved) -> dict[str, Any]:
    values: dict[str, Any] = {
        "mem_fraction_static": r.defaults.fraction,
        "chunked_prefill_size": r.defaults.chunked_prefill_size,
        "page_size": r.strategy.page_size,
        "kv_cache_dtype": kv_dtype_in_force(r.inputs.shape, r.asked),
        "disable_radix_cache": not r.strategy.radix,
    }
    if r.cost is not None:
        values |= {
            "mamba_full_memory_ratio": r.defaults.ratio,
            "mamba_ssm_dtype": ssm_dtype_in_force(r.inputs.shape, r.asked),
            "mamba_radix_cache_strategy": r.strategy.name if r.strategy.name != RADIX_OFF else None,
            "disable_overlap_schedule": not r.strategy.overlap,
        }
    if r.asked.speculation is not None:
        values["speculative_num_draft_tokens"] = r.asked.speculation.draft_tokens
        values["max_running_requests"] = requests_per_rank(r.asked, r.rules)
    return {name: value for name, value in values.items() if value is not None}
