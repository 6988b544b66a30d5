"""``tuner auto`` ended at any moment, and twice at once: one server at the most, and every round is in the history.

``TUNER_AUTO_KILLS=50`` kills it so many times; a change gets a few.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys

import psutil
from commands import User

KILLS = int(os.environ.get("TUNER_AUTO_KILLS", "2"))
#: Lines of progress after which an auto of one round has ended.
LINES = 25


def begun(user: User) -> subprocess.Popen[str]:
    """An auto at work."""
    switches = f"tuner.simulator={json.dumps({'speed': 0})}"
    words = ("auto", "demo", "--input", "60K", "--agents", "2", "--headroom", "2", "--sim")
    sets = (f"port={user.port}", "host=127.0.0.1", "attention_backend=triton", switches)
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", *words, *(word for one in sets for word in ("--set", one))],
        env=user.environment,
        cwd=user.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def heard(process: subprocess.Popen[str], lines: int) -> None:
    """Waits for so many lines of progress, or the end."""
    assert process.stderr is not None
    for _ in range(lines):
        if not process.stderr.readline():
            return


def listeners(port: int) -> set[int | None]:
    return {c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.status == "LISTEN"}


def servers(user: User) -> list[psutil.Process]:
    """Those of the user that no other one of them started."""
    found = user.servers()
    return [process for process in found if process.ppid() not in {other.pid for other in found}]


def test_killed_at_any_moment_it_leaves_one_server_that_is_found_or_none(user: User) -> None:
    chance = random.Random(11)
    for number in range(KILLS):
        known = len(user.json("rounds")) if number else 0
        process = begun(user)
        heard(process, chance.randrange(LINES))
        process.kill()
        process.communicate(timeout=60)
        told = user.json("status", status=None)["running"]
        rounds = user.json("rounds")
        assert len(servers(user)) <= 1
        assert len(rounds) <= known + 1
        if told is None:
            assert not servers(user) and not listeners(user.port)
        else:
            assert told["round"] in {line["name"] for line in rounds}
    # Whatever is left, the next one goes its way.
    last = begun(user)
    out, err = last.communicate(timeout=90)
    assert last.returncode == 0 and "Met in" in out, err
    assert len(servers(user)) == 1


def test_of_two_at_once_on_a_port_one_goes_its_way_and_the_other_is_told(user: User) -> None:
    both = [begun(user), begun(user)]
    ended = [(*process.communicate(timeout=90), process.returncode) for process in both]
    assert all("Traceback" not in err for _, err, _ in ended)
    assert sorted(status for *_, status in ended) in ([0, 0], [0, 1])
    for _, err, status in ended:
        assert status == 0 or "Another tuner auto is at work on port" in err
    assert len(servers(user)) == 1


def test_ctrl_c_at_any_moment_leaves_the_server_that_ran_before(user: User) -> None:
    chance = random.Random(5)
    user.simulate("demo", "--set", "mem_fraction_static=0.8")
    for _ in range(max(1, KILLS // 2)):
        before = user.json("status")["running"]["round"]
        flags = user.json("show", before)["recipe"]["flags"]
        process = begun(user)
        heard(process, 1 + chance.randrange(6))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=90)
        assert "Traceback" not in err
        after = user.json("show", user.json("status")["running"]["round"])
        assert process.returncode == 0 or after["recipe"]["flags"] == flags, err
        assert len(servers(user)) == 1
