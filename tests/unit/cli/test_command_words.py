"""What people give a command, and what it prints while it works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tuner.cli import main
from tuner.cli.output import print_json
from tuner.cli.progress import narrator
from tuner.server.model import PhaseChanged
from tuner.serverlog.model import Phase

PRESETS = Path(__file__).parents[3] / "presets"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return tmp_path


def run(*words: str, status: int) -> Result:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_bytes_that_are_no_text_are_printed_as_a_mark(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"note \udcff": ["\udcff\udcfe", 1, None, {"a": "模型"}]})
    assert json.loads(capsys.readouterr().out) == {"note \ufffd": ["\ufffd\ufffd", 1, None, {"a": "模型"}]}


def test_words_that_are_no_text_are_looked_for_all_the_same(home: Path) -> None:
    assert json.loads(run("rounds", "\udcff\udcfe", "--tag", "\udcff", "--json", status=0).stdout) == []


def test_a_file_is_replaced_only_when_that_is_wanted(home: Path) -> None:
    target = home / "mine.toml"
    recipe = str(PRESETS / "demo.toml")
    run("import", recipe, "-o", str(target), status=0)
    first = target.read_bytes()
    run("import", recipe, "-o", str(target), status=0)
    target.write_text("mine", encoding="utf-8")
    assert "--replace" in run("import", recipe, "-o", str(target), status=2).stderr
    assert target.read_text(encoding="utf-8") == "mine"
    run("import", recipe, "-o", str(target), "--replace", status=0)
    assert target.read_bytes() == first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["import", "nosuch"], "nosuch cannot be read: No such file or directory."),
        (["import", "~nosuch/x.toml"], "~nosuch/x.toml cannot be read: No such file or directory."),
        (["plan", "demo", "--set", "foo"], "--set foo has no = and no value: write key=value"),
        (["plan", "--set", "model_path=~nosuch/x", "--free-before", "40", "--free-after", "20"], "~nosuch/x is not on"),
        (["plan", "--set", f"model_path={'a' * 5000}", "--free-before", "40", "--free-after", "20"], "is not on this"),
    ],
)
def test_a_wrong_word_is_answered_in_a_sentence(home: Path, words: list[str], said: str) -> None:
    assert said in run(*words, status=2).stderr


def test_a_broken_file_is_called_by_its_whole_name(home: Path) -> None:
    (home / "broken.toml").write_text("x = [", encoding="utf-8")
    assert "broken.toml is not valid TOML" in run("import", str(home / "broken.toml"), status=2).stderr


def test_a_binary_file_is_no_log_but_one_cut_under_the_server_is(home: Path) -> None:
    (home / "program").write_bytes(b"\x7fELF\0\0\0TypeError: \n\0")
    assert "is no server log but a binary file" in run("log", str(home / "program"), status=1).stderr
    (home / "cut.log").write_bytes(b"\0" * 4096 + b"[2026-11-29 15:52:22] Load weight begin. avail mem=46.83 GB\n")
    assert "46.83 GiB" in run("log", str(home / "cut.log"), status=0).stdout


def test_a_start_without_news_is_told_of_once_and_then_now_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    watch = narrator(quiet=False, clock=lambda: now)
    for half_seconds in range(140):
        now = 100.0 + half_seconds / 2
        watch(PhaseChanged(phase=Phase.LOADING, elapsed_s=1.0, total_s=1.0, stalled=True, last_line="x"))
    now = 180.0
    watch(PhaseChanged(phase=Phase.WARMING, elapsed_s=0.0, total_s=0.0))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["0.0", "0.5", "30.5", "60.5", "80.0"]
    assert sum("no news" in line for line in lines) == 3


def test_a_round_goes_on_when_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def hung_up(text: str, *, err: bool) -> None:
        heard.append(text)
        raise BrokenPipeError

    monkeypatch.setattr("tuner.cli.progress.say", hung_up)
    watch = narrator(quiet=False)
    for phase in (Phase.LAUNCHING, Phase.LOADING, Phase.CAPTURING):
        watch(PhaseChanged(phase=phase, elapsed_s=0.0, total_s=0.0))
    assert len(heard) == 1
