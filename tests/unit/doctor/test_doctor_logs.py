# ruff: noqa: E501, W291  (log lines stay as printed)
"""Findings of the recordings and of the texts that the field reports quote."""

import json
from pathlib import Path

import pytest

from tuner.doctor import diagnose_log
from tuner.doctor.boot_rules import POOL_RULES
from tuner.doctor.case import LogCase
from tuner.doctor.deaths import RULES
from tuner.findings import FindingId, Severity
from tuner.serverlog.model import BootFacts, Phase
from tuner.serverlog.reader import BootReader

MEASURED = Path(__file__).parents[2] / "data" / "measured"


def diagnose(text: str, **known):
    reader = BootReader()
    reader.feed(text)
    reader.close()
    return diagnose_log(reader.facts, reader.tail, **known)


def recorded(name: str):
    return diagnose((MEASURED / f"{name}.log").read_bytes().decode())


@pytest.mark.parametrize("name", sorted(path.stem for path in MEASURED.glob("*.log")))
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
    found, idle = recorded("tiny-auto-strategy-never-hits")
    assert idle.id == FindingId.MEMORY_IDLE
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
        "Traceback (most recent call last):\n  File x\nhuggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/x'. Use `repo_type` argument if needed.\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File x\nOSError: Incorrect path_or_model_id: '/models/x'. Please provide either the path to a local folder or the repo_id of a model on the Hub.",
        "model-missing",
    ),
    (
        "/usr/bin/python3: Error while finding module specification for 'sglang.launch_server' (ModuleNotFoundError: No module named 'sglang')",
        "module-missing",
    ),
    (
        LOADED
        + CRASH.format(
            error="RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=-1 (total_rest_memory=12.73 GB, mamba_cache_per_req=146.81 MB). Try: (1) reduce"
        ),
        "slots-negative",
    ),
    (
        SERVING
        + "[2026-01-01 00:00:09] Subprocess scheduler_0 (pid=7391) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n[2026-01-01 00:00:09] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n[2026-01-01 00:00:09] Sleeping 5 seconds before crash diagnostics to let GPU activity settle.\n[2026-01-01 00:00:14] No live scheduler processes found; skipping py-spy and CUDA coredump.\n[2026-01-01 00:00:14] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n",
        "host-memory-kill",
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
    (STARTED + CRASH.format(error=OOM), "oom-while-loading"),
    (LOADED + CRASH.format(error=OOM), "oom-in-pools"),
    (POOLS + "[2026-01-01 00:00:03] Memory pool end. avail mem=0.30 GB\n" + CRASH.format(error=OOM), "oom-in-pools"),
    (POOLS + CRASH.format(error=f"Exception: Capture cuda graph failed: {OOM}"), "oom-in-capture"),
    (
        POOLS
        + CRASH.format(error=OOM)
        + "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
        "oom-in-pools",
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
    (STARTED + "Fatal Python error: Bus error\n", "shared-memory-full"),
    (POOLS + CRASH.format(error="RuntimeError: mat1 and mat2 shapes cannot be multiplied"), "checkpoint-unfit"),
    (POOLS + CRASH.format(error="RuntimeError: something new"), "unknown"),
    (SERVING + CRASH.format(error="AssertionError: evict leaf node invalid"), "upstream-fault"),
    (
        SERVING
        + CRASH.format(
            error="RuntimeError: PD Disaggregation does NOT support PD different TP sizes for hybrid mamba models yet."
        ),
        "pd-mismatch",
    ),
    (SERVING + CRASH.format(error="ValueError: transfer size mismatch: 4096 and 8192"), "pd-mismatch"),
    (
        STARTED
        + "Traceback (most recent call last):\n  File x\nRuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update",
        "driver-old",
    ),
    (SERVING + CRASH.format(error="RuntimeError: elastic memory pool reallocation timed out"), "driver-old"),
    (
        STARTED + "Traceback (most recent call last):\n  File x\nRuntimeError: No CUDA GPUs are available",
        "gpu-missing",
    ),
    (LOADED + CRASH.format(error="RuntimeError: Mamba state pool allocation failed"), "no-room-at-sizing"),
    (
        SERVING
        + "[2026-01-01 00:00:09] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
        + CRASH.format(error="SystemExit: 1"),
        "hang",
    ),
    (
        SERVING + "[2026-01-01 00:00:09] Initialization failed. warmup error: Traceback (most recent call last):\n"
        "AssertionError: res=<Response [502]>, res.text=''\n",
        "proxy-in-the-way",
    ),
]


def test_a_refused_flag_is_told_with_the_versions_that_have_it():
    def remedy(flag: str) -> str:
        (found,) = diagnose(f"launch_server.py: error: unrecognized arguments: {flag}\n")
        return found.remedy

    assert remedy("--enable-piecewise-cuda-graph").endswith("SGLang had --enable-piecewise-cuda-graph until 0.5.12.")
    assert remedy("--language-model-only").endswith("SGLang has --language-model-only from 0.5.23 on.")
    assert remedy("--mem-fraction-statik").endswith("Nearest to --mem-fraction-statik: --mem-fraction-static.")


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
        met |= {name for name, rule in RULES if rule(case)}
    assert met == {name for name, _ in RULES}


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
    (found,) = diagnose(POOLS + CRASH.format(error="RuntimeError: something new"))
    assert found.evidence[0] == "RuntimeError: something new"
    assert not any("kill_process_tree" in line for line in found.evidence)


def test_a_silent_end_is_told_as_that_and_no_verdict_from_a_status():
    assert diagnose(STARTED) == ()
    (found,) = diagnose(STARTED, died=True)
    assert found.id == FindingId.SILENT_END
    assert "loading weights" in found.title
    assert "journalctl" in found.remedy
    assert found.flags == {}


@pytest.mark.parametrize("status", ["-9", "-15", "-11", "-7", "1"])
def test_an_exit_status_alone_names_no_cause(status):
    text = (
        STARTED
        + f"[2026-01-01 00:00:05] Rank 0 scheduler is dead. Please check if there are relevant logs.\n[2026-01-01 00:00:05] Exit code: {status}\n"
    )
    (found,) = diagnose(text, died=True)
    assert found.id in (FindingId.SILENT_END, FindingId.UNKNOWN)


def test_nothing_at_all_is_unknown():
    (found,) = diagnose("", died=True)
    assert found.id == FindingId.UNKNOWN


def test_the_same_words_want_opposite_remedies_by_phase():
    fraction = 0.9
    (sizing,) = diagnose(
        LOADED.replace("19.29", "3.00")
        + CRASH.format(error="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    )
    (capture,) = diagnose(POOLS + CRASH.format(error=f"Exception: Capture cuda graph failed: {OOM}"))
    (serving,) = diagnose(SERVING + CRASH.format(error=OOM))
    (kernel,) = diagnose(POOLS + CRASH.format(error="triton.compiler.errors.CompilationError: at 1:1:"))
    assert sizing.flags["mem_fraction_static"] > fraction
    assert capture.flags["mem_fraction_static"] < fraction
    assert serving.flags["mem_fraction_static"] < fraction
    assert "mem_fraction_static" not in kernel.flags
    assert "leave the memory flags alone" in kernel.remedy


def test_a_capture_that_lacked_much_lowers_the_fraction_by_as_much():
    big = OOM.replace("Tried to allocate 128.00 MiB", "Tried to allocate 2.00 GiB")
    (found,) = diagnose(POOLS + CRASH.format(error=f"Exception: Capture cuda graph failed: {big}"))
    # 2.00 - 0.12 + 0.5 of 46.83 GiB
    assert found.flags["mem_fraction_static"] == pytest.approx(0.9 - 2.377 / 46.83, abs=0.001)


def test_a_server_that_died_short_of_its_headroom_is_told_the_fraction_that_keeps_it():
    # 0.50 GiB were free at ready, 4.40 are wanted: 3.90 of 46.83 GiB.
    tight = SERVING.replace("available_gpu_mem=5.50", "available_gpu_mem=0.50")
    (found,) = diagnose(tight + CRASH.format(error=OOM))
    assert found.flags["mem_fraction_static"] == pytest.approx(0.9 - 3.9 / 46.83, abs=0.001)
    assert "4.40 GiB stay free" in found.remedy
    # The weights take 0.588 of the card: a line that leaves no pools is no remedy, what was lacking is.
    (found,) = diagnose(tight + CRASH.format(error=OOM), headroom_gib=20.0)
    assert 0.588 < found.flags["mem_fraction_static"] == 0.88


def test_an_excerpt_that_ends_in_the_error_is_a_death_too():
    (found,) = diagnose("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert found.id == FindingId.OOM_WHILE_LOADING
    # The server went on: whatever that was, it did not die of it.
    assert diagnose("ValueError: something handled\n" + LOADED) == ()


def test_another_process_on_the_card_comes_before_any_advice_on_memory():
    error = CRASH.format(
        error="ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. Raise --mem-fraction-static above 0.773"
    )
    (alone,) = diagnose(LOADED + error, card_gib=47.99)
    (shared,) = diagnose(LOADED + error, card_gib=94.0)
    assert alone.id == FindingId.NO_ROOM_AT_SIZING
    assert shared.id == FindingId.GPU_BUSY
    assert shared.flags == {}


def test_a_start_that_prints_nothing_for_long_may_hang():
    assert diagnose(POOLS, quiet_s=60.0) == ()
    capturing = (
        POOLS
        + "[2026-01-01 00:00:03] Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1], avail mem=5.90 GB\n"
    )
    (found,) = diagnose(capturing, quiet_s=1800.0)
    assert found.id == FindingId.HANG
    assert "30" in found.title
    assert found.flags == {"disable_cuda_graph": True}
    assert not any(f.id is FindingId.HANG for f in diagnose(SERVING, quiet_s=1800.0))


HEALTH = "[2026-01-01 00:10:{0:02}] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 00:00:00. last_heartbeat time: 00:00:00\n"
PREFILL = "[2026-01-01 00:11:00] Prefill batch, #new-seq: 1, #new-token: 11, #cached-token: 0, full token usage: 0.00, mamba usage: 0.01, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 10.00\n"


def test_unanswered_health_calls_are_a_note_until_nothing_is_computed_any_more():
    few, many = HEALTH.format(1), "".join(HEALTH.format(n) for n in range(12))
    assert [f.id for f in diagnose(SERVING + few) if f.id in (FindingId.BUSY, FindingId.HANG)] == [FindingId.BUSY]
    assert [f.id for f in diagnose(SERVING + many) if f.id in (FindingId.BUSY, FindingId.HANG)] == [FindingId.HANG]
    assert not [f.id for f in diagnose(SERVING + many + PREFILL) if f.id in (FindingId.BUSY, FindingId.HANG)]


def test_retracted_requests_are_told_from_the_log():
    line = "[2026-01-01 00:12:00] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 900, #new_token_ratio: 0.5 -> 0.8\n"
    found = {f.id: f for f in diagnose(SERVING + line)}
    assert found[FindingId.OOM_WHILE_SERVING].severity == Severity.WARNING
    assert found[FindingId.OOM_WHILE_SERVING].flags == {"max_running_requests": 8}


def test_a_known_fault_says_which_versions_have_it():
    (found,) = diagnose(SERVING + CRASH.format(error="AssertionError: evict leaf node invalid"))
    assert any("0.5.4 to 0.5.20" in line for line in found.evidence)


def test_a_pool_below_the_context_comes_with_the_change_that_mends_it():
    short = POOLS.replace("#tokens: 500000", "#tokens: 200000") + SUMMARY.format(requests=3).replace("500000", "200000")
    found = {f.id: f for f in diagnose(short)}
    # 8 GiB hold 200,000 tokens; some of 45 slots of 94 MiB would hold the rest of 262,144.
    assert list(found[FindingId.POOL_BELOW_CONTEXT].flags) == ["mamba_full_memory_ratio"]
    roomy = short.replace("available_gpu_mem=5.50", "available_gpu_mem=12.50").replace(
        "mem_fraction_static=0.9", "mem_fraction_static=0.8"
    )
    found = {f.id: f for f in diagnose(roomy)}
    assert found[FindingId.POOL_BELOW_CONTEXT].flags["mem_fraction_static"] > 0.8


PARSED = STARTED.replace("enable_metrics=True", "enable_metrics=True, tool_call_parser='{}', reasoning_parser='qwen3'")


@pytest.mark.parametrize(("parser", "flags"), [("qwen25", {"tool_call_parser": "qwen3_coder"}), ("qwen3_coder", None)])
def test_a_parser_of_another_family_is_told(parser, flags):
    text = (
        PARSED.format(parser)
        + POOLS.removeprefix(STARTED).replace("type=X", "type=Qwen3_5ForCausalLM")
        + SUMMARY.format(requests=9)
    )
    found = {f.id: f for f in diagnose(text)}
    assert (found[FindingId.PARSER_MISMATCH].flags if flags else FindingId.PARSER_MISMATCH not in found) == (
        flags or True
    )


def test_pools_far_below_what_the_fraction_leaves_are_a_fault_of_older_versions():
    args = STARTED.replace("mem_fraction_static=0.9", "mem_fraction_static=0.8")
    tiny = (
        args
        + POOLS.removeprefix(STARTED).replace("500000", "1741")
        + SUMMARY.format(requests=9).replace("500000", "1741").replace("=5.50", "=36.90")
    )
    found = {f.id: f for f in diagnose(tiny)}
    assert "not to blame" in found[FindingId.UPSTREAM_FAULT].remedy


def test_harmless_lines_raise_nothing():
    text = LOADED.replace(
        "[2026-01-01 00:00:01] Load weight end",
        "[2026-01-01 00:00:01] Setup Custom allreduce failed with CUDART error: peer access is not supported between these two devices. To silence\n[2026-01-01 00:00:01] Ignore import error when loading sglang.srt.models.x: No module named 'helion'\n[2026-01-01 00:00:01] Load weight end",
    )
    assert diagnose(text) == ()


def test_a_server_that_had_come_up_was_not_killed_by_a_compiler():
    killed = "[2026-01-01 00:00:09] Subprocess scheduler_0 (pid=7391) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n[2026-01-01 00:00:14] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n"
    (serving,) = diagnose(SERVING + killed)
    (starting,) = diagnose(POOLS + killed)
    assert serving.id == starting.id == FindingId.HOST_MEMORY_KILL
    assert "MAX_JOBS" in starting.remedy and "MAX_JOBS" not in serving.remedy
    assert "journalctl" in serving.remedy


def test_a_wanted_stop_is_no_death():
    stopped = (
        SERVING
        + "[2026-01-01 00:01:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n[2026-01-01 00:01:03] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n"
    )
    assert all(f.severity != Severity.FATAL for f in diagnose(stopped))


CAP = "[2026-01-01 00:00:02] max_running_requests is capped to 9 by the mamba state cache (max_mamba_cache_size=45, 5 state slots per request). To raise it: increase"


def test_requests_capped_by_slots_are_told_with_the_slots_that_would_do():
    def capped(pools: str):
        found = {f.id: f for f in diagnose(pools + CAP + "\n" + SUMMARY.format(requests=9))}
        return found[FindingId.REQUESTS_CAPPED_BY_SLOTS]

    few = POOLS.replace("max_running_requests=32", "max_running_requests=16")
    assert "16 were asked" in capped(few).title
    assert capped(few).flags == {"max_mamba_cache_size": 16 * 5 + 1}
    wide = (", mamba_ssm_dtype='bfloat16'", "")
    # Narrower states alone are enough for 16; for 32 they need more slots as well, and 8 GiB of KV give them.
    assert capped(few.replace(*wide)).flags == {"mamba_ssm_dtype": "bfloat16"}
    assert capped(POOLS.replace(*wide)).flags == {"mamba_ssm_dtype": "bfloat16", "max_mamba_cache_size": 161}


def test_slots_that_the_pools_have_no_room_for_are_not_offered():
    found = {f.id: f for f in diagnose(POOLS + CAP + "\n" + SUMMARY.format(requests=9))}
    capped = found[FindingId.REQUESTS_CAPPED_BY_SLOTS]
    # 161 slots of 94 MiB would leave 8 GiB of KV less than nothing.
    assert capped.flags == {"max_running_requests": 9}
    assert "14.93 GiB" in capped.remedy and "12.24 GiB together" in capped.remedy
    assert "At most about 16 fit (max_mamba_cache_size 81" in capped.remedy


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


def test_pinned_slots_are_not_said_to_grow_by_narrower_states_or_a_ratio():
    pinned = {"max_mamba_cache_size": 64, "max_running_requests": 16}
    capped = "max_running_requests is capped to 12 by the mamba state cache (max_mamba_cache_size=64, 5 state slots per request)."
    (found,) = diagnose(capped, asked=pinned)
    assert found.id == FindingId.REQUESTS_CAPPED_BY_SLOTS
    assert found.flags == {"max_mamba_cache_size": 81}
    assert "bfloat16" not in found.remedy and "ratio" not in found.remedy
    (found,) = diagnose(capped, asked={"mamba_ssm_dtype": "bfloat16", "max_running_requests": 16})
    assert found.flags == {"max_mamba_cache_size": 81} and found.remedy.startswith("Raise mamba_full_memory_ratio")


def test_running_out_of_memory_is_told_with_the_phase_it_struck_in():
    (pools,) = diagnose(LOADED + CRASH.format(error=OOM))
    assert "while the pools were allocated, before any graph" in pools.title
    (after,) = diagnose(POOLS + "[2026-01-01 00:00:03] Memory pool end. avail mem=0.30 GB\n" + CRASH.format(error=OOM))
    assert "after the pools, before any graph" in after.title
    assert pools.flags["mem_fraction_static"] == after.flags["mem_fraction_static"] == 0.88
    (alone,) = diagnose(OOM)
    assert "do not say in which phase" in alone.title and not alone.flags


HEALTHY = {
    # Lines as each version prints them, numbers of one 27B server with room enough.
    "0.5.9": """[2026-02-01 10:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.8, max_running_requests=8, mamba_ssm_dtype='bfloat16', mamba_scheduler_strategy='extra_buffer', enable_metrics=True, context_length=131072, host='127.0.0.1', port=30000)
[2026-02-01 10:00:05] Init torch distributed ends. elapsed=0.40 s, mem usage=0.11 GB
[2026-02-01 10:00:05] Load weight begin. avail mem=78.10 GB
[2026-02-01 10:00:30] Load weight end. elapsed=24.10 s, type=Qwen3_5ForConditionalGeneration, dtype=torch.bfloat16, avail mem=49.80 GB, mem usage=28.30 GB.
[2026-02-01 10:00:30] Using KV cache dtype: torch.bfloat16
[2026-02-01 10:00:31] Mamba Cache is allocated. max_mamba_cache_size: 60, conv_state size: 0.17GB, ssm_state size: 4.29GB 
[2026-02-01 10:00:31] KV Cache is allocated. #tokens: 480000, K size: 14.65 GB, V size: 14.65 GB
[2026-02-01 10:00:31] Memory pool end. avail mem=15.40 GB
[2026-02-01 10:00:31] Using hybrid linear attention backend for hybrid GDN models.
[2026-02-01 10:00:32] Capture cuda graph begin. This can take up to several minutes. avail mem=15.30 GB
[2026-02-01 10:00:32] Capture cuda graph bs [1, 2, 4, 8]
[2026-02-01 10:00:40] Capture cuda graph end. Time elapsed: 8.20 s. mem usage=0.61 GB. avail mem=14.69 GB.
[2026-02-01 10:00:41] Setup Custom allreduce failed with x. To silence this warning, specify --disable-custom-all-reduce explicitly.
[2026-02-01 10:00:41] max_total_num_tokens=480000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=8, context_len=131072, available_gpu_mem=9.60 GB
[2026-02-01 10:00:50] The server is fired up and ready to roll!
[2026-02-01 10:01:00] Prefill batch, #new-seq: 1, #new-token: 512, #cached-token: 0, full token usage: 0.01, mamba usage: 0.05, #running-req: 0, #queue-req: 0, 
[2026-02-01 10:01:01] Decode batch, #running-req: 1, #full token: 540, full token usage: 0.01, mamba num: 3, mamba usage: 0.05, cuda graph: True, gen throughput (token/s): 41.10, #queue-req: 0
""",
    "0.5.14": """[2026-05-01 10:00:00 TP0] server_args=ServerArgs(model_path='m', tp_size=2, mem_fraction_static=0.85, max_running_requests=8, mamba_ssm_dtype='bfloat16', mamba_radix_cache_strategy='extra_buffer', enable_metrics=True, context_length=131072, host='127.0.0.1', port=30000)
[2026-05-01 10:00:05 TP1] Init torch distributed ends. elapsed=0.40 s, mem usage=0.11 GB
[2026-05-01 10:00:05 TP0] Load weight begin. avail mem=46.80 GB
[2026-05-01 10:00:05 TP1] Load weight begin. avail mem=46.80 GB
[2026-05-01 10:00:30 TP1] Load weight end. elapsed=24.10 s, type=Qwen3_5ForConditionalGeneration, quant=fp8, fmt=e4m3, avail mem=32.70 GB, mem usage=14.10 GB.
[2026-05-01 10:00:30 TP0] Load weight end. elapsed=24.10 s, type=Qwen3_5ForConditionalGeneration, quant=fp8, fmt=e4m3, avail mem=32.70 GB, mem usage=14.10 GB.
[2026-05-01 10:00:31 TP0] Mamba Cache is allocated. max_mamba_cache_size: 60, conv_state size: 0.09GB, ssm_state size: 2.15GB 
[2026-05-01 10:00:31 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 700000, K size: 10.68 GB, V size: 10.68 GB
[2026-05-01 10:00:31 TP0] Memory pool end. avail mem=8.90 GB
[2026-05-01 10:00:32 TP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2, 4, 8], avail mem=8.80 GB
[2026-05-01 10:00:40 TP0] Capture target decode CUDA graph end. elapsed=8.20 s, mem usage=0.61 GB, avail mem=8.19 GB.
[2026-05-01 10:00:41 TP0] Disable prefill CUDA graph because of nothing in particular
[2026-05-01 10:00:41 TP0] Tree cache initialized: source=default impl=MambaRadixCache hybrid_swa=False hybrid_ssm=True hierarchical=False
[2026-05-01 10:00:41 TP0] max_total_num_tokens=700000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=8, context_len=131072, available_gpu_mem=8.10 GB
[2026-05-01 10:00:50] The server is fired up and ready to roll!
[2026-05-01 10:01:00 TP0] Prefill batch, #new-seq: 1, #new-token: 512, #cached-token: 8192, full token usage: 0.01, mamba usage: 0.05, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False
""",
    "0.5.23": """[2026-11-01 10:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.85, max_running_requests=8, mamba_ssm_dtype='bfloat16', mamba_radix_cache_strategy='extra_buffer', enable_metrics=True, context_length=131072, host='127.0.0.1', port=30000)
[2026-11-01 10:00:05] Load weight begin. avail mem=78.10 GB
[2026-11-01 10:00:30] Load weight end. elapsed=24.10 s, type=Qwen3_5ForConditionalGeneration, quant=auto-round, bits=4, avail mem=59.80 GB, mem usage=18.30 GB.
[2026-11-01 10:00:30] Load weight end. Committed real weights after CUDA graph capture in 0.10 s (capture overlap window 1.00 s, startup overlap total 2.00 s)
[2026-11-01 10:00:30] Reserving 0.50 GB of the KV budget for post-sizing multimodal allocations (feature-transport pools + embedding cache).
[2026-11-01 10:00:31] Mamba Cache is allocated. max_mamba_cache_size: 60, conv_state size: 0.17GB, ssm_state size: 4.29GB 
[2026-11-01 10:00:31] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 700000, K size: 21.36 GB, V size: 21.36 GB
[2026-11-01 10:00:31] Memory pool end. avail mem=10.40 GB
[2026-11-01 10:00:31] Linear attention kernel backend: decode=triton, prefill=triton, verify=triton
[2026-11-01 10:00:31] GDN kernel dispatcher: decode=TritonGDNKernel, extend=TritonGDNKernel, verify=TritonGDNKernel packed_decode=True
[2026-11-01 10:00:32] Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2, 4, 8], avail mem=10.30 GB
[2026-11-01 10:00:40] Capture target decode CUDA graph end. elapsed=8.20 s, mem usage=0.61 GB, avail mem=9.69 GB.
[2026-11-01 10:00:41] Tree cache initialized: source=default impl=UnifiedRadixCache hybrid_swa=False hybrid_ssm=True hicache_attached=False
[2026-11-01 10:00:41] max_total_num_tokens=700000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=8, context_len=131072, available_gpu_mem=9.60 GB
[2026-11-01 10:00:50] The server is fired up and ready to roll!
[2026-11-01 10:01:01] Decode batch, #running-req: 1, #full token: 540, full token usage: 0.01, mamba num: 3, mamba usage: 0.05, cuda graph: True, gen throughput (token/s): 41.10, #queue-req: 0
""",
}


@pytest.mark.parametrize("version", sorted(HEALTHY))
def test_a_healthy_log_of_any_version_raises_no_alarm(version):
    assert [found for found in diagnose(HEALTHY[version]) if found.severity is not Severity.NOTE] == []
    # A server that is asked to stop is no death either.
    stopped = HEALTHY[version] + "[2026-12-01 10:02:00] Gracefully exiting... Remaining number of requests 0.\n"
    assert [found for found in diagnose(stopped) if found.severity is not Severity.NOTE] == []
