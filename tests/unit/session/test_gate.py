"""Which starts are refused before the running server is touched."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from tuner.doctor import diagnose_plan
from tuner.findings import FindingId, Severity
from tuner.modelfile import load_shape
from tuner.planner import plan
from tuner.planner.model import PlanInputs, Source, Sourced
from tuner.session.gate import refusals, weighed


def inputs(calibrated_by: str | None = None, **flags: object) -> PlanInputs:
    return PlanInputs(
        shape=load_shape("qwen3.8-27b-fp8"),
        flags={"mem_fraction_static": 0.86, "enable_metrics": True, "cuda_graph_backend_prefill": "disabled"} | flags,
        free_before=Sourced(46.83, Source.BOOT_LOG),
        free_after=Sourced(19.29, Source.BOOT_LOG),
        calibrated_by=calibrated_by,
    )


def refused(asked: PlanInputs) -> list[FindingId]:
    result = plan(asked)
    return [f.id for f in refusals(weighed(diagnose_plan(asked, result), result))]


def test_a_good_start_goes_on() -> None:
    assert refused(inputs("r1")) == []


@pytest.mark.parametrize("calibrated_by", [None, "r1"])
def test_flags_that_do_not_go_together_are_refused_whatever_the_memory_is(
    calibrated_by: Literal["r1"] | None,
) -> None:
    asked = inputs(calibrated_by, mamba_radix_cache_strategy="no_buffer")
    assert refused(asked) == [FindingId.FLAG_CONFLICT]
    (finding,) = refusals(weighed(diagnose_plan(asked, plan(asked)), plan(asked)))
    assert finding.flags == {"disable_overlap_schedule": True} and finding.remedy


def test_pools_that_do_not_fit_are_refused_only_when_a_start_has_told_the_memory() -> None:
    assert refused(inputs("r1", mem_fraction_static=0.5)) == [FindingId.SLOTS_NEGATIVE]
    rough = inputs(mem_fraction_static=0.5)
    assert refused(rough) == []
    result = plan(rough)
    found = weighed(diagnose_plan(rough, result), result)
    assert [f.severity for f in found if f.id is FindingId.SLOTS_NEGATIVE] == [Severity.WARNING]
    assert "estimate" in next(f for f in found if f.id is FindingId.SLOTS_NEGATIVE).evidence[-1]


def test_running_out_beside_the_pools_is_never_sure() -> None:
    tight = msgspec.structs.replace(inputs("r1", mem_fraction_static=0.99), graphs_gib=3.0)
    result = plan(tight)
    assert not result.fits and result.kv_tokens
    assert refused(tight) == []
