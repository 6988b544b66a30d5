"""``tuner watch`` and ``tuner status --url``: lines for a log, a pipe or a screen reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "session"))
from fakeserver import Script, closed_port, serving

from tuner.cli import main
from tuner.cli.watch import follow, line
from tuner.metrics.model import Readings, Spread
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.server.model import ServerHandle
from tuner.session.watching import Look, Running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def port(script: Script) -> Iterator[int]:
    with serving(script) as found:
        yield found


def look(readings: Readings | None, *, alive: bool = True, simulated: bool = False) -> Look:
    handle = ServerHandle(
        pid=1, create_time=1.0, host="127.0.0.1", port=30000, log_path="", started_at=1.0, simulated=simulated,
        recipe=Recipe(flags={"max_running_requests": 32}), round_name="r3",
    )  # fmt: skip
    return Look(1_795_983_480.5, Running(handle, None), readings, (), alive)


BUSY = Readings(
    at=1.0, kv_used_tokens=1635, kv_total_tokens=262294, slots_used=12, slots_total=57, slots_evictable=3, running=3,
    queued=5, max_running_requests=3, decode_tokens_per_s=151.6, prefill_tokens_per_s=2710.2,
    ttft_s=Spread(p50=0.83, p95=1.52, count=400), prefix_hit_ratio=0.62, acceptance_length=1.8,
)  # fmt: skip


def test_a_line_is_plain_words_with_units() -> None:
    said = line(look(BUSY))
    assert said.split(" ", 1)[1] == (
        "r3, KV 1,635 of 262,294 0.6 %, slots 12 of 57 and 3 cached, 3 of 3 running, 5 waiting, decode 152/s, "
        "prefill 2,710/s, TTFT 0.83 s p50, 1.5 s p95, of 400, hits 62 %, accept 1.80, "
        "State slots: 57 admit 3 of 32 asked; 3 of 3 admitted run; 5 requests wait"
    )
    assert "SIMULATED" in line(look(BUSY, simulated=True))


def test_a_server_that_does_not_answer_is_said_and_nothing_else() -> None:
    gone = Readings(at=1.0, notice="The server does not answer.")
    assert line(look(gone, alive=False)).endswith("r3, The server does not answer.")
    assert line(Look(1.0, None, None, (), False)).endswith("no server of the tuner runs")


def test_lines_come_at_their_times_however_long_a_look_takes(capsys: pytest.CaptureFixture[str]) -> None:
    now, waits = [100.0], []

    class Source:
        def look(self, *, keep: bool = False) -> Look:
            assert not keep
            now[0] += 0.3 if len(waits) != 2 else 2.5
            return look(BUSY)

    def wait(seconds: float) -> bool:
        waits.append(round(seconds, 3))
        now[0] += seconds
        return False

    follow(Source(), lambda _: "x", every=1.0, count=5, wait=wait, clock=lambda: now[0])
    assert waits == [0.7, 0.7, 0.0, 0.7]
    assert capsys.readouterr().out.split() == ["x"] * 5
    follow(Source(), lambda _: "y", every=1.0, count=None, wait=lambda _: True, clock=lambda: now[0])
    assert capsys.readouterr().out.split() == ["y"]


def test_a_server_by_its_address_in_one_status(script: Script, port: int) -> None:
    ran = CliRunner().invoke(main, ["status", "--url", f"127.0.0.1:{port}", "--json"])
    assert ran.exit_code == 0
    told = json.loads(ran.stdout)
    assert told["running"]["url"] == f"http://127.0.0.1:{port}"
    assert (told["running"]["attached"], told["running"]["sglang_version"]) == (True, "0.5.17")
    assert told["readings"]["decode_tokens_per_s"] > 0
    assert (told["binds"]["kind"], bool(told["binds"]["words"])) == ("unknown", True)
    assert told["changed_by_server"][0]["title"] == "max_running_requests is 9 in effect, 32 was asked."
    words = CliRunner().invoke(main, ["status", "--url", f"127.0.0.1:{port}"]).stdout
    assert "2 of 9 admitted run, 1 wait" in words
    assert "max_running_requests is 9 in effect, 32 was asked." in words


def test_a_status_of_nothing_ends_with_1() -> None:
    ran = CliRunner().invoke(main, ["status", "--url", f"127.0.0.1:{closed_port()}"])
    assert ran.exit_code == 1
    assert "does not answer" in ran.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "--url", "nonsense://x"], "is no address of a server"),
        (["watch", "--url", "box:1", "--key-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
        (["status", "--key-env", "X"], "--key-env belongs to --url"),
        (["attach", "box:1"], "The app needs a terminal"),
        (["watch", "--every", "0"], "0.1<=x<=3600"),
    ],
)
def test_wrong_use_is_one_sentence(words: list[str], said: str) -> None:
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_watch_in_json_is_one_object_a_line(script: Script, port: int) -> None:
    ran = CliRunner().invoke(main, ["watch", "--url", f"127.0.0.1:{port}", "--every", "0.1", "--count", "3", "--json"])
    lines = [json.loads(text) for text in ran.stdout.splitlines()]
    assert [told["readings"]["running"] for told in lines] == [2, 2, 2]
    assert lines[2]["readings"]["decode_tokens_per_s"] > 0


def watching(port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tuner", "watch", "--url", f"127.0.0.1:{port}", "--every", "0.1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_watch_ends_cleanly_on_ctrl_c_and_where_its_reader_goes_away(port: int) -> None:
    with watching(port) as interrupted, watching(port) as unread:
        assert interrupted.stdout is not None
        assert interrupted.stderr is not None
        assert unread.stdout is not None
        assert unread.stderr is not None
        assert "2 of 9 running" in interrupted.stdout.readline()
        interrupted.send_signal(signal.SIGINT)
        assert unread.stdout.readline()
        unread.stdout.close()
        assert (interrupted.wait(20), interrupted.stderr.read()) == (0, "")
        assert (unread.wait(20), unread.stderr.read()) == (0, "")


def test_a_status_from_a_folder_that_may_only_be_read_says_that_nothing_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    History(Home.find().database).close()
    monkeypatch.setattr("tuner.rounds.schema.os.access", lambda where, mode: mode != os.W_OK)
    ran = CliRunner().invoke(main, ["status"])
    assert ran.exit_code == 1
    assert "No server of the tuner is running." in ran.stdout
    assert f"The history may only be read, so nothing is kept ({home}" in ran.stderr
