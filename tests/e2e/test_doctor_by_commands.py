"""The doctor at a running server and after one that died."""

from __future__ import annotations

from pathlib import Path

import psutil
from commands import User


def test_the_running_server_is_looked_at_with_its_log_readings_and_card(user: User) -> None:
    user.simulate("demo")
    told = user.json("doctor", status=1)
    assert told["of"].startswith("the running server (r1, ")
    assert "SIMULATED" in told["of"]
    found = {f["id"]: f for f in told["findings"]}
    mended = found["pool-below-context"]
    assert mended["after"]["kv_tokens"] >= 262_144
    assert mended["after"]["basis"] == "calibrated"
    # The remedy as the words it gives mends it.
    ((name, value),) = mended["flags"].items()
    user.simulate("demo", "--set", f"{name}={value}")
    again = [f["id"] for f in user.json("doctor", status=0)["findings"]]
    assert "pool-below-context" not in again


def test_a_server_without_metrics_is_told_so(user: User) -> None:
    user.simulate("demo", "--set", "enable_metrics=false", status=None)
    assert "metrics-off" in [f["id"] for f in user.json("doctor", status=1)["findings"]]


def test_after_a_death_the_last_round_is_judged(user: User) -> None:
    switches = 'tuner.simulator={"speed": 0, "fault": "oom-in-capture"}'
    user.run("run", "demo", "--sim", "--set", f"port={user.port}", "--set", switches, status=1)
    told = user.json("doctor", status=1)
    assert told["of"].startswith("the last round (r1, failed)")
    first = told["findings"][0]
    assert first["id"] == "oom-in-capture"
    assert first["flags"]["mem_fraction_static"] < 0.86
    assert first["after"]["fits"] is True
    assert "--set mem_fraction_static=" in user.run("doctor", status=1).stdout


def test_a_server_that_was_killed_without_a_word_is_told_as_that(user: User) -> None:
    switches = 'tuner.simulator={"speed": 0, "fault": "die-at:Memory pool end"}'
    user.run("run", "demo", "--sim", "--set", f"port={user.port}", "--set", switches, status=1)
    assert [f["id"] for f in user.json("doctor", status=1)["findings"]] == ["silent-end"]


def test_a_round_whose_tuner_was_killed_in_the_middle_is_no_round_that_did_not_fail(user: User) -> None:
    with user.starting("demo", fault="hang:sizing") as tuner:
        # It does not answer yet, which is nothing to say of a start.
        starting = user.json("doctor")
        assert starting["of"].startswith("the running server (r1, ") and starting["findings"] == []
        tuner.kill()
        tuner.wait(30)
        psutil.wait_procs([process for process in user.servers() if not process.kill()], timeout=30)
    told = user.json("doctor", status=1)
    assert told["of"].startswith("the last round (r1, failed)")
    assert [f["id"] for f in told["findings"]] == ["silent-end"]
    # Where the log is gone too, what the round itself tells is said.
    Path(user.json("show", "r1")["log_path"]).unlink()
    (left,) = user.json("doctor", status=1)["findings"]
    assert left["title"] == "The tuner ended in the middle of this round, and its server is gone."


def test_a_remedy_that_the_need_of_the_recipe_does_not_survive_says_so(user: User) -> None:
    need = ("--set", "tuner.need_input_tokens=200000", "--set", "tuner.need_agents=2")
    user.simulate("demo", "--set", "mem_fraction_static=0.93", "--set", "mamba_full_memory_ratio=0.3", *need)
    found = {f["id"]: f for f in user.json("doctor", status=None)["findings"]}
    low = found["low-headroom"]
    assert low["flags"]["mem_fraction_static"] < 0.93
    assert "The need that the recipe states is then no longer met: " in low["remedy"]


def test_a_server_that_died_long_after_its_round_is_told_even_when_a_refused_start_came_between(user: User) -> None:
    served = user.simulate("demo")
    refused = user.simulate("demo", "--set", "enable_piecewise_cuda_graph=true", status=1)
    assert (refused["state"], refused["findings"][0]["id"]) == ("refused", "unknown-flag")
    scheduler = next(p for server in user.servers() for p in server.children() if "sglang::scheduler" in p.cmdline())
    scheduler.kill()
    psutil.wait_procs(user.servers(), timeout=30)
    told = user.json("doctor", status=1)
    assert told["of"].startswith(f"the server of {served['name']}, which was up and died")
    assert told["findings"][0]["id"] == "host-memory-kill"


def test_a_server_that_was_stopped_is_no_death_however_it_went(user: User) -> None:
    switches = 'tuner.simulator={"speed": 0, "fault": "ignore-signals"}'
    user.run("run", "demo", "--sim", "--set", f"port={user.port}", "--set", switches)
    assert "SIGKILL" in user.json("stop", "--now")["how"]
    assert user.json("doctor")["findings"] == []
