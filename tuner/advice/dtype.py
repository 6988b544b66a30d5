"""Smaller states and smaller KV: the same memory holds more of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.advice.case import Case
from tuner.advice.model import Draft, Lever
from tuner.advice.ratio import evidence, states_for
from tuner.planner.cells import kv_dtype, ssm_dtype
from tuner.units import format_bytes

_HALVED = "bfloat16"
_16_BIT = ("bfloat16", "bf16", "float16", "half")
_KV_8_BIT = "fp8_e4m3"


def proposals(case: Case) -> Iterator[Draft]:
    """16-bit states first: they cost least in quality."""
    yield from _states(case)
    yield from _kv(case)


def _states(case: Case) -> Iterator[Draft]:
    shape, asked = case.inputs.shape, case.resolved.asked
    if shape.state is None or not shape.state.heads or ssm_dtype(shape, asked) != "float32":
        return
    if not case.kv_wanted and not case.slots_wanted:
        return
    flags: dict[str, Any] = {"mamba_ssm_dtype": _HALVED}
    gains: tuple[str, ...] = ("mamba_slots", "max_running_requests")
    reason = "16-bit states take half the bytes: the state pool holds about twice the slots."
    title = "Keep states in 16 bits"
    pinned = asked.slots is not None
    if case.kv_wanted and not case.slots_wanted:
        gains = ("kv_tokens",)
        if pinned or asked.unified_memory or not case.resolved.strategy.radix:
            reason = "The same slots take half the bytes in 16 bits; the rest goes to KV."
        else:
            # The dtype alone moves nothing to KV: the ratio does, so the two go together.
            wanted = max(case.slots_needed(case.plan.slots_per_request), 1)
            found = states_for(case, min(wanted, case.plan.mamba_slots), flags)
            if found is None:
                return
            ratio = found[0]["mamba_full_memory_ratio"]
            if ratio >= case.resolved.defaults.ratio:
                return
            flags |= found[0]
            title = f"Keep states in 16 bits, at ratio {ratio:g}"
            reason = "16-bit states take half the bytes; the dtype gives slots, and the smaller ratio makes KV of them."
    yield Draft(
        id="16-bit-states",
        lever=Lever.DTYPE,
        title=title,
        flags=flags,
        reason=reason,
        evidence=(f"a slot takes {format_bytes(case.plan.bytes_per_slot)} in float32", *evidence(case)),
        gives_up="precision of the states",
        risk="Quality: measured within noise on one model (GSM8K 0.955 to 0.945); check your own.",
        gains=gains,
    )


def _kv(case: Case) -> Iterator[Draft]:
    shape, asked = case.inputs.shape, case.resolved.asked
    if not case.kv_wanted or kv_dtype(shape, asked) not in _16_BIT:
        return
    scales = "the checkpoint says nothing of scales"
    yield Draft(
        id="8-bit-kv",
        lever=Lever.DTYPE,
        title="Keep KV in 8 bits",
        flags={"kv_cache_dtype": _KV_8_BIT},
        reason="8-bit KV takes half the bytes of a token: the same pool holds twice the tokens.",
        evidence=(f"a token takes {format_bytes(case.plan.bytes_per_token)} in {kv_dtype(shape, asked)}", scales),
        gives_up="precision of keys and values",
        risk="Without scales SGLang takes 1.0: check answers to long inputs before keeping it.",
        gains=("kv_tokens",),
    )
