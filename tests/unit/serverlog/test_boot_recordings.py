"""Every number that the recordings of real SGLang 0.5.17 hold."""

import json
from pathlib import Path

import pytest

from tuner.serverlog.model import Phase
from tuner.serverlog.reader import BootReader, read_boot

MEASURED = Path(__file__).parents[2] / "data" / "measured"


def log(name: str) -> str:
    return (MEASURED / f"{name}.log").read_bytes().decode()


HYBRID_27B = {
    "free_before_gib": 46.83,
    "context_len": 262144,
    "max_running_requests": 3,
    "tree_cache": "UnifiedRadixCache",
}
TINY = {
    "free_before_gib": 139.13,
    "free_after_gib": 138.63,
    "context_len": 262144,
    "max_running_requests": 8,
    "chunked_prefill_size": 8192,
    "max_prefill_tokens": 16384,
    "kv_dtype": "bfloat16",
    "weights_gib": {"target": 0.49},
}

EXPECTED = {
    "27b-48g-fp32-frac086": {
        **HYBRID_27B,
        "free_after_gib": 19.29,
        "mamba_slots": 41,
        "kv_tokens": 219703,
        "conv_state_gib": 0.12,
        "ssm_state_gib": 5.91,
        "kv_gib": 6.7,
        "kv_dtype": "float8_e4m3fn",
        "free_after_pools_gib": 6.58,
        "available_gib": 6.47,
        "weights_gib": {"target": 27.54},
        "graphs_gib": {},
        "draft": None,
    },
    "27b-48g-bf16-frac086": {
        **HYBRID_27B,
        "mamba_slots": 81,
        "kv_tokens": 220711,
        "ssm_state_gib": 5.77,
        "kv_gib": 6.74,
        "available_gib": 6.47,
    },
    "27b-48g-bf16-frac086-ratio03": {**HYBRID_27B, "mamba_slots": 39, "kv_tokens": 321259, "available_gib": 6.45},
    "27b-48g-bf16-frac095-slots24": {**HYBRID_27B, "mamba_slots": 24, "kv_tokens": 495468, "available_gib": 2.24},
    "27b-48g-bf16-frac098-mtp": {
        **HYBRID_27B,
        "mamba_slots": 57,
        "kv_tokens": 262294,
        "free_after_gib": 13.76,
        "free_after_pools_gib": 0.95,
        "free_after_draft_pools_gib": 0.44,
        "free_before_graphs_gib": None,
        "available_gib": 5.07,
        "weights_gib": {"target": 27.54, "draft": 5.53},
        "graphs_gib": {},
    },
    "27b-48g-r15-full": {
        **HYBRID_27B,
        "version": "0.5.17-0.5.20",
        "free_after_gib": 13.76,
        "mamba_slots": 57,
        "kv_tokens": 262294,
        "chunked_prefill_size": 4096,
        "max_prefill_tokens": 8192,
        "available_gib": 3.2,
        "free_after_pools_gib": 0.95,
        "free_after_draft_pools_gib": 0.44,
        "free_before_graphs_gib": 5.07,
        "conv_state_gib": 0.16,
        "ssm_state_gib": 4.08,
        "spec_state_gib": 0.56,
        "spec_conv_gib": 0.01,
        "kv_gib": 8.0,
        "weights_gib": {"target": 27.54, "draft": 5.53},
        "graphs_gib": {"prefill": 1.68, "target_verify": 0.10, "draft_extend": 0.08},
        "hybrid": True,
        "http_url": "http://127.0.0.1:30000",
    },
    "27b-48g-unified-memory-fails": {**HYBRID_27B, "mamba_slots": 108, "kv_tokens": 294372, "kv_gib": None},
    "27b-48g-fraction-too-low": {
        "free_before_gib": 46.83,
        "free_after_gib": 19.29,
        "mamba_slots": None,
        "kv_tokens": None,
    },
    "dense-small": {
        "mamba_slots": None,
        "kv_tokens": 1356233,
        "context_len": 40960,
        "hybrid": False,
        "tree_cache": "RadixCache",
        "kv_gib": 41.38,
        "ssm_state_gib": None,
        "max_running_requests": 8,
    },
    "tiny-api-key-no-metrics": {**TINY, "mamba_slots": 1625, "kv_tokens": 5686523, "available_gib": 97.04},
    "tiny-auto-strategy-never-hits": {
        **TINY,
        "mamba_slots": 2725,
        "kv_tokens": 9525880,
        "graphs_gib": {"prefill": 0.85, "decode": 0.05},
        "free_before_graphs_gib": 68.99,
    },
    "tiny-second-server-same-port": {**TINY, "mamba_slots": 1625, "kv_tokens": 5686523, "graphs_gib": {}},
}


def test_every_recording_is_covered():
    assert {p.stem for p in MEASURED.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_start_gives_its_numbers(name):
    facts = read_boot(log(name))
    assert {field: getattr(facts, field) for field in EXPECTED[name]} == EXPECTED[name]


def test_the_draft_model_has_lines_of_its_own():
    draft = read_boot(log("27b-48g-r15-full")).draft
    assert draft is not None
    assert (draft.model_class, draft.weights_gib, draft.kv_tokens, draft.kv_gib) == (
        "Qwen3_5ForCausalLMMTP",
        5.53,
        262294,
        0.5,
    )


@pytest.mark.parametrize(
    ("name", "phase", "reached", "ready"),
    [
        ("27b-48g-r15-full", Phase.STOPPED, Phase.READY, True),
        ("tiny-second-server-same-port", Phase.STOPPED, Phase.READY, True),
        ("tiny-api-key-no-metrics", Phase.STOPPED, Phase.READY, True),
        ("27b-48g-fraction-too-low", Phase.DEAD, Phase.SIZING, False),
        ("27b-48g-unified-memory-fails", Phase.DEAD, Phase.READY, False),
    ],
)
def test_a_wanted_stop_and_a_crash_are_told_apart(name, phase, reached, ready):
    facts = read_boot(log(name))
    assert (facts.phase, facts.reached, facts.ready) == (phase, reached, ready)
    assert facts.stop_asked == (phase == Phase.STOPPED)


def test_a_failed_bind_after_the_ready_line_is_a_death():
    tail = json.loads((MEASURED / "tiny-second-server-same-port.json").read_text())["double"]["tail"]
    facts = read_boot(tail)
    assert facts.phase == Phase.DEAD
    assert not facts.ready
    assert facts.mamba_slots == 1117


def test_timings_come_flat_with_only_the_graphs_that_were_captured():
    assert read_boot(log("27b-48g-r15-full")).timings == {
        "load_weight": 0.47,
        "kv_cache_allocation": 0.45,
        "scheduler_e2e": 38.28,
        "tokenizer_e2e": 55.51,
        "graph_prefill": 28.19,
        "graph_target_verify": 6.07,
        "graph_draft_extend": 1.10,
        "ready": 58.0,
    }


def test_what_was_asked_is_read_and_secrets_are_not():
    facts = read_boot(log("tiny-api-key-no-metrics"))
    assert facts.server_args["mem_fraction_static"] == "0.3"
    assert facts.server_args["enable_metrics"] == "False"
    assert facts.server_args["model_path"] == "/models/hybrid-tiny"
    assert "max_mamba_cache_size" not in facts.server_args
    assert "secret-key" not in str(facts)
    assert "secret-key" in log("tiny-api-key-no-metrics")


def test_phases_come_in_order_while_the_log_grows():
    reader = BootReader()
    seen: list[Phase] = []
    for line in log("27b-48g-r15-full").splitlines(keepends=True):
        reader.feed(line)
        if not seen or seen[-1] != reader.facts.phase:
            seen.append(reader.facts.phase)
    assert seen == [
        Phase.LAUNCHING,
        Phase.LOADING,
        Phase.SIZING,
        Phase.CAPTURING,
        Phase.BINDING,
        Phase.WARMING,
        Phase.READY,
        Phase.STOPPING,
        Phase.STOPPED,
    ]


def test_the_ready_line_alone_is_not_ready():
    text = log("tiny-second-server-same-port")
    before_port = text[: text.index("INFO:     Uvicorn running")]
    assert "fired up" in before_port
    assert not read_boot(before_port).ready


def test_batch_lines_are_handed_out_once():
    reader = BootReader()
    reader.feed(log("27b-48g-r15-full"))
    lines = reader.drain()
    assert len(lines) == 67
    assert reader.drain() == []
    assert max(line.mamba_slots or 0 for line in lines) == 12
    assert sum(line.cached_tokens or 0 for line in lines) == 16000
