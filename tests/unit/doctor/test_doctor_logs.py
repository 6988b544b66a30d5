# ruff: noqa: E501  (log lines stay as printed)
"""Findings of the recordings and of the texts that the field reports quote."""

import json
from pathlib import Path

import pytest

from tuner.doctor import diagnose_log
from tuner.doctor.boot_rules import POOL_RULES
from tuner.doctor.case import LogCase
from tuner.doctor.deaths import RULES
from tuner.findings import FindingId, Severity
from tuner.serverlog import BootReader
from tuner.serverlog.model import BootFacts, Phase

MEASURED = Path(__file__).parents[2] / "data" / "measured"


def diagnose(text: str, *, died: bool = False):
    reader = BootReader()
    reader.feed(text)
    reader.close()
    return diagnose_log(reader.facts, reader.tail, died=died)


def recorded(name: str):
    return diagnose((MEASURED / f"{name}.log").read_bytes().decode())


RECORDINGS = {
    "27b-48g-fp32-frac086": ["pool-below-context", "prefix-cache-off", "ratio-misfit", "kv-scale-missing"],
    "27b-48g-bf16-frac086": ["pool-below-context", "prefix-cache-off", "ratio-misfit", "kv-scale-missing"],
    "27b-48g-bf16-frac086-ratio03": ["prefix-cache-off", "kv-scale-missing"],
    "27b-48g-bf16-frac095-slots24": ["low-headroom", "prefix-cache-off", "kv-scale-missing"],
    "27b-48g-bf16-frac098-mtp": ["pool-below-context", "spec-eats-pool", "kv-scale-missing"],
    "27b-48g-r15-full": ["low-headroom", "pool-below-context", "spec-eats-pool", "kv-scale-missing"],
    "27b-48g-unified-memory-fails": ["kernel-crash"],
    "27b-48g-fraction-too-low": ["slots-negative"],
    "dense-small": [],
    "tiny-api-key-no-metrics": ["prefix-cache-off", "metrics-off"],
    "tiny-auto-strategy-never-hits": ["prefix-cache-off"],
    "tiny-second-server-same-port": ["prefix-cache-off"],
}


def test_every_recording_has_its_expected_findings():
    assert {p.stem for p in MEASURED.glob("*.log")} == set(RECORDINGS)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_raises_only_what_is_true_of_it(name):
    assert [f.id.value for f in recorded(name)] == RECORDINGS[name]


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_finding_has_evidence_and_a_remedy(name):
    for found in recorded(name):
        assert found.title.endswith(".")
        assert found.remedy.endswith(".")
        assert found.evidence
        assert all(line.strip() for line in found.evidence)


def test_a_fraction_below_the_weights_is_told_with_the_one_that_works():
    (found,) = recorded("27b-48g-fraction-too-low")
    assert found.severity == Severity.FATAL
    assert "1.81 GiB" in found.title
    # 0.55 + 1.81 / 46.83 = 0.589
    assert "0.589" in found.remedy
    assert 0.589 < found.flags["mem_fraction_static"] <= 0.65


def test_a_kernel_fault_is_not_blamed_on_memory():
    (found,) = recorded("27b-48g-unified-memory-fails")
    assert "not a lack of memory" in found.title
    assert "triton.compiler.errors.CompilationError: at 193:17:" in found.evidence
    assert "only int8 supported!" in found.evidence
    assert "free memory then: 2.31 GiB" in found.evidence
    assert found.flags == {"enable_unified_memory": None}


def test_a_cache_that_never_hits_is_explained_by_strategy_and_chunk():
    (found,) = recorded("tiny-auto-strategy-never-hits")
    assert found.severity == Severity.WARNING
    assert "8,192" in found.title
    assert found.flags == {"mamba_radix_cache_strategy": "extra_buffer"}


def test_a_second_server_on_a_taken_port_is_told_as_that():
    tail = json.loads((MEASURED / "tiny-second-server-same-port.json").read_text())["double"]["tail"]
    (found,) = diagnose(tail)
    assert found.id == FindingId.PORT_IN_USE
    assert "30000" in found.title


STARTED = "[2026-01-01 00:00:00] server_args=ServerArgs(mem_fraction_static=0.9, max_running_requests=32, mamba_ssm_dtype='bfloat16', enable_metrics=True, port=30000)\n[2026-01-01 00:00:00] Load weight begin. avail mem=46.83 GB\n"
LOADED = (
    STARTED + "[2026-01-01 00:00:01] Load weight end. elapsed=1 s, type=X, avail mem=19.29 GB, mem usage=27.54 GB.\n"
)
POOLS = (
    LOADED
    + """[2026-01-01 00:00:02] Mamba Cache is allocated. max_mamba_cache_size: 45, conv_state size: 0.16GB, ssm_state size: 4.08GB
[2026-01-01 00:00:02] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 500000, K size: 4.00 GB, V size: 4.00 GB
[2026-01-01 00:00:02] Memory pool end. avail mem=5.95 GB
"""
)
SUMMARY = "[2026-01-01 00:00:03] max_total_num_tokens=500000, chunked_prefill_size=4096, max_prefill_tokens=8192, max_running_requests={requests}, context_len=262144, available_gpu_mem=5.50 GB\n"
SERVING = (
    POOLS
    + SUMMARY.format(requests=9)
    + """[2026-01-01 00:00:04] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)
[2026-01-01 00:00:04] The server is fired up and ready to roll!
"""
)
CRASH = "[2026-01-01 00:00:09] Scheduler hit an exception: Traceback (most recent call last):\n  File x\n{error}\n\n[2026-01-01 00:00:09] Received sigquit from a child process. It usually means the child failed.\n[2026-01-01 00:00:09] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total capacity of 95.01 GiB of which 125.56 MiB is free."

DEATHS = [
    ("launch_server.py: error: unrecognized arguments: --mem-fraction-statik 0.9", "unknown-flag"),
    (
        "launch_server.py: error: argument --schedule-policy: invalid choice: 'x' (choose from 'lpm', 'fcfs')",
        "unknown-flag",
    ),
    ("/usr/bin/python3: No module named sglang", "module-missing"),
    ("Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'sglang'", "module-missing"),
    (
        "Traceback (most recent call last):\n  File x\nOSError: Can't load the configuration of '/models/x'. If you were trying to load it",
        "model-missing",
    ),
    (
        LOADED + CRASH.format(error="AssertionError: Page size must be 1 for MambaRadixCache v1, got 128"),
        "flag-conflict",
    ),
    (
        STARTED
        + "Traceback (most recent call last):\n  File x\nValueError: User-specified context_length (500000) is greater than the derived context_length (262144).",
        "flag-conflict",
    ),
    (
        LOADED
        + CRASH.format(
            error="RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=0 (total_rest_memory=2.00 GB, mamba_cache_per_req=74.81 MB). Try: (1) reduce"
        ),
        "no-room-at-sizing",
    ),
    (
        LOADED + CRASH.format(error="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
        "no-room-at-sizing",
    ),
    (
        LOADED
        + CRASH.format(
            error="ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. Raise --mem-fraction-static above 0.773 (minimum viable = 1 - available/pre = 0.763)."
        ),
        "no-room-at-sizing",
    ),
    (
        LOADED
        + CRASH.format(
            error="RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. max_mamba_cache_size=3, mamba_ratio=5, resulting max_num_reqs=0. Try: x"
        ),
        "no-room-at-sizing",
    ),
    (STARTED + CRASH.format(error=OOM), "no-room-at-sizing"),
    (POOLS + CRASH.format(error=f"Exception: Capture cuda graph failed: {OOM}"), "oom-in-capture"),
    (
        POOLS
        + CRASH.format(error=OOM)
        + "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
        "oom-in-capture",
    ),
    (SERVING + CRASH.format(error=OOM), "oom-while-serving"),
    (
        SERVING + CRASH.format(error="RuntimeError: Prefill out of memory. Try to lower your batch size."),
        "oom-while-serving",
    ),
    (
        POOLS + CRASH.format(error=OOM + " Process 4242 has 20.50 GiB memory in use. Of the allocated memory 1 GiB"),
        "gpu-busy",
    ),
    (SERVING + CRASH.format(error="AssertionError: Can not alloc mamba cache"), "slot-assert"),
    (
        SERVING
        + CRASH.format(
            error="AssertionError: Not enough space for mamba ping pong idx, try to increase --mamba-full-memory-ratio."
        ),
        "slot-assert",
    ),
    (
        POOLS + CRASH.format(error="FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"),
        "tool-chain-missing",
    ),
    (
        POOLS
        + CRASH.format(
            error="torch.AcceleratorError: CUDA error: peer access is not supported between these two devices"
        ),
        "peer-access",
    ),
    (
        STARTED + CRASH.format(error="RuntimeError: CUDART error: cudaErrorPeerAccessUnsupported"),
        "peer-access",
    ),
    (
        POOLS + CRASH.format(error="RuntimeError: CUDA error: an illegal memory access was encountered"),
        "kernel-crash",
    ),
    (
        POOLS
        + CRASH.format(
            error="ValueError: Not enough host memory available. Requesting 55.60 GB but only have 31.20 GB free. Please reduce the size of the hierarchical cache."
        ),
        "hicache-host-memory",
    ),
    (
        STARTED
        + "ValueError: rpc_port at 11236 is not available in 30 seconds. rpc_port is used by a process already. process.name()=python3' process.cmdline()=['python3', '-m', 'sglang.launch_server'] process.status()=running pid=9",
        "double-start",
    ),
    (
        STARTED
        + "ValueError: rpc_port at 11236 is not available in 30 seconds. rpc_port is used by a process already. process.name()=nginx' process.cmdline()=['nginx'] process.status()=running pid=9",
        "port-in-use",
    ),
    (
        STARTED
        + "Traceback (most recent call last):\n  File x\nRuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg`",
        "host-memory-kill",
    ),
    (STARTED + "Fatal Python error: Bus error\n", "host-memory-kill"),
    (POOLS + CRASH.format(error="RuntimeError: mat1 and mat2 shapes cannot be multiplied"), "unknown"),
]


@pytest.mark.parametrize(("text", "expected"), DEATHS, ids=[f"{i}-{e}" for i, (_, e) in enumerate(DEATHS)])
def test_the_nearest_cause_of_a_death_is_named(text, expected):
    found = diagnose(text)
    assert [f.id.value for f in found] == [expected]
    assert found[0].severity == Severity.FATAL
    assert found[0].evidence
    assert found[0].remedy.endswith(".")


def test_every_rule_of_death_is_met_by_a_case():
    refused = (MEASURED / "27b-48g-fraction-too-low.log").read_text()
    met = set()
    for text in (refused, *(text for text, _ in DEATHS), LOADED + "Capture cuda graph failed: odd\n"):
        reader = BootReader()
        reader.feed(text)
        reader.close()
        case = LogCase(reader.facts, reader.tail, died=True)
        met |= {rule.__name__ for rule in RULES if rule(case)}
    assert met == {rule.__name__ for rule in RULES}


def test_a_misspelt_flag_comes_with_the_nearest_real_one():
    (found,) = diagnose("launch_server.py: error: unrecognized arguments: --mem-fraction-statik 0.9")
    assert "--mem-fraction-static" in found.remedy
    assert found.flags == {"mem_fraction_statik": None}


def test_sizing_says_how_high_the_fraction_must_be():
    for text, expected in DEATHS:
        if expected == "no-room-at-sizing" and "minimum viable" in text:
            (found,) = diagnose(text)
            assert 0.773 < found.flags["mem_fraction_static"] <= 0.83


def test_when_no_fraction_can_help_that_is_said():
    text = STARTED + "Load weight end. elapsed=1 s, type=X, avail mem=0.50 GB, mem usage=46.3 GB.\n"
    (found,) = diagnose(
        text + CRASH.format(error="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    )
    assert "smaller weights" in found.remedy
    assert found.flags == {}


def test_an_unknown_death_shows_its_last_words():
    (found,) = diagnose(POOLS + CRASH.format(error="RuntimeError: mat1 and mat2 shapes cannot be multiplied"))
    assert found.evidence[0] == "RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    assert not any("kill_process_tree" in line for line in found.evidence)


def test_a_silent_end_is_unknown_and_no_verdict_from_a_status():
    assert diagnose(STARTED) == ()
    (found,) = diagnose(STARTED, died=True)
    assert found.id == FindingId.UNKNOWN
    assert "loading weights" in found.title
    assert "journalctl" in found.remedy


def test_harmless_lines_raise_nothing():
    text = LOADED.replace(
        "[2026-01-01 00:00:01] Load weight end",
        "[2026-01-01 00:00:01] Setup Custom allreduce failed with CUDART error: peer access is not supported between these two devices. To silence\n[2026-01-01 00:00:01] Ignore import error when loading sglang.srt.models.x: No module named 'helion'\n[2026-01-01 00:00:01] Load weight end",
    )
    assert diagnose(text) == ()


def test_a_wanted_stop_is_no_death():
    stopped = (
        SERVING
        + "[2026-01-01 00:01:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n[2026-01-01 00:01:03] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n"
    )
    assert all(f.severity != Severity.FATAL for f in diagnose(stopped))


CAP = "[2026-01-01 00:00:02] max_running_requests is capped to 9 by the mamba state cache (max_mamba_cache_size=45, 5 state slots per request). To raise it: increase"


def test_requests_capped_by_slots_are_told_with_the_slots_that_would_do():
    found = {f.id: f for f in diagnose(POOLS + CAP + "\n" + SUMMARY.format(requests=9))}
    capped = found[FindingId.REQUESTS_CAPPED_BY_SLOTS]
    assert "32 were asked" in capped.title
    assert capped.flags == {"max_mamba_cache_size": 32 * 5 + 1}
    fp32 = POOLS.replace(", mamba_ssm_dtype='bfloat16'", "")
    found = {f.id: f for f in diagnose(fp32 + CAP + "\n" + SUMMARY.format(requests=9))}
    assert found[FindingId.REQUESTS_CAPPED_BY_SLOTS].flags == {"mamba_ssm_dtype": "bfloat16"}


def test_a_cap_alone_is_enough_to_be_told():
    (found,) = diagnose(CAP)
    assert found.id == FindingId.REQUESTS_CAPPED_BY_SLOTS
    assert "admit 9 requests" in found.title


def test_secrets_and_escape_sequences_do_not_reach_the_evidence():
    (found,) = diagnose(POOLS + CRASH.format(error="RuntimeError: \x1b[31mboom api_key='hunter2' " + "x" * 2000))
    assert "hunter2" not in str(found)
    assert "\x1b" not in str(found)
    assert max(map(len, found.evidence)) <= 400


@pytest.mark.parametrize(
    "facts", [BootFacts(), BootFacts(phase=Phase.DEAD), BootFacts(reached=Phase.READY, kv_tokens=0)]
)
def test_hardly_any_facts_are_no_trouble(facts):
    for tail in ([], ["x"], ["\x1b[0m", "CUDA out of memory"]):
        diagnose_log(facts, tail)
    assert POOL_RULES
