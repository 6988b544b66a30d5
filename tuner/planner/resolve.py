"""What was asked and what is in force: everything that the forward rule works a plan out from."""

from __future__ import annotations

import math

import msgspec

from tuner.modelcard import ModelShape
from tuner.planner.asked import Asked, read_flags
from tuner.planner.cells import (
    SlotBytes,
    TokenBytes,
    ring_active,
    ring_bytes,
    slot_bytes,
    stage_slot_bytes,
    token_bytes,
)
from tuner.planner.defaults import Defaults, multimodal_reserve_gib, resolve_defaults
from tuner.planner.model import GIB, CannotPlan, PlanInputs
from tuner.planner.pools import SlotCost
from tuner.planner.strategy import Strategy, resolve_strategy
from tuner.planner.versions import Rules, rules_for


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
    reserve: float
    rest: float

    @property
    def prefill_chunk(self) -> int:
        """Tokens of a prefill batch on one attention-DP rank (``_handle_data_parallelism`` divides what was asked)."""
        return self.defaults.chunked_prefill_size // self.asked.attn_dp


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
    reserve = pre * (1 - defaults.fraction)
    if asked.post_capture and rules.post_capture and cost is not None:
        raise CannotPlan("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING sizes the pools after the graphs: it cannot be planned.")
    rest = free_at_sizing - reserve - multimodal_reserve_gib(shape, asked, rules)
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
        reserve=reserve,
        rest=rest,
    )


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
