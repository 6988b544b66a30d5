"""Changes that are on or off: what a need makes necessary, and what makes room for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tuner.planner.forward import longest_input, reserved_tokens
from tuner.planner.model import CannotPlan, PlanInputs
from tuner.planner.need import Need, rows_for
from tuner.planner.resolve import Resolved, resolve
from tuner.planner.strategy import EXTRA_BUFFER, LAZY


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a flag that is on or off, with its reason and its price (dearer ones are tried later)."""

    flags: dict[str, Any]
    reason: str
    price: int


def switches_for(inputs: PlanInputs, need: Need) -> tuple[list[Switch], list[Switch]]:
    """(changes that any solution must make, changes that a solution may make)."""
    try:
        resolved = resolve(msgspec.structs.replace(inputs, flags={"mem_fraction_static": 0.9} | dict(inputs.flags)))
    except CannotPlan:
        return [], []
    return list(_needed(resolved, need)), list(_optional(resolved, need))


def _needed(resolved: Resolved, need: Need) -> Iterator[Switch]:
    asked = resolved.asked
    rows = rows_for(resolved, need)
    if asked.requests is not None and asked.requests < rows * asked.attn_dp:
        yield _requests(rows * asked.attn_dp, _why_requests(need, rows))
    if (
        asked.context_length is not None
        and longest_input(asked.context_length, asked.context_length, reserved_tokens(asked)) < need.input_tokens
    ):
        yield Switch(flags={"context_length": None}, reason="The context length is below the longest input.", price=1)


def _optional(resolved: Resolved, need: Need) -> Iterator[Switch]:
    asked, shape = resolved.asked, resolved.inputs.shape
    requests = rows_for(resolved, need) * asked.attn_dp
    more = asked.requests is None or asked.requests > requests
    if more and (asked.speculation is not None or asked.disable_radix):
        yield _requests(requests, "Every request that may run keeps draft states or a slot: admit no more.")
    if shape.state is not None and shape.state.heads and asked.ssm_dtype not in ("bfloat16", "float16"):
        yield Switch(
            flags={"mamba_ssm_dtype": "bfloat16"},
            reason="16-bit states halve the bytes of a slot (a measured trade within noise of quality).",
            price=2,
        )
    if shape.state is not None and asked.strategy == EXTRA_BUFFER:
        yield Switch(
            flags={"mamba_radix_cache_strategy": LAZY},
            reason="The lazy extra buffer takes one slot less per request.",
            price=3,
        )
    if asked.kv_cache_dtype in ("auto", "bfloat16", "bf16") and shape.kv_cache_dtype is None:
        yield Switch(
            flags={"kv_cache_dtype": "fp8_e4m3"},
            reason="8-bit KV doubles the tokens of the same memory (check quality: few checkpoints hold scales).",
            price=4,
        )
    if resolved.defaults.sizes.prefill and (off := prefill_graphs_off(resolved)):
        yield Switch(
            flags=off,
            reason="The graphs of prompts lie outside the pools; without them short prompts start a little later.",
            price=5,
        )
    if asked.speculation is not None:
        yield Switch(
            flags=dict.fromkeys(key for key in resolved.inputs.flags if key.startswith("speculative_")),
            reason="Without speculation its weights, draft states and draft KV go to the pools (slower answers).",
            price=9,
        )


def prefill_graphs_off(resolved: Resolved) -> dict[str, Any]:
    """The flag that leaves prefill graphs out; empty where the version has none or they were asked for by name."""
    if resolved.asked.prefill_graphs_forced or resolved.rules.version < (0, 5, 12):
        return {}
    if resolved.rules.version < (0, 5, 17):
        return {"disable_piecewise_cuda_graph": True}
    return {"cuda_graph_backend_prefill": "disabled"}


def _why_requests(need: Need, rows: int) -> str:
    if rows == need.agents:
        return f"{need.agents} agents at once need that many requests admitted."
    return (
        f"{need.agents} agents at once need one request more: SGLang counts the one whose chunks are prefilled twice, "
        "and the last would wait."
    )


def _requests(count: int, reason: str) -> Switch:
    return Switch(flags={"max_running_requests": count}, reason=reason, price=1)
