from __future__ import annotations

import pytest
from checks_simulator import simulator

from tuner.checks.model import CheckResult, Verdict
from tuner.checks.quick import quick_set
from tuner.probes.http import ServerClient

PARSERS = {"reasoning_parser": "qwen3", "tool_call_parser": "qwen3_coder"}


def check(client: ServerClient, **flags: object) -> dict[str, CheckResult]:
    known = {**PARSERS, "mamba_radix_cache_strategy": "extra_buffer", "chunked_prefill_size": 4096, **flags}
    return {result.name: result for result in quick_set(client, model="hybrid-tiny", flags=known)}


def not_passed(results: dict[str, CheckResult]) -> list[str]:
    return [name for name, result in results.items() if result.verdict is not Verdict.PASS]


def test_a_healthy_simulator_passes_every_check() -> None:
    with simulator("--mamba-radix-cache-strategy", "extra_buffer") as client:
        results = check(client)
    assert not_passed(results) == [], results
    assert results["prefix reuse"].details["outcome"] == "works"


def test_without_an_extra_buffer_prefixes_are_reused_at_chunk_ends_only() -> None:
    with simulator("--mamba-radix-cache-strategy", "no_buffer", "--chunked-prefill-size", "4096") as client:
        result = check(client, mamba_radix_cache_strategy="no_buffer")["prefix reuse"]
    assert result.details["outcome"] == "works at chunk ends only"
    assert result.details["cached_tokens"] == [0, 4096, 4096]


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ("reasoning-leaks", ["thinking"]),
        ("broken-tool-args", ["tool call"]),
        ("cache-off", ["prefix reuse"]),
        ("template-leaks", ["thinking", "non-thinking", "tool call"]),
        ("empty-answer", ["thinking", "non-thinking"]),
    ],
)
def test_each_fault_of_the_simulator_is_caught_by_its_own_check(fault: str, failing: list[str]) -> None:
    with simulator("--mamba-radix-cache-strategy", "extra_buffer", "--sim-fault", fault) as client:
        results = check(client)
    assert not_passed(results) == failing, results
    assert all(results[name].verdict is Verdict.FAIL for name in failing)


def test_a_simulator_that_dies_in_the_middle_gives_sentences() -> None:
    with simulator("--sim-fault", "oom-while-serving:4096") as client:
        results = check(client)
    assert results["thinking"].verdict is Verdict.PASS
    assert results["prefix reuse"].verdict is not Verdict.PASS
    assert results["prefix reuse"].reason
