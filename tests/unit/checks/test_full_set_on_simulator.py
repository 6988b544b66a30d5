from __future__ import annotations

import threading

import msgspec
import pytest
from checks_simulator import started

from tuner.checks.model import CheckResult, Verdict
from tuner.checks.quick import FULL_SET, full_set
from tuner.probes.http import ServerClient
from tuner.serverlog.model import BootFacts

#: Small pools, so that rows of conversations and the longest input take no time; speculation, so that it can be judged.
SMALL = (
    "--mamba-radix-cache-strategy", "extra_buffer", "--chunked-prefill-size", "4096",
    "--max-mamba-cache-size", "40", "--max-total-tokens", "40000", "--enable-metrics", "--enable-cache-report",
    "--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", "4",
)  # fmt: skip


def checked(client: ServerClient, facts: BootFacts, **more: object) -> dict[str, CheckResult]:
    info = client.server_info()
    assert isinstance(info, dict)
    results = full_set(client, model="hybrid-tiny", facts=facts, flags=info, **more)
    return {result.name: result for result in results}


def failed(results: dict[str, CheckResult]) -> list[str]:
    return [name for name, result in results.items() if result.verdict is Verdict.FAIL]


def test_a_healthy_server_passes_all_checks() -> None:
    with started(*SMALL) as (client, facts):
        results = checked(client, facts)
    assert list(results) == list(FULL_SET)
    assert {result.verdict for result in results.values()} == {Verdict.PASS}, results
    assert results["speculation"].details["acceptance_length"] > 2
    assert results["speculation"].details["cost_kv_tokens"] > 0
    assert results["longest input"].details["accepted_tokens"] == 39_993
    assert results["longest input"].details["refused_tokens"] == 39_994
    warm = results["breadth"].details["warm"]
    assert warm["30"]
    assert not warm["47"]
    # The answers and the server's own counter agree on what was cached.
    prefix = results["prefix reuse"].details
    assert prefix["counted_tokens"] == prefix["cached_tokens"] == [0, 8_000, 8_000]


@pytest.mark.parametrize(
    ("fault", "check", "reason"),
    [
        ("reasoning-leaks", "thinking", "Template tokens are left in the answer"),
        ("thinks-anyway", "non-thinking", "It thought although thinking was turned off"),
        ("broken-tool-args:whole", "tool call", "The arguments are no JSON"),
        ("broken-tool-args:streamed", "streamed tool call", "The arguments are no JSON"),
        ("cache-off", "prefix reuse", "on but never hits"),
        ("cache-wrong", "tool call on a cache hit", "cached tokens it does not"),
        ("hot-answer-differs", "same answer cold and hot", "another answer comes than cold"),
        ("acceptance-length-1", "speculation", "No draft is accepted"),
        ("slots-lost", "breadth", "slots are held elsewhere or lost"),
        ("limit-off-by-one", "longest input", "39,993 tokens should be accepted and are refused"),
    ],
)
def test_each_fault_fails_exactly_its_own_check(fault: str, check: str, reason: str) -> None:
    with started(*SMALL, "--sim-fault", fault) as (client, facts):
        results = checked(client, facts)
    assert failed(results) == [check], results
    assert reason in results[check].reason


def test_without_metrics_and_cache_report_a_hit_is_not_claimed() -> None:
    quiet = [switch for switch in SMALL if switch not in ("--enable-metrics", "--enable-cache-report")]
    with started(*quiet) as (client, facts):
        results = checked(client, facts)
    for name in ("tool call on a cache hit", "same answer cold and hot"):
        assert results[name].verdict is Verdict.CANNOT_TELL
        assert "--enable-cache-report" in results[name].reason
    assert failed(results) == []


def test_a_cache_that_is_off_as_asked_is_no_fault() -> None:
    with started(*SMALL, "--disable-radix-cache") as (client, facts):
        results = checked(client, facts)
    assert failed(results) == []
    assert results["breadth"].reason.startswith("off:")
    assert results["same answer cold and hot"].reason.startswith("off:")


def test_a_limit_predicted_from_a_plan_that_came_out_otherwise_gives_way_to_the_servers_own() -> None:
    with started(*SMALL) as (client, facts):
        info = client.server_info()
        assert isinstance(info, dict)
        results = checked(client, msgspec.structs.replace(facts, kv_tokens=39_000))
    assert results["longest input"].verdict is Verdict.PASS


def test_breaking_off_leaves_every_check_with_a_word() -> None:
    cancel = threading.Event()
    with started(*SMALL) as (client, facts):
        results = checked(client, facts, cancel=cancel, on_started=lambda name, *_: name == "breadth" and cancel.set())
    assert list(results) == list(FULL_SET)
    assert results["speculation"].verdict is Verdict.PASS
    assert {results[name].reason for name in ("breadth", "longest input")} == {"It was broken off."}
