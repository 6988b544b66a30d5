from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tuner.checks.model import CheckResult, Verdict
from tuner.checks.quick import quick_set
from tuner.probes.http import ServerClient

ROOT = Path(__file__).parents[3]
PARSERS = {"reasoning_parser": "qwen3", "tool_call_parser": "qwen3_coder"}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def simulator(*switches: str) -> Iterator[ServerClient]:
    port = free_port()
    command = [
        sys.executable, "-m", "tuner.sim", "--model-path", "hybrid-tiny", "--sim-shape", "hybrid-tiny",
        "--host", "127.0.0.1", "--port", str(port), "--mem-fraction-static", "0.5", "--max-running-requests", "8",
        "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_coder",
        "--sim-speed", "0", "--sim-free-gib", "24", *switches,
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if "ready to roll" in line:
                break
        else:
            raise AssertionError("".join(lines[-5:]))
        drain = threading.Thread(target=server.stdout.read, daemon=True)
        drain.start()
        client = ServerClient(f"http://127.0.0.1:{port}")
        try:
            yield client
        finally:
            client.close()
            server.terminate()
            server.wait(30)
            drain.join()


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
