"""Starting, stopping and falling back from the command line, on the stand-in server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tuner.paths import Home
from tuner.server.ports import port_free
from tuner.server.supervisor import Supervisor

Tuner = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tuner(home: Home) -> Tuner:
    def call(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tuner", *words],
            env={**os.environ, "TUNER_HOME": str(home.state_root.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return call


@pytest.fixture
def sim(port: int) -> Callable[..., list[str]]:
    def words(fault: str = "") -> list[str]:
        switches = json.dumps({"speed": 0, **({"fault": fault} if fault else {})})
        return ["run", "--sim", "--set", f"port={port}", "--set", f"tuner.simulator={switches}"]

    return words


def test_a_failed_round_names_the_last_good_one_and_falls_back_when_asked(
    tuner: Tuner, sim: Callable[..., list[str]], supervisor: Supervisor, port: int
) -> None:
    tuner(*sim())
    failed = tuner(*sim("refuse-at-sizing"), status=1)
    assert "tuner run r1" in failed.stdout
    assert supervisor.running(port) == []
    answer = json.loads(tuner(*sim("refuse-at-sizing"), "--fallback", "--json", status=1).stdout)
    assert (answer["name"], answer["state"], answer["last_good"]) == ("r3", "failed", "r1")
    assert (answer["fallback"]["name"], answer["fallback"]["state"]) == ("r4", "verified")
    (handle,) = supervisor.running(port)
    assert handle.round_name == "r4"
    refused = tuner(*sim("refuse-at-sizing"), "--fallback", status=1)
    assert "r2, r3" in refused.stdout
    assert supervisor.running(port) == [handle]
    assert json.loads(tuner("run", "r1", "--now", "--json").stdout)["recipe"]["flags"]["port"] == port


def test_a_stop_states_its_bound_and_what_became_of_it(tuner: Tuner, sim: Callable[..., list[str]]) -> None:
    tuner(*sim())
    stopped = tuner("stop", "--now")
    assert "Stopping r1 on port" in stopped.stderr and "at the most" in stopped.stderr
    assert "Stopped in" in stopped.stderr
    assert "No server of the tuner is running" in tuner("stop", status=1).stderr


def test_a_stop_names_its_server_and_what_still_runs(tuner: Tuner, sim: Callable[..., list[str]], port: int) -> None:
    other = next(n for n in range(port + 1, 32768) if port_free("127.0.0.1", n))
    tuner(*sim())
    tuner(*sim(), "--set", f"port={other}")
    first = tuner("stop", "--now").stderr
    assert f"Stopping r2 on port {other}" in first
    assert f"r1 on port {port} still runs: tuner stop --port {port} ends it." in first
    assert "still runs" not in tuner("stop", "--now", "--port", str(port)).stderr


def test_a_server_is_stopped_even_when_the_history_cannot_be_opened(
    tuner: Tuner, sim: Callable[..., list[str]], home: Home, supervisor: Supervisor
) -> None:
    tuner(*sim())
    home.database.write_bytes(b"no database" * 1000)
    stopped = tuner("stop", "--now")
    assert "stopped without it" in stopped.stderr
    assert supervisor.running() == []
    assert "running" in tuner("stop", status=1).stderr


def test_a_server_that_somebody_else_started_is_named_and_left_alone(tuner: Tuner, tmp_path: Path, port: int) -> None:
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text("print('up', flush=True)\nimport time\ntime.sleep(600)", encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "sglang.launch_server", "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        stdout=subprocess.PIPE,
    ) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            refused = tuner("stop", "--port", str(port), status=1)
            assert f"process {server.pid}, port {port}" in refused.stderr
            assert "left alone" in refused.stderr
            assert psutil.Process(server.pid).is_running()
        finally:
            server.kill()


def test_a_home_that_cannot_be_made_is_one_sentence(tuner: Tuner, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words in (["run", "--sim"], ["stop"], ["status"]):
        done = subprocess.run(
            [sys.executable, "-m", "tuner", *words],
            env={**os.environ, "TUNER_HOME": str(tmp_path / "file" / "home")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "TUNER_HOME" in done.stderr


def test_falling_back_and_leaving_none_are_two_wishes(tuner: Tuner, sim: Callable[..., list[str]]) -> None:
    assert "--stop-after" in tuner(*sim(), "--fallback", "--stop-after", status=2).stderr
