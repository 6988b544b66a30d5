"""Plans, needs and refusals as a user at a shell has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import User

MEASURED = Path(__file__).parents[1] / "data" / "measured"
CARD = ("--model", "qwen3.8-27b-fp8-text", "--sglang", "0.5.17", "--free-before", "46.83", "--free-after", "19.29")


def test_a_need_gives_flags_that_a_plan_confirms(user: User) -> None:
    base = ("--set", "mem_fraction_static=0.86", "--set", "kv_cache_dtype=fp8_e4m3", "--set",
            "mamba_ssm_dtype=bfloat16", "--set", "max_running_requests=4", "--set",
            "cuda_graph_backend_prefill=disabled")  # fmt: skip
    found = user.json("solve", *CARD, *base, "--input", "100K", "--agents", "3")
    assert found["met"] is True and found["missing"] == []
    assert list(found["changes"]) == ["mamba_full_memory_ratio"] and len(found["reasons"]) == 1
    assert found["recipe"]["mem_fraction_static"] == 0.86
    words = [word for name, value in found["recipe"].items() for word in ("--set", f"{name}={value}")]
    plan = user.json("plan", *CARD, *words)
    assert plan["kv_tokens"] == found["plan"]["kv_tokens"] >= 300_000
    text = user.run("solve", *CARD, *base, "--input", "100,000", "--agents", "3").stdout
    assert "mamba_full_memory_ratio = " in text and "(now not set)" in text


def test_what_is_set_by_hand_stays_while_a_need_is_met(user: User) -> None:
    speculation = ("--set", "speculative_algorithm=NEXTN", "--set", "speculative_num_steps=1", "--set",
                   "speculative_eagle_topk=1", "--set", "speculative_num_draft_tokens=2")  # fmt: skip
    need = ("--input", "90K", "--agents", "3")
    free = user.json("solve", *CARD, "--input", "250K", "--agents", "1", status=None)
    assert free["met"] is True
    kept = user.json("solve", *CARD, *speculation, *need, status=None)
    assert kept["recipe"]["speculative_algorithm"] == "NEXTN"
    fixed = user.json("solve", *CARD, "--set", "mem_fraction_static=0.75", *need, status=None)
    assert fixed["recipe"]["mem_fraction_static"] == 0.75


def test_a_need_that_nothing_meets_gives_the_nearest_and_what_is_missing(user: User) -> None:
    found = user.json("solve", "demo", "--input", "200K", "--agents", "8", status=1)
    assert found["met"] is False and found["plan"]["fits"] is True
    assert all(sentence.endswith(".") for sentence in found["missing"]) and found["missing"]
    text = user.run("solve", "demo", "--input", "200K", "--agents", "8", status=1).stdout
    assert "Nothing meets the need." in text and "Missing:" in text


@pytest.mark.parametrize(
    "words",
    [("--input", "lots", "--agents", "3"), ("--input", "90K", "--agents", "0"), ("--input", "90K"),
     ("--input", "0", "--agents", "1"), ("--input", "90K", "--agents", "1", "--headroom", "much")],
)  # fmt: skip
def test_a_need_without_sense_is_told(user: User, words: tuple[str, ...]) -> None:
    assert user.run("solve", "demo", *words, status=2).stderr.strip()


def test_every_number_of_a_plan_says_where_it_comes_from(user: User) -> None:
    told = user.json("plan", *CARD, "--set", "mem_fraction_static=0.86")
    assert told["sources"]["free_after"] == told["sources"]["sglang_version"] == "operator"
    assert {t["name"]: t["source"] for t in told["terms"]}["weights"] == "operator"
    assert told["kv_tokens_low"] < told["kv_tokens"] < told["kv_tokens_high"]
    text = user.run("plan", *CARD, "--set", "mem_fraction_static=0.86").stdout
    assert "Worked out from" in text and " to " in text
    logged = user.json("plan", "--boot-log", str(MEASURED / "27b-48g-bf16-frac086.log"), "--model",
                       "qwen3.8-27b-fp8-text", "--set", "mem_fraction_static=0.86")  # fmt: skip
    assert logged["sources"]["free_before"] == "boot log" and logged["basis"] == "calibrated"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"architectures": ["Qwen3_5ForCausalLM"], "hidden', "is not complete JSON"),
        ('{"feature_extractor_type": "ViTImageProcessor"}', "not the config.json of a language model"),
        (json.dumps({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 10**9}),
         "no real model has that"),
        (json.dumps({"architectures": ["Mamba3ForCausalLM"], "model_type": "mamba3", "num_hidden_layers": 4}),
         "it cannot plan this model"),
    ],
)  # fmt: skip
def test_a_bad_config_is_one_sentence(user: User, content: str, sentence: str) -> None:
    path = user.home / "config.json"
    path.write_text(content, encoding="utf-8")
    done = user.run("plan", "--model", str(path), "--free-before", "40", "--free-after", "20", status=2)
    assert sentence in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_round_calibrates_the_next_plan_and_says_how_far_it_was_off(user: User) -> None:
    first = user.simulate("demo")
    assert first["accuracy"]["tokens_actual"] == first["boot"]["kv_tokens"]
    assert first["conditions"]["sglang_version"] == "0.5.17"
    assert "actual less planned (by the formula): KV tokens" in user.run("show", "r1").stdout
    second = user.simulate("demo", "--set", "mamba_full_memory_ratio=0.3")
    assert second["plan"]["calibrated_by"] == "r1"
    assert second["accuracy"]["slots_predicted"] == second["accuracy"]["slots_actual"]
    assert abs(second["accuracy"]["tokens_percent"]) < 0.05
    told = user.json("plan", "demo", "--set", f"port={user.port}", "--sglang", "0.5.18")
    assert told["basis"] == "formula" and "r2 does not calibrate this plan." in told["calibration_note"]


def test_a_start_that_must_fail_leaves_the_running_server_alone(user: User) -> None:
    user.simulate("demo")
    (before,) = user.servers()
    refused = user.simulate("demo", "--set", "mem_fraction_static=0.5", status=1)
    assert (refused["state"], refused["phase"]) == ("refused", "preflight")
    assert refused["findings"][0]["id"] == "slots-negative"
    conflict = user.simulate("demo", "--set", "enable_mixed_chunk=true", status=1)
    assert conflict["state"] == "refused" and conflict["findings"][0]["flags"] == {"enable_mixed_chunk": None}
    assert user.servers() == [before]
    forced = user.simulate("demo", "--set", "mem_fraction_static=0.5", "--force", status=1)
    assert forced["state"] == "failed"
