"""Combinations that SGLang would die of or silently change."""

from __future__ import annotations

from typing import Any

import pytest
from planner_cases import inputs_for

from tuner.findings import Finding, FindingId, Severity
from tuner.planner.preflight import flag_conflicts

NEXT, TEXT, VL, KIMI, NEMOTRON, DENSE = (
    "qwen3-next-80b-a3b-fp8",
    "qwen3.8-27b-fp8-text",
    "qwen3.8-27b-fp8",
    "kimi-linear-48b-a3b",
    "nemotron-nano-9b-v2",
    "qwen3-dense-small",
)


def conflicts(model: str, version: str, **flags: Any) -> tuple[Finding, ...]:
    return flag_conflicts(inputs_for(model, version, 70.0, 40.0, **({"mem_fraction_static": 0.8} | flags)))


CASES: list[tuple[str, str, dict[str, Any], Severity, str, dict[str, Any]]] = [
    (
        NEXT,
        "0.5.17",
        {"mamba_radix_cache_strategy": "no_buffer", "page_size": 64, "disable_overlap_schedule": True},
        Severity.FATAL,
        "no_buffer takes no page_size but 1",
        {"mamba_radix_cache_strategy": "extra_buffer"},
    ),
    (NEXT, "0.5.12", {"page_size": 64}, Severity.WARNING, "set back to 1", {"page_size": None}),
    (
        NEXT,
        "0.5.17",
        {"mamba_radix_cache_strategy": "no_buffer"},
        Severity.FATAL,
        "needs the overlap schedule off",
        {"disable_overlap_schedule": True},
    ),
    (
        NEXT,
        "0.5.12",
        {"speculative_algorithm": "NEXTN", "max_running_requests": 4},
        Severity.FATAL,
        "Speculation does not go with a prefix cache",
        {"mamba_scheduler_strategy": "extra_buffer"},
    ),
    (
        NEXT,
        "0.5.9",
        {"speculative_algorithm": "NEXTN", "max_running_requests": 4},
        Severity.WARNING,
        "switches the prefix cache off",
        {"mamba_scheduler_strategy": "extra_buffer"},
    ),
    (
        NEMOTRON,
        "0.5.12",
        {"mamba_scheduler_strategy": "extra_buffer"},
        Severity.FATAL,
        "has no extra buffer in SGLang 0.5.12",
        {"mamba_scheduler_strategy": "no_buffer", "disable_overlap_schedule": True},
    ),
    (
        NEXT,
        "0.5.17",
        {"mamba_radix_cache_strategy": "extra_buffer", "page_size": 48},
        Severity.FATAL,
        "no multiple of page_size 48",
        {"page_size": 64, "mamba_track_interval": None},
    ),
    (
        NEXT,
        "0.5.17",
        {"mamba_radix_cache_strategy": "extra_buffer_lazy", "disable_overlap_schedule": True},
        Severity.FATAL,
        "needs the overlap schedule",
        {"disable_overlap_schedule": None},
    ),
    (
        NEXT,
        "0.5.17",
        {
            "mamba_radix_cache_strategy": "extra_buffer_lazy",
            "speculative_algorithm": "DFLASH",
            "max_running_requests": 4,
        },
        Severity.FATAL,
        "does not go with DFLASH",
        {"mamba_radix_cache_strategy": "extra_buffer"},
    ),
    (NEXT, "0.5.17", {"enable_mixed_chunk": True}, Severity.FATAL, "corrupt the states", {"enable_mixed_chunk": None}),
    (NEXT, "0.5.17", {"enable_torch_compile": True}, Severity.FATAL, "torch.compile", {"enable_torch_compile": None}),
    (KIMI, "0.5.17", {"cpu_offload_gb": 8}, Severity.FATAL, "tied parameters", {"cpu_offload_gb": None}),
    (
        NEMOTRON,
        "0.5.17",
        {"attention_backend": "triton"},
        Severity.FATAL,
        "does not run with the triton",
        {"attention_backend": "flashinfer"},
    ),
    (
        TEXT,
        "0.5.17",
        {"enable_unified_memory": True, "speculative_algorithm": "NEXTN", "max_running_requests": 3},
        Severity.FATAL,
        "Unified memory does not go with speculative decoding",
        {"enable_unified_memory": None},
    ),
    (
        TEXT,
        "0.5.17",
        {"enable_unified_memory": True, "kv_cache_dtype": "fp8_e4m3"},
        Severity.WARNING,
        "died in the first forward",
        {"enable_unified_memory": None},
    ),
    (
        TEXT,
        "0.5.17",
        {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 8,
            "max_running_requests": 256,
        },
        Severity.WARNING,
        "steps + 1: 4, not 8",
        {"speculative_num_draft_tokens": 4},
    ),
    (TEXT, "0.5.17", {"speculative_algorithm": "NEXTN"}, Severity.WARNING, "plans for 48", {}),
    (
        VL,
        "0.5.17",
        {"speculative_algorithm": "NEXTN", "speculative_draft_model_path": "/m", "max_running_requests": 4},
        Severity.WARNING,
        "falls to a fifth",
        {"speculative_draft_model_path": None},
    ),
    (
        TEXT,
        "0.5.18",
        {"speculative_algorithm": "NEXTN", "startup_weight_load_mode": "overlap", "max_running_requests": 4},
        Severity.FATAL,
        "startup_weight_load_mode",
        {"startup_weight_load_mode": None},
    ),
    (
        NEXT,
        "0.5.17",
        {"max_mamba_cache_size": 40, "mamba_full_memory_ratio": 0.5},
        Severity.NOTE,
        "has no effect beside it",
        {},
    ),
    (DENSE, "0.5.17", {"context_length": 99_999}, Severity.FATAL, "SGLang refuses it", {"context_length": 40_960}),
    (NEXT, "0.5.17", {"max_running_requests": "many"}, Severity.FATAL, "whole number was expected", {}),
]


@pytest.mark.parametrize(("model", "version", "flags", "severity", "title", "fix"), CASES)
def test_a_combination_that_does_not_fit_is_found_with_its_fix(
    model: str, version: str, flags: dict[str, Any], severity: Severity, title: str, fix: dict[str, Any]
) -> None:
    found = [finding for finding in conflicts(model, version, **flags) if title in finding.title]
    assert len(found) == 1
    assert (found[0].id, found[0].severity, found[0].flags) == (FindingId.FLAG_CONFLICT, severity, fix)
    assert found[0].remedy


@pytest.mark.parametrize(("model", "version", "flags", "severity", "title", "fix"), CASES)
def test_the_fix_of_a_conflict_ends_it(
    model: str, version: str, flags: dict[str, Any], severity: Severity, title: str, fix: dict[str, Any]
) -> None:
    if fix:
        after = {name: value for name, value in (flags | fix).items() if value is not None}
        assert not [finding for finding in conflicts(model, version, **after) if title in finding.title]


def test_a_flag_by_a_name_the_version_does_not_know_is_told() -> None:
    old = conflicts(NEXT, "0.5.20", mamba_scheduler_strategy="extra_buffer")
    new = conflicts(NEXT, "0.5.12", mamba_radix_cache_strategy="extra_buffer")
    assert [finding.id for finding in (*old, *new)] == [FindingId.UNKNOWN_FLAG, FindingId.UNKNOWN_FLAG]
    assert old[0].flags == {"mamba_scheduler_strategy": None, "mamba_radix_cache_strategy": "extra_buffer"}


@pytest.mark.parametrize(
    ("version", "flags", "told"),
    [
        ("0.5.17", {"enable_piecewise_cuda_graph": True}, True),
        ("0.5.12", {"enable_piecewise_cuda_graph": True}, False),
        # Which of the versions between them dropped it was not read.
        ("0.5.14", {"enable_piecewise_cuda_graph": True}, False),
        ("0.5.17", {"language_model_only": True}, True),
        ("0.5.23", {"language_model_only": True}, False),
        ("0.5.17", {"enable_piecewise_cuda_graph": False}, False),
    ],
)
def test_a_flag_that_the_version_lacks_is_told_before_the_start(
    version: str, flags: dict[str, Any], told: bool
) -> None:
    found = [finding for finding in conflicts(NEXT, version, **flags) if finding.id is FindingId.UNKNOWN_FLAG]
    assert bool(found) is told
    for finding in found:
        assert finding.severity is Severity.FATAL
        assert finding.flags == dict.fromkeys(flags)


@pytest.mark.parametrize(
    ("model", "version", "flags"),
    [
        (NEXT, "0.5.17", {}),
        (NEXT, "0.5.12", {}),
        (DENSE, "0.5.17", {"page_size": 64, "enable_mixed_chunk": True, "enable_torch_compile": True}),
        (
            TEXT,
            "0.5.17",
            {
                "mamba_radix_cache_strategy": "extra_buffer",
                "speculative_algorithm": "NEXTN",
                "speculative_num_steps": 1,
                "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": 2,
                "max_running_requests": 3,
            },
        ),
        (TEXT, "0.5.17", {"mamba_radix_cache_strategy": "no_buffer"}),
    ],
)
def test_flags_that_go_together_raise_nothing(model: str, version: str, flags: dict[str, Any]) -> None:
    assert conflicts(model, version, **flags) == ()


def test_the_worst_comes_first() -> None:
    found = conflicts(
        NEXT, "0.5.17", speculative_algorithm="NEXTN", enable_mixed_chunk=True, max_mamba_cache_size=9,
        mamba_full_memory_ratio=1,
    )  # fmt: skip
    assert [finding.severity for finding in found] == [Severity.FATAL, Severity.WARNING, Severity.NOTE]
