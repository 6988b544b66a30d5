"""Prefill and decode roles that must keep states alike: where they differ, answers get worse without a word."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.doctor.case import LogCase, finding
from tuner.doctor.cause import Cause, told_by_a_line
from tuner.findings import Finding, FindingId, Severity
from tuner.serverlog.model import BootFacts

_ROLES = ("prefill", "decode")
_COMPARED = ("mamba_ssm_dtype", "kv_cache_dtype", "page_size", "model_path")
#: Rounding of the printed sizes (two decimals) over the slots.
_SAME = 0.02

#: What the transfer says of roles that do not fit.
transfer_refused = told_by_a_line(
    (
        Cause(
            id=FindingId.PD_MISMATCH,
            line=r"PD Disaggregation does NOT support PD different TP sizes",
            title="The prefill and the decode role have different numbers of ranks, which states cannot cross.",
            remedy="Give both roles the same tp_size.",
        ),
        Cause(
            id=FindingId.PD_MISMATCH,
            line=r"(?i)(?:transfer|item|state).{0,30}(?:size|length|len).{0,20}mismatch|"
            r"mismatch.{0,30}(?:item|transfer|state).{0,10}(?:size|length|len)",
            title="The prefill and the decode role do not keep states of the same size.",
            remedy="Give both roles the same model, mamba_ssm_dtype (by name) and tp_size: states move whole.",
        ),
    )
)


def role_alone(case: LogCase) -> Finding | None:
    """A role whose state dtype is left to the server."""
    role = case.argument("disaggregation_mode")
    if role not in _ROLES or not case.facts.hybrid or case.argument("mamba_ssm_dtype") is not None:
        return None
    return finding(
        FindingId.PD_MISMATCH,
        Severity.NOTE,
        f"This {role} role leaves the dtype of its states to SGLang; the other role may choose another.",
        evidence=(f"disaggregation_mode={role}", "mamba_ssm_dtype is not set"),
        remedy="Set mamba_ssm_dtype by name on both roles, and compare their logs.",
    )


def diagnose_roles(prefill: BootFacts, decode: BootFacts) -> tuple[Finding, ...]:
    """What two logs of a pair tell: sizes of a state slot, ranks and dtypes that must be equal."""
    differences = list(_differences(prefill, decode))
    if not differences:
        return ()
    return (
        finding(
            FindingId.PD_MISMATCH,
            Severity.WARNING,
            "The prefill and the decode role do not keep states alike: answers get worse without an error.",
            evidence=differences,
            remedy="Give both roles the same model, tp_size and mamba_ssm_dtype, each by name.",
        ),
    )


def _differences(prefill: BootFacts, decode: BootFacts) -> Iterator[str]:
    one, other = _gib_per_slot(prefill), _gib_per_slot(decode)
    if one and other and abs(one - other) > _SAME * max(one, other):
        yield f"a state slot takes {one * 1024:.1f} MiB in prefill, {other * 1024:.1f} MiB in decode"
    a, b = prefill.server_args, decode.server_args
    if a and b:
        if a.get("tp_size", "1") != b.get("tp_size", "1"):
            yield f"tp_size is {a.get('tp_size', '1')} in prefill, {b.get('tp_size', '1')} in decode"
        for name in _COMPARED:
            if a.get(name) != b.get(name):
                yield f"{name} is {a.get(name, 'not set')} in prefill, {b.get(name, 'not set')} in decode"


def _gib_per_slot(facts: BootFacts) -> float | None:
    # The printed size covers one slot more than told (reference: K + 1).
    if not facts.mamba_slots or not facts.ssm_state_gib:
        return None
    return facts.ssm_state_gib / (facts.mamba_slots + 1)
