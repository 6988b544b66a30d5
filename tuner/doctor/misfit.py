"""Memory that lies in the wrong pool: more state slots than the requests have use for, while KV is short."""

from __future__ import annotations

from tuner.doctor.case import finding
from tuner.doctor.sizes import MOST_SLOTS_PER_REQUEST, Pools
from tuner.findings import Finding, FindingId, Severity
from tuner.units import format_tokens

#: Conversations kept warm per running request before more slots are called idle.
_WARM_PER_REQUEST = 2


def ratio_misfit(pools: Pools) -> Finding | None:
    """More than twice the slots that are of use, while the KV pool holds less than one full context.

    Of use are those that the requests reserve, some conversations kept warm beside each, and one to copy into.
    """
    requests, per_request = pools.requests, pools.per_request or MOST_SLOTS_PER_REQUEST
    if not pools.slots or not requests or pools.kv_tokens is None or pools.context is None:
        return None
    enough = requests * (per_request + _WARM_PER_REQUEST) + 1
    idle = pools.slots - enough
    if pools.kv_tokens >= pools.context or idle <= enough:
        return None
    evidence = [
        f"{enough} slots are of use: {requests} x ({per_request} of a request, {_WARM_PER_REQUEST} conversations kept "
        "warm beside it), and one more",
        f"KV pool: {format_tokens(pools.kv_tokens)} of {format_tokens(pools.context)} tokens",
    ]
    if pools.slot_gib and pools.kv_gib and pools.kv_tokens:
        worth = int(idle * pools.slot_gib / pools.kv_gib * pools.kv_tokens)
        evidence.append(f"the other {idle} slots are worth {format_tokens(worth)} tokens of KV")
    return finding(
        FindingId.RATIO_MISFIT,
        Severity.NOTE,
        f"{pools.slots} state slots for {requests} request{'s' if requests != 1 else ''}, while the KV pool holds less "
        "than one full context.",
        evidence=evidence,
        remedy="Move memory to KV with a smaller mamba_full_memory_ratio, or pin max_mamba_cache_size; slots beyond "
        "this only keep more idle conversations warm.",
        flags={"max_mamba_cache_size": enough},
    )
