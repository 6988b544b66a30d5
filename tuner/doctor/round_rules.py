"""What was asked against what is in effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.doctor.case import as_number, finding
from tuner.findings import Finding, FindingId, Severity
from tuner.flags import lookup
from tuner.serverlog.model import BootFacts

#: Asked words that SGLang resolves to another one of the same meaning.
_SAME = frozenset({("speculative_algorithm", "NEXTN", "EAGLE")})
#: Words that leave the choice to the server.
_OPEN = frozenset({"auto", "default", "", "none"})
_NOT_COMPARED = frozenset({"api_key", "admin_api_key"})
#: Told by the rules of the log, with their reason.
_TOLD_BY_LOG = frozenset({"max_running_requests", "max_mamba_cache_size", "max_total_num_tokens"})


def diagnose_round(
    asked: Mapping[str, Any], effective: Mapping[str, Any], facts: BootFacts, *, beside_log: bool = False
) -> tuple[Finding, ...]:
    """Flags whose value in effect is not the asked one. ``effective`` by flag name, as read from the server.

    ``beside_log``: the findings of the log are told too, so that what they say is left out here.
    """
    not_compared = _NOT_COMPARED | _TOLD_BY_LOG if beside_log else _NOT_COMPARED
    found = []
    for name, wanted in asked.items():
        info = lookup(name)
        known = info.name if info else name
        got = effective.get(name, effective.get(known))
        if known in not_compared or wanted is None or got is None or _same(known, wanted, got):
            continue
        found.append(
            finding(
                FindingId.ASKED_NOT_EFFECTIVE,
                Severity.WARNING,
                f"{known} is {_word(got)} in effect, {_word(wanted)} was asked.",
                evidence=(f"asked {known} = {_word(wanted)}", f"in effect {known} = {_word(got)}"),
                remedy=_remedy(known, facts),
            )
        )
    return tuple(found)


def _remedy(name: str, facts: BootFacts) -> str:
    if name == "max_running_requests":
        if facts.requests_capped_to is not None and facts.mamba_slots is not None:
            return f"The {facts.mamba_slots} state slots limit it: bfloat16 states or more slots admit more requests."
        return "The pools limit it: more state slots or KV tokens admit more requests."
    if name == "speculative_num_draft_tokens":
        return "With top-k 1 it is always speculative_num_steps + 1."
    if name == "max_mamba_cache_size":
        return "The slots that fit are what counts: plan with the value in effect."
    return "Plan with the value in effect, or look in the log for why the server changed it."


def _same(name: str, asked: Any, got: Any) -> bool:
    a, b = _word(asked), _word(got)
    if a.lower() in _OPEN or a.lower() == b.lower() or (name, a, b) in _SAME:
        return True
    if isinstance(asked, Mapping | list | tuple) or isinstance(got, Mapping | list | tuple):
        # The server writes structures in its own way; a difference of spelling is none.
        return True
    x, y = as_number(asked), as_number(got)
    return x is not None and y is not None and abs(x - y) <= 1e-6 * max(1.0, abs(x))


def _word(value: Any) -> str:
    return str(value)
