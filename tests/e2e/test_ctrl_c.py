"""Ctrl-C once and twice at each moment of a round and of auto: one server or none, and the user is told which.

``TUNER_CTRL_C=40`` tries so many more moments at random.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
import pytest
from commands import User

MORE = int(os.environ.get("TUNER_CTRL_C", "1"))
#: No command here takes longer, but for one that hangs.
LONGEST_S = 45.0
LOADS = ("loading weights", "sizing pools")
RUN, AUTO = ("run", "demo"), ("auto", "demo", "--input", "60K", "--agents", "2", "--headroom", "2")


def switches(user: User, fault: str = "") -> list[str]:
    simulator = json.dumps({"speed": 0, **({"fault": fault} if fault else {})})
    pairs = (f"port={user.port}", "host=127.0.0.1", "attention_backend=triton", f"tuner.simulator={simulator}")
    return ["--sim", *(word for pair in pairs for word in ("--set", pair))]


class AtWork:
    """A command in a terminal of its own; its lines of progress."""

    def __init__(self, user: User, words: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tuner", *words],
            env=user.environment,
            cwd=user.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.leash = threading.Timer(LONGEST_S, self.process.kill)
        self.leash.start()

    def until(self, *texts: str) -> None:
        """Reads progress until a line has one of the texts in it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if any(text in line for text in texts):
                return
        raise AssertionError(f"{texts} never came:\n{''.join(self.lines)}")

    def ctrl_c(self) -> None:
        """As a terminal does it: to every process of the foreground."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> str:
        """All that it said, after its end."""
        out, err = self.process.communicate(timeout=90)
        said = "".join(self.lines) + err + out
        assert "Traceback" not in said and "Error" not in said, said
        return said


@contextmanager
def at_work(user: User, *words: str, fault: str = "") -> Iterator[AtWork]:
    command = AtWork(user, [*words[:1], *words[1:2], *switches(user, fault), *words[2:]])
    try:
        yield command
    finally:
        command.leash.cancel()
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate(timeout=30)


def servers(user: User) -> list[psutil.Process]:
    """Those that no other one of them started."""
    found = user.servers()
    return [process for process in found if process.ppid() not in {other.pid for other in found}]


def told(user: User) -> str | None:
    """The round whose server runs, by the status; None where none does. There is never a second one."""
    running = user.json("status", status=None)["running"]
    assert len(servers(user)) == (running is not None)
    return running["round"] if running else None


def before(user: User, fault: str = "") -> str:
    """A server to be replaced."""
    user.run("run", "demo", *switches(user, fault), "--set", "mem_fraction_static=0.8")
    return "r1"


def goes_on(user: User, said: str) -> None:
    """The command that is named works: the former server runs again."""
    (again,) = re.findall(r"tuner run (r\d+)", said)
    flags = user.json("show", again)["recipe"]["flags"]
    assert user.json("run", again, "--now")["recipe"]["flags"] == flags
    assert len(servers(user)) == 1


def test_once_while_the_new_server_loads_it_is_ended_and_the_way_back_is_named(user: User) -> None:
    before(user)
    with at_work(user, *RUN, fault="hang:sizing") as run:
        run.until(*LOADS)
        run.ctrl_c()
        said = run.ended()
    assert run.process.returncode == 1
    assert "Breaking off the round. Once more leaves at once." in said
    assert f"No server of the tuner is on port {user.port}. Before, r1 ran: tuner run r1 starts it again." in said
    assert told(user) is None
    assert user.json("show", "r2")["state"] == "aborted"
    goes_on(user, said)


def test_once_before_the_running_server_was_touched_it_runs_on(user: User) -> None:
    before(user)
    with at_work(user, *RUN) as run:
        run.until("planned:")
        run.ctrl_c()
        said = run.ended()
    now = told(user)
    assert now in (None, "r1"), said
    assert (f"r1 runs on port {user.port} as before." in said) is (now == "r1")


def test_once_while_it_is_checked_the_server_stays_and_is_called_unverified(user: User) -> None:
    # A second for each prompt.
    slow = 'tuner.simulator={"speed": 0.05, "ttft": 20}'
    with at_work(user, *RUN, "--set", slow) as run:
        run.until(" s  ready")
        run.ctrl_c()
        said = run.ended()
    assert told(user) == "r1", said
    assert user.json("show", "r1")["state"] == "unverified"
    assert f"tuner stop --port {user.port} ends it" in said


@pytest.mark.parametrize("words", [RUN, AUTO], ids=["run", "auto"])
def test_twice_while_the_new_server_loads_it_goes_on_by_itself_and_is_told(user: User, words: tuple[str, ...]) -> None:
    before(user)
    with at_work(user, *words, fault="hang:sizing") as run:
        run.until(*LOADS)
        # What hears nothing cannot be broken off in an instant.
        run.ctrl_c()
        run.until("Once more leaves at once.")
        run.ctrl_c()
        said = run.ended()
    assert run.process.returncode == 1
    left = told(user)
    assert left in (None, "r2"), said
    assert "Before, r1 ran: tuner run r1 starts it again." in said
    state = user.json("show", "r2")["state"]
    assert state in ("aborted", "failed", "unverified"), state
    goes_on(user, said)


@pytest.mark.parametrize("words", [RUN, AUTO], ids=["run", "auto"])
def test_twice_while_the_former_server_hears_nothing_no_second_one_comes(user: User, words: tuple[str, ...]) -> None:
    before(user, fault="ignore-sigterm")
    with at_work(user, *words) as run:
        run.until("stopping")
        run.ctrl_c()
        run.until("Once more leaves at once.")
        run.ctrl_c()
        said = run.ended()
    assert told(user) == "r1", said
    assert f"r1 on port {user.port} was asked to stop" in said
    assert f"tuner stop --port {user.port} makes sure" in said
    # A stop would wait for it as long as it takes.
    psutil.wait_procs([process for process in user.servers() if not process.kill()], timeout=30)
    assert told(user) is None


def test_twice_while_auto_puts_the_former_server_back_it_comes_back_by_itself(user: User) -> None:
    before(user, fault="bind-late:2")
    with at_work(user, *AUTO, fault="hang:sizing") as auto:
        auto.until(*LOADS)
        auto.ctrl_c()
        auto.until("is started again")
        auto.until("opening port")
        auto.ctrl_c()
        said = auto.ended()
    back = told(user)
    assert back == "r3", said
    assert f"r3, which is r1 again, is on port {user.port} and goes on by itself" in said
    assert user.json("show", back)["recipe"]["flags"]["mem_fraction_static"] == 0.8
    # Once it is up, it is verified like any other.
    assert user.json("run", "r1")["state"] == "verified"


def test_json_is_one_value_however_often_ctrl_c_comes(user: User) -> None:
    for times in (1, 2):
        with at_work(user, *RUN, "--json", fault="hang:sizing") as run:
            while not user.servers():
                assert run.process.poll() is None
            for _ in range(times):
                run.ctrl_c()
                if times == 2:
                    run.until("Once more")
                    break
            if times == 2:
                run.ctrl_c()
            out, err = run.process.communicate(timeout=60)
        assert "Traceback" not in err
        answer = json.loads(out)
        assert ("error" in answer) if times == 2 else (answer["state"] == "aborted")
        user.run("stop", "--now", status=None)


def moments() -> list[tuple[tuple[str, ...], int, float]]:
    chance = random.Random(29)
    return [(words, chance.randrange(1, 24), chance.random() * 0.3) for words in (RUN, AUTO) for _ in range(MORE)]


@pytest.mark.parametrize(("words", "lines", "apart"), moments())
def test_twice_at_any_moment_leaves_one_server_or_none(
    user: User, words: tuple[str, ...], lines: int, apart: float
) -> None:
    before(user)
    with at_work(user, *words) as run:
        assert run.process.stderr is not None
        for _ in range(lines):
            run.lines.append(run.process.stderr.readline())
        for pause in (apart, 0):
            if run.process.poll() is None:
                run.ctrl_c()
                time.sleep(pause)
        said = run.ended()
    told(user)
    assert user.json("rounds")
    if run.process.returncode:
        assert f"port {user.port}" in said
