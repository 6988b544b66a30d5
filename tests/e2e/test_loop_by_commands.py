"""The tuning loop from the command line, on the stand-in server."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import User

MEASURED = Path(__file__).parents[1] / "data" / "measured"


def test_two_rounds_are_compared_exported_and_run_again(user: User) -> None:
    first = user.simulate("demo")
    second = user.simulate("demo", "--set", "mamba_full_memory_ratio=0.3", "--note", "more KV 多一点")
    assert first["state"] == second["state"] == "verified"
    assert len(user.servers()) == 1

    difference = user.json("diff", "r1", "r2")
    assert [c["name"] for c in difference["flags_changed"]] == ["mamba_full_memory_ratio"]
    pools = {c["name"]: c for c in difference["pools"]}
    assert pools["KV tokens"]["new"] > pools["KV tokens"]["old"]
    assert pools["state slots"]["new"] < pools["state slots"]["old"]

    user.run("export", "r2", "--format", "toml", "-o", "r2.toml")
    exported = (user.home / "r2.toml").read_text(encoding="utf-8")
    assert "SIMULATED" in exported
    assert "多一点" in exported
    again = user.json("run", "r2.toml")
    assert again["recipe"]["flags"] == second["recipe"]["flags"]
    assert again["boot"]["kv_tokens"] == second["boot"]["kv_tokens"]
    assert again["boot"]["mamba_slots"] == second["boot"]["mamba_slots"]
    assert [c["verdict"] for c in again["checks"]] == ["pass"] * len(second["checks"])

    user.run("stop")
    assert user.servers() == []
    assert [r["name"] for r in user.json("rounds")] == ["r3", "r2", "r1"]


def test_only_the_checks_that_the_recipe_names_decide(user: User) -> None:
    broken = 'tuner.simulator={"speed": 0, "fault": "broken-tool-args"}'
    start = ("run", "demo", "--sim", "--set", f"port={user.port}", "--set", broken)
    assert user.json(*start, status=1)["state"] == "unverified"
    round_ = user.json(*start, "--set", "tuner.checks=prefix reuse")
    assert round_["state"] == "verified"
    assert [check["name"] for check in round_["checks"]] == ["prefix reuse"]
    unchecked = "not checked, as tuner.checks of the recipe says: thinking, non-thinking, tool call"
    assert unchecked in user.run("show", round_["name"]).stdout
    # All of them on request: what the recipe leaves out is told, and decides nothing.
    user.json("verify", "--full", status=None)
    full = user.json("show", round_["name"])
    assert full["state"] == "verified"
    assert {c["name"]: c["verdict"] for c in full["checks"]}["tool call"] == "fail"
    assert "not checked" not in user.run("show", round_["name"]).stdout
    user.run("stop")


def test_the_last_good_round_is_run_again_by_that_name(user: User) -> None:
    assert "no round is good" in user.run("run", "good", status=2).stderr.lower()
    user.simulate("--set", "mamba_full_memory_ratio=0.4", "--stop-after")
    again = user.json("run", "good", "--stop-after")
    assert again["state"] == "verified"
    assert again["recipe"]["flags"]["mamba_full_memory_ratio"] == 0.4


def test_the_plan_before_is_the_pools_after(user: User) -> None:
    plan = user.json("plan", "demo")
    round_ = user.simulate("demo", "--stop-after")
    assert round_["boot"]["mamba_slots"] == plan["mamba_slots"]
    assert round_["boot"]["kv_tokens"] == plan["kv_tokens"]
    assert user.servers() == []


def test_a_refused_sizing_is_a_round_with_its_phase_and_reason(user: User) -> None:
    round_ = user.simulate("demo", "--set", "mem_fraction_static=0.5", status=1)
    assert round_["state"] == "failed"
    assert round_["phase"] == "sizing pools"
    assert round_["findings"][0]["id"] in ("slots-negative", "no-room-at-sizing")
    assert user.json("show", "r1")["reason"] == round_["reason"]
    assert user.servers() == []


def test_a_model_that_is_not_there_keeps_the_running_server_up(user: User) -> None:
    user.simulate("demo")
    (before,) = user.servers()
    (user.home / "bad.toml").write_text(
        f'[server]\nmodel_path = "nowhere at all"\npython = "/no/such/python"\nport = {user.port}\n', encoding="utf-8"
    )
    refused = user.json("run", "bad.toml", status=1)
    assert refused["state"] == "refused"
    assert user.servers() == [before]


def test_a_server_left_alone_is_found_again_and_stopped(user: User) -> None:
    user.simulate("demo")
    status = user.json("status")
    assert status["running"]["round"] == "r1"
    assert status["running"]["simulated"] is True
    assert status["readings"]["slots_total"] > 0
    user.run("stop")
    assert user.servers() == []
    user.run("status", status=1)


def test_wrong_use_is_one_sentence_and_status_2(user: User) -> None:
    for words in (
        ("plan", "no-such-preset"),
        ("log", "no-such.log"),
        ("show", "r7"),
        ("diff", "r1", "banana"),
        ("plan", "demo", "--set", "mem_fraction_statik=0.8"),
        ("plan", "demo", "--set", "mem_fraction_static=lots"),
        ("export", "r1"),
        ("run",),
    ):
        done = user.run(*words, status=2)
        assert done.stderr.strip(), words


def test_wrong_options_are_json_too_where_json_is_asked_for(user: User) -> None:
    for words in (("run",), ("diff",), ("rounds", "--limit", "many"), ("no-such-command",)):
        assert user.json(*words, status=2)["error"], words


def test_the_app_needs_a_terminal(user: User) -> None:
    for words in ((), ("demo",)):
        assert "needs a terminal" in user.run(*words, status=2).stderr
    assert "--preset opens the app" in user.run("--preset", "demo", "rounds", status=2).stderr
    assert user.servers() == []


def test_a_file_that_is_no_log_says_so(user: User) -> None:
    (user.home / "other.log").write_bytes(b"\0\xff\n" * 9)
    assert "binary file" in user.run("log", "other.log", status=1).stderr
    (user.home / "empty.log").touch()
    assert "holds nothing" in user.run("log", "empty.log", status=1).stderr
    assert user.json("log", "empty.log", status=1)["version"] is None


def test_the_recorded_start_reads_as_it_was(user: User) -> None:
    facts = user.json("log", str(MEASURED / "27b-48g-r15-full.log"))
    assert (facts["mamba_slots"], facts["kv_tokens"]) == (57, 262294)
    assert (facts["max_running_requests"], facts["context_len"]) == (3, 262144)
    assert facts["weights_gib"] == {"target": 27.54, "draft": 5.53}
    assert facts["graphs_gib"] == {"prefill": 1.68, "target_verify": 0.10, "draft_extend": 0.08}


def test_the_plan_of_a_measured_round_meets_its_pools(user: User) -> None:
    flags = {
        "mem_fraction_static": "0.86",
        "kv_cache_dtype": "fp8_e4m3",
        "mamba_ssm_dtype": "bfloat16",
        "max_running_requests": "3",
        "mamba_radix_cache_strategy": "no_buffer",
    }
    words = [word for key, value in flags.items() for word in ("--set", f"{key}={value}")]
    told = ("--sglang", "0.5.17", "--free-before", "46.83", "--free-after", "19.29")
    plan = user.json("plan", "--model", "qwen3.8-27b-fp8-text", *told, *words)
    assert plan["mamba_slots"] == 81
    assert plan["kv_tokens"] == pytest.approx(220_711, rel=0.002)


def test_a_second_start_is_refused_while_the_first_still_loads(user: User) -> None:
    with user.starting("demo", fault="hang:sizing"):
        refused = user.simulate("demo", status=1)
        assert refused["state"] == "refused"
        assert refused["findings"][0]["id"] == "double-start"
        assert "r1" in refused["reason"]
        assert len(user.servers()) == 1
