"""What lets the state slots admit more requests, and how many the memory of the pools could admit at all."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tuner.doctor.sizes import Pools
from tuner.units import format_gib, format_tokens

_NARROW = {"mamba_ssm_dtype": "bfloat16"}
#: Of one full context, and of a pool that holds less: with what the sizing charges for drafts beyond what they take.
_FULL, _HALF = 1.05, 0.5
_WORSE = "lowering mem_fraction_static makes it worse."


class States(msgspec.Struct, frozen=True, kw_only=True):
    """States by the piece, GiB: of one slot, and what the drafts of one request keep."""

    slot_gib: float
    draft_gib: float

    def of(self, requests: int, per_request: int) -> float:
        """GiB for so many requests: their slots, one to copy into, the padding slot, and a row more of drafts."""
        return self.slot_gib * (requests * per_request + 2) + self.draft_gib * (requests + 1)

    def most(self, gib: float, per_request: int) -> int:
        """Requests whose states take no more than ``gib``."""
        each = self.slot_gib * per_request + self.draft_gib
        return max(0, math.floor((gib - 2 * self.slot_gib - self.draft_gib) / each)) if each > 0 else 0


class Capped(msgspec.Struct, frozen=True, kw_only=True):
    """Pools whose slots admit fewer requests than the ``asked``.

    ``narrow``: states as they would be in 16 bit; None when they are so already, or when nobody knows. ``in_16_bit``:
    they are asked for in 16 bit.
    """

    pools: Pools
    asked: int | None
    in_16_bit: bool = False
    narrow: States | None = None

    @property
    def wanted(self) -> int | None:
        """Slots that would serve the requests asked for; None when not known."""
        per_request = self.pools.per_request
        return self.asked * per_request + 1 if self.asked and per_request else None


def states_now(pools: Pools) -> States | None:
    """The states of a start by the piece; None when their sizes are not known."""
    if not pools.slot_gib or not pools.requests:
        return None
    return States(slot_gib=pools.slot_gib, draft_gib=pools.draft_gib / (pools.requests + 1))


def more_requests(capped: Capped) -> tuple[str, dict[str, Any]]:
    """Remedy and flags: more slots where the memory of the pools has room for them, else as many requests as it has.

    A number of slots is named only where what they leave holds KV for one full context, or half of a pool that is
    below that now. Where sizes are not known it is named all the same.
    """
    pools, now = capped.pools, states_now(capped.pools)
    best = (capped.narrow or now) if now is not None else None
    if now is None or best is None or not capped.asked or not pools.kv_gib or not pools.per_request:
        return _more_slots(capped, now, best)
    room = _pools_gib(pools, now) - _least_kv_gib(pools)
    if (now if pools.pinned else best).of(capped.asked, pools.per_request) <= room:
        return _more_slots(capped, now, best)
    return _out_of_reach(capped, capped.asked, pools.per_request, now, best, room)


def _more_slots(capped: Capped, now: States | None, best: States | None) -> tuple[str, dict[str, Any]]:
    pools, wanted = capped.pools, capped.wanted
    pin = {"max_mamba_cache_size": wanted} if wanted else {}
    at = f" at {wanted} (requests x slots per request + 1)" if wanted else ""
    if pools.pinned:
        return f"Pin max_mamba_cache_size{at or ' higher'}: pinned slots grow by nothing else; {_WORSE}", pin
    if capped.in_16_bit:
        return f"Raise mamba_full_memory_ratio, or pin max_mamba_cache_size{at}; {_WORSE}", pin
    if best is None or now is None or _met(pools, now, best) >= (capped.asked or 0):
        words = f"Keep states in bfloat16, raise mamba_full_memory_ratio, or pin max_mamba_cache_size{at}"
        return f"{words}; {_WORSE}", _NARROW
    words = f"Keep states in bfloat16, and raise mamba_full_memory_ratio or pin max_mamba_cache_size{at}"
    return f"{words}; {_WORSE}", _NARROW | pin


def _out_of_reach(
    capped: Capped, asked: int, per_request: int, now: States, best: States, room: float
) -> tuple[str, dict[str, Any]]:
    pools, admitted = capped.pools, capped.pools.requests or 0
    slots, drafts = now.slot_gib * (asked * per_request + 2), now.draft_gib * (asked + 1)
    takes = f"{format_tokens(asked * per_request + 1)} state slots take {format_gib(slots)}"
    if drafts:
        takes += f" and the states of as many drafts {format_gib(drafts)}"
    kept = "one full context" if _holds_context(pools) else "half of its tokens"
    most = best.most(room, per_request)
    narrower = capped.narrow is not None
    met = max(admitted, _met(pools, now, best)) if narrower and not pools.pinned else admitted
    together, needed = format_gib(_pools_gib(pools, now)), format_gib(_least_kv_gib(pools))
    words = (
        f"{format_tokens(asked)} requests are out of reach: {takes}; states and KV have {together} together, and "
        f"{kept} of KV needs {needed} of it."
    )
    if most > met:
        words += (
            f" {'With states in bfloat16' if narrower else 'At most'} about {format_tokens(most)} fit"
            f" (max_mamba_cache_size {most * per_request + 1}, the rest for KV)."
        )
    flags: dict[str, Any] = {"max_running_requests": met}
    if met > admitted:
        return f"{words} Keep states in bfloat16 and ask for {met}, which takes nothing from KV.", _NARROW | flags
    return f"{words} Ask for the {met} that are admitted.", flags


def _met(pools: Pools, now: States, best: States) -> int:
    """Requests that are admitted with states as in ``best`` in the memory that states have now."""
    return best.most(now.slot_gib * (pools.slots + 1) + pools.draft_gib, pools.per_request or 1)


def _pools_gib(pools: Pools, now: States) -> float:
    return (pools.kv_gib or 0.0) + now.slot_gib * (pools.slots + 1) + pools.draft_gib


def _holds_context(pools: Pools) -> bool:
    return bool(pools.context and pools.kv_tokens and pools.kv_tokens >= pools.context)


def _least_kv_gib(pools: Pools) -> float:
    """Of the KV pool what more slots must not take."""
    share = _FULL * (pools.context or 0) / (pools.kv_tokens or 1) if _holds_context(pools) else _HALF
    return min(1.0, share) * (pools.kv_gib or 0.0)
