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
#: ``max_req_len`` is one less than the context or the pool, and the input five less than that (``tp_worker.py``).
_REQUEST_MARGIN, _INPUT_MARGIN = 1, 5


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
        longest_input_tokens=longest_input(r.context_len, tokens),
        context_len=r.context_len,
        ready_free_gib=budget.ready_free,
        lowest_free_gib=budget.lowest_free,
        headroom_line_gib=r.inputs.headroom_line_gib,
        terms=budget.terms,
        sources=_sources(r),
        calibrated_by=r.inputs.calibrated_by,
        sglang_version=r.inputs.sglang_version,
        version_note=_version_note(r),
        requests_asked=asked.requests,
        strategy=r.strategy.name,
        refusal=refusal,
        in_force=_in_force(r),
    )


def longest_input(context_len: int, tokens: int) -> int:
    """Longest prompt that is taken, in tokens (``managers/tp_worker.py``; 262,138 at a context of 262,144 seen)."""
    return max(0, min(context_len, tokens) - _REQUEST_MARGIN - _INPUT_MARGIN)


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
    if longest_input(r.context_len, tokens) <= 0:
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
    graphs, graphs_source = _graphs(r, admitted, before_graphs)
    return Pieces(
        pre=r.pre,
        context=inputs.context_gib,
        weights=r.weights,
        weights_source=inputs.free_after.source,
        draft=r.draft,
        draft_source=inputs.draft_weights.source if inputs.draft_weights else inputs.free_after.source,
        draft_returned=returned,
        sizing_loss=inputs.sizing_loss_gib,
        states=states,
        checkpoints=_checkpoints(r, slots) / GIB,
        spec_buffer=spec,
        kv=held * r.token.target / GIB,
        draft_kv=draft_kv,
        graphs=graphs,
        graphs_source=graphs_source,
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


def _graphs(r: Resolved, admitted: int, free_gib: float) -> tuple[float, Source]:
    sizes = captured_sizes(r.defaults.sizes, admitted, r.asked)
    if not sizes.prefill and not sizes.decode:
        return 0.0, Source.ESTIMATE
    prefill, decode = guess_gib(r.inputs.shape, r.asked, sizes)
    if r.inputs.graphs_gib is not None:
        scale = (prefill + decode) / r.inputs.graphs_guess_gib if r.inputs.graphs_guess_gib else 1.0
        return r.inputs.graphs_gib * scale, Source.BOOT_LOG
    if r.rules.drops_prefill_graphs and not r.asked.prefill_graphs_forced and free_gib < _PREFILL_GRAPHS_NEED_GIB:
        prefill = 0.0
    return prefill + decode, Source.ESTIMATE


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
    inputs = r.inputs
    loss = "boot log" if inputs.calibrated_by else "recordings of 0.5.17"
    sources = {
        "free_before": inputs.free_before.source.value,
        "free_after": inputs.free_after.source.value,
        "startup_loss": loss,
        "mem_fraction_static": "recipe" if r.defaults.fraction_given else "SGLang's default",
        "mamba_full_memory_ratio": "recipe" if r.asked.ratio is not None else "SGLang's default",
        "bytes_per_slot": "boot log" if inputs.bytes_per_slot else "model shape",
        "bytes_per_token": "boot log" if inputs.bytes_per_token else "model shape",
        "graphs": "boot log" if inputs.graphs_gib is not None else "estimate",
        "runtime": "boot log" if inputs.runtime_gib is not None else "estimate",
    }
    if r.draft:
        draft_source = inputs.draft_weights.source.value if inputs.draft_weights else Source.ESTIMATE.value
        sources["draft_weights"] = draft_source
        sources["draft_returned"] = "boot log" if inputs.draft_returned_gib is not None else "estimate"
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
