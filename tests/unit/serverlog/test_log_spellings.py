# ruff: noqa: E501  (log lines stay as printed)
"""Lines of other versions than the recorded one, and what they prove."""

import pytest

from tuner.serverlog.batch import batch_line
from tuner.serverlog.model import Phase
from tuner.serverlog.reader import read_boot


def boot(*lines: str):
    return read_boot("\n".join(lines))


OLD = (
    "[2026-04-14 16:08:44 TP0] Init torch distributed ends. elapsed=0.3 s, mem usage=0.1 GB",
    "[2026-04-14 16:08:44 TP0] Load weight begin. avail mem=22.93 GB",
    "[2026-04-14 16:08:49 TP0] Load weight end. elapsed=5.54 s, type=Qwen3_5ForConditionalGeneration, avail mem=14.08 GB, mem usage=8.85 GB.",
    "[2026-04-14 16:08:49 TP0] Using KV cache dtype: torch.bfloat16",
    "[2026-04-14 16:08:49 TP0] Mamba Cache is allocated. max_mamba_cache_size: 186, conv_state size: 0.10GB, ssm_state size: 4.38GB ",
    "[2026-04-14 16:08:49 TP0] KV Cache is allocated. #tokens: 327310, K size: 2.50 GB, V size: 2.50 GB",
    "[2026-04-14 16:08:49 TP0] Memory pool end. avail mem=4.49 GB",
    "[2026-04-14 16:08:50 TP0] Linear attention kernel backend: decode=triton, prefill=triton",
    "[2026-04-14 16:08:50 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=4.04 GB",
    "[2026-04-14 16:08:50 TP0] Capture cuda graph bs [1, 2, 4, 8, 12, 16, 24]",
    "[2026-04-14 16:08:55 TP0] Capture cuda graph end. Time elapsed: 4.86 s. mem usage=0.26 GB. avail mem=3.79 GB.",
    "[2026-04-14 16:09:08 TP0] max_total_num_tokens=327310, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=62, context_len=262144, available_gpu_mem=3.79 GB",
)


def test_a_start_of_an_older_version_is_read():
    facts = boot(*OLD)
    assert facts.version == "0.5.10-0.5.12"
    assert (facts.mamba_slots, facts.kv_tokens, facts.max_running_requests) == (186, 327310, 62)
    assert facts.graphs_gib == {"decode": 0.26}
    assert facts.kv_dtype == "bfloat16"
    assert facts.timings["load_weight"] == 5.54
    assert facts.phase == Phase.BINDING


def test_up_to_0_5_12_the_draft_loads_after_the_targets_pools():
    facts = boot(
        *OLD[:7],
        "[2026-04-14 16:08:50 TP0] Load weight begin. avail mem=4.49 GB",
        "[2026-04-14 16:08:50 TP0] Load weight end. elapsed=0.1 s, type=Qwen3_5ForCausalLMMTP, avail mem=3.49 GB, mem usage=1.00 GB.",
        "[2026-04-14 16:08:50 TP0] KV Cache is allocated. #tokens: 327310, K size: 0.10 GB, V size: 0.10 GB",
        "[2026-04-14 16:08:50 TP0] Memory pool end. avail mem=3.20 GB",
    )
    assert facts.free_after_gib == 14.08
    assert facts.weights_gib == {"target": 8.85, "draft": 1.0}
    assert facts.free_after_draft_pools_gib == 3.2
    assert facts.draft is not None
    assert facts.draft.kv_gib == 0.2
    assert facts.kv_gib == 5.0


def test_pools_sized_after_capture_replace_the_upper_bound():
    facts = boot(
        "Load weight begin. avail mem=40 GB",
        "Load weight end. elapsed=1 s, type=X, avail mem=30 GB, mem usage=10 GB.",
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 999999, K size: 9.00 GB, V size: 9.00 GB",
        "Memory pool end. avail mem=2 GB",
        "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 500000, KV size: 8.50 GB, avail mem=1.00 GB",
    )
    assert (facts.kv_tokens, facts.kv_gib) == (500000, 8.5)
    assert facts.version == ">=0.5.18"


def test_the_overlapped_load_line_of_newer_versions_is_no_second_model():
    facts = boot(
        "Load weight end. elapsed=1 s, type=X, avail mem=30 GB, mem usage=10 GB.",
        "Load weight end. Committed real weights after CUDA graph capture in 3.1 s (capture overlap window 2 s, startup overlap total 3 s)",
    )
    assert facts.weights_gib == {"target": 10.0}
    assert facts.draft is None


def test_a_draft_line_without_free_memory_still_tells_its_weights():
    facts = boot(
        "[TP0] Load weight end. elapsed=282.07 s, type=Qwen4ExpForConditionalGeneration, quant=modelopt_fp4, quant_algo=NVFP4, avail mem=35.23 GB, mem usage=76.11 GB.",
        "Load weight end. elapsed=55.60 s, type=Qwen4ExpForCausalLMMTP, quant=modelopt_fp4, quant_algo=NVFP4, mem usage=1.90 GB.",
    )
    assert facts.weights_gib == {"target": 76.11, "draft": 1.9}
    assert facts.free_after_gib == 35.23


def test_latent_attention_prints_one_kv_size():
    facts = boot("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1933682, KV size: 12.45 GB")
    assert (facts.kv_tokens, facts.kv_gib) == (1933682, 12.45)


def test_the_first_hybrid_versions_printed_no_slot_count():
    facts = boot("Mamba Cache is allocated. conv_state size: 0.02GB, ssm_state size: 0.86GB ")
    assert facts.mamba_slots is None
    assert facts.ssm_state_gib == 0.86


@pytest.mark.parametrize(
    ("line", "capped", "per_request"),
    [
        (
            "max_running_requests is capped to 2 by the mamba state cache (max_mamba_cache_size=10, 5 state slots per request). To raise it: increase",
            2,
            5,
        ),
        ("max_running_requests is capped to 12 by the mamba state", 12, None),
        (
            "max_running_requests was reduced from the requested 32 to 9 (per dp worker) due to the available KV cache capacity.",
            9,
            None,
        ),
    ],
)
def test_a_cap_on_requests_is_read_even_when_the_line_was_wrapped(line, capped, per_request):
    facts = boot(line)
    assert (facts.requests_capped_to, facts.slots_per_request) == (capped, per_request)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("target prefill", "prefill"),
        ("target decode", "decode"),
        ("target verify", "target_verify"),
        ("draft decode", "draft_decode"),
        ("draft prefill", "draft_prefill"),
        ("draft extend", "draft_extend"),
    ],
)
def test_graphs_are_named_by_part(name, key):
    facts = boot(f"Capture {name} CUDA graph end. bs=[1, 2], elapsed=1.22 s, mem usage=0.36 GB, avail mem=0.14 GB.")
    assert facts.graphs_gib == {key: 0.36}
    assert facts.timings == {f"graph_{key}": 1.22}


def test_the_newest_form_of_the_echoed_arguments_is_read():
    facts = boot(
        "server_args={'model_path': '/m, (x)', 'mem_fraction_static': 0.9, 'api_key': 'k', 'kind': <K.A: 1>, 'port': 7}"
    )
    assert facts.server_args == {"model_path": "/m, (x)", "mem_fraction_static": "0.9", "port": "7"}


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-01 00:00:00] Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
        "launch_server.py: error: unrecognized arguments: --chat-template-kwargs",
        "sglang serve: error: unrecognized arguments: --x",
        "/usr/bin/python3: No module named sglang",
        "/opt/env/bin/python3: Error while finding module specification for 'sglang.launch_server' (ModuleNotFoundError: No module named 'sglang')",
        "[2026-01-01 00:00:00] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
        "ValueError: rpc_port at 11236 is not available in 30 seconds. rpc_port is used by a process already.",
        "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'sglang'",
        "[2026-01-01 00:00:00] Subprocess scheduler_0 (pid=12) crashed with exit code -11. Triggering SIGQUIT for cleanup...",
        "Fatal Python error: Bus error",
    ],
)
def test_a_death_is_seen_in_all_its_spellings(line):
    assert boot(line).phase == Phase.DEAD


def test_an_exception_that_the_server_outlived_is_no_death():
    facts = boot(
        "Traceback (most recent call last):",
        "ConnectionResetError: peer left",
        "[2026-01-01 00:00:00] Load weight begin. avail mem=4 GB",
    )
    assert facts.phase == Phase.LOADING


def test_a_compiler_error_after_loading_is_not_taken_for_wrong_arguments():
    facts = boot("[2026-01-01 00:00:00] Load weight begin. avail mem=4 GB", "nvcc: error: something")
    assert facts.phase == Phase.LOADING


def test_control_c_while_loading_is_a_stop():
    facts = boot("Load weight begin. avail mem=4 GB", "Traceback (most recent call last):", "KeyboardInterrupt")
    assert facts.phase == Phase.STOPPED


def test_a_printed_version_wins_over_what_the_lines_prove():
    assert boot("sglang version: 0.5.17.post1", *OLD).version == "0.5.17.post1"
    assert boot("hello").version is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "[2026-11-29 15:53:53] Decode batch, #running-req: 1, #full token: 55, full token usage: 0.00, mamba num: 3, mamba usage: 0.05, accept len: 1.75, accept rate: 0.75, cuda graph: True, gen throughput (token/s): 44.14, #queue-req: 2",
            {
                "kind": "decode",
                "at": "2026-11-29 15:53:53",
                "running": 1,
                "queued": 2,
                "kv_tokens": 55,
                "kv_usage": 0.0,
                "mamba_slots": 3,
                "mamba_usage": 0.05,
                "acceptance_length": 1.75,
                "acceptance_rate": 0.75,
                "graph": True,
                "tokens_per_s": 44.14,
            },
        ),
        (
            "Prefill batch [17], #new-seq: 1, #new-token: 11, #cached-token: 5, full token usage: 0.10, mamba usage: 0.05, #running-req: 0, #queue-req: 4, #pending-token: 0, cuda graph: False, input throughput (token/s): 7.84",
            {
                "kind": "prefill",
                "new_tokens": 11,
                "cached_tokens": 5,
                "queued": 4,
                "graph": False,
                "tokens_per_s": 7.84,
            },
        ),
        (
            "Decode batch. #running-req: 2, #token: 100, token usage: 0.50, gen throughput (token/s): 9.00, #queue-req: 0",
            {"running": 2, "kv_tokens": 100, "kv_usage": 0.5, "mamba_usage": None, "graph": None},
        ),
        (
            "Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 0, token usage: 0.01, brand new field: 3%, #running-req: 1, #queue-req: 0, ",
            {"new_tokens": 8, "kv_usage": 0.01, "running": 1},
        ),
    ],
)
def test_batch_lines_of_all_versions_are_read_by_field_name(line, expected):
    batch = batch_line(line)
    assert batch is not None
    assert {name: getattr(batch, name) for name in expected} == expected


def test_other_lines_are_no_batches():
    assert batch_line("[2026-11-29 15:53:53] The server is fired up and ready to roll!") is None
    assert batch_line("") is None
