"""Prefill and decode roles that must keep states alike."""

from tuner.doctor import diagnose_log, diagnose_roles
from tuner.findings import FindingId, Severity
from tuner.serverlog.model import BootFacts, Phase

PREFILL = BootFacts(
    mamba_slots=63, ssm_state_gib=4.0, hybrid=True, server_args={"disaggregation_mode": "prefill", "tp_size": "2"}
)
DECODE = BootFacts(
    mamba_slots=127, ssm_state_gib=8.0, hybrid=True, server_args={"disaggregation_mode": "decode", "tp_size": "2"}
)


def changed(facts, **values):
    return BootFacts(
        **{name: getattr(facts, name) for name in ("mamba_slots", "ssm_state_gib", "hybrid", "server_args")} | values
    )


def test_roles_that_keep_states_alike_are_fine_whatever_their_slots():
    assert diagnose_roles(PREFILL, DECODE) == ()


def test_states_of_another_dtype_are_told_by_the_bytes_of_a_slot():
    (found,) = diagnose_roles(PREFILL, changed(DECODE, ssm_state_gib=16.0))
    assert (found.id, found.severity) == (FindingId.PD_MISMATCH, Severity.WARNING)
    assert "64.0 MiB in prefill, 128.0 MiB in decode" in found.evidence[0]


def test_roles_of_different_ranks_are_told():
    (found,) = diagnose_roles(PREFILL, changed(DECODE, server_args=DECODE.server_args | {"tp_size": "4"}))
    assert "tp_size is 2 in prefill, 4 in decode" in found.evidence


def test_a_role_alone_is_told_to_name_its_dtype():
    ready = changed(PREFILL, reached=Phase.READY, kv_tokens=500_000)
    assert FindingId.PD_MISMATCH in [f.id for f in diagnose_log(ready)]
    named = changed(ready, server_args=PREFILL.server_args | {"mamba_ssm_dtype": "bfloat16"}, kv_tokens=500_000)
    assert FindingId.PD_MISMATCH not in [f.id for f in diagnose_log(named)]


def test_logs_that_tell_nothing_are_not_compared():
    assert diagnose_roles(BootFacts(), BootFacts()) == ()
