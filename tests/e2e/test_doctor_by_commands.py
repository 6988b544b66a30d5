"""The doctor at a running server and after one that died."""

from __future__ import annotations

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
