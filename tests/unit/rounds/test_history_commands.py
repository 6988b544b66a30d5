"""The history and its files from the command line, in one process: fast, and without a server."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from test_history import draft, finished

from tuner.cli import main
from tuner.paths import Home
from tuner.rounds.history import History
from tuner.rounds.model import RoundState

PRESETS = Path(__file__).parents[3] / "presets"


class Shell:
    """Runs ``tuner`` words with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._runner = CliRunner(env={"TUNER_HOME": str(home)})

    def run(self, *words: str, status: int = 0, text: str | None = None) -> Result:
        result = self._runner.invoke(main, list(words), input=text)
        assert result.exit_code == status, (result.output, result.exception)
        return result

    def json(self, *words: str, status: int = 0, text: str | None = None) -> Any:
        return json.loads(self.run(*words, "--json", status=status, text=text).stdout)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    yield Shell(tmp_path / "home")


@pytest.fixture
def three(shell: Shell) -> Shell:
    """r1 verified, r2 failed, r3 verified with another fraction."""
    with History(Home.at(shell.home).database) as history:
        history.save(finished(history.open_round(draft("first"))))
        failed = history.open_round(draft(mem_fraction_static=0.99))
        history.save(msgspec.structs.replace(failed, state=RoundState.FAILED, phase="capturing graphs", reason="OOM."))
        history.save(finished(history.open_round(draft(mem_fraction_static=0.98, kv_cache_dtype="fp8_e4m3"))))
    return shell


def names(found: list[dict[str, Any]]) -> list[str]:
    return [round_["name"] for round_ in found]


def test_rounds_are_searched_and_filtered(three: Shell) -> None:
    assert names(three.json("rounds")) == ["r3", "r2", "r1"]
    assert names(three.json("rounds", "oom")) == ["r2"]
    assert names(three.json("rounds", "--state", "verified", "--flag", "mem-fraction-static=0.98")) == ["r3"]
    assert names(three.json("rounds", "--flag", "kv_cache_dtype=")) == ["r2", "r1"]
    assert names(three.json("rounds", "--flag", "kv_cache_dtype")) == ["r3"]
    assert names(three.json("rounds", "--real", "--limit", "1")) == ["r3"]
    assert three.json("rounds", "--sim") == []
    assert "No round is like that." in three.run("rounds", "zzz").stdout
    assert "perhaps mem_fraction_static was meant" in three.run("rounds", "--flag", "mem_fraction=1", status=2).stderr
    assert "it takes a number above 0" in three.run("rounds", "--flag", "mem_fraction_static=x", status=2).stderr
    assert three.run("rounds", "--md").stdout.startswith("| round |")


def test_the_operators_words_are_written_shown_and_taken_back(three: Shell) -> None:
    assert three.json("note", "r1", "好的 start")["note"] == "好的 start"
    assert three.run("note", "r1").stdout == "r1: 好的 start\n"
    assert three.run("note", "r1", "").stdout == "r1: no note\n"
    assert three.json("tag", "r3", "winner", "b")["tags"] == ["b", "winner"]
    assert three.run("tag", "r3", "--remove", "b").stdout == "r3: winner\n"
    assert names(three.json("rounds", "--tag", "winner")) == ["r3"]
    assert three.json("show", "good")["name"] == "r3"
    assert three.json("reject", "r3")["verdict"] == "reject"
    assert three.json("show", "good")["name"] == "r1"
    assert "kept although it is failed" in three.run("keep", "r2").stderr
    assert three.json("export", "good")["round"] == "r2"
    assert three.json("keep", "r2", "--undo")["verdict"] == ""
    assert three.json("show", "last")["name"] == "r3"
    assert "no round: name it like r3, or last, or good" in three.run("note", "x", "y", status=2).stderr
    assert "A tag is one word" in three.run("tag", "r1", "two words", status=2).stderr


def test_an_empty_history_has_no_good_round(shell: Shell) -> None:
    assert "No round is good yet" in shell.run("show", "good", status=2).stderr


def test_more_than_two_rounds_become_a_table(three: Shell) -> None:
    many = three.json("diff", "r1", "r2", "r3")
    assert many["rounds"] == ["r1", "r2", "r3"] and many["outcomes"] == ["verified", "failed", "verified"]
    assert "best trade" in three.run("diff", "r1", "r2", "r3").stdout
    assert three.run("diff", "r1", "r2", "r3", "--md").stdout.startswith("## r1, r2, r3")
    assert "Name two rounds" in three.run("diff", "r1", status=2).stderr


def test_a_measure_is_charted(three: Shell) -> None:
    assert three.json("chart", "kv_tokens")["rounds"] == {"r1": 262_294, "r2": None, "r3": 262_294}
    lines = three.run("chart", "ttft_p50", "r1", "r2").stdout.splitlines()
    assert lines[0] == "TTFT p50" and "█" in lines[1] and lines[2].endswith("failed")
    assert "ready_seconds" in three.run("chart", "list").stdout
    assert "There is no measure 'x'" in three.run("chart", "x", status=2).stderr


def test_a_flag_tells_all_about_itself(shell: Shell) -> None:
    text = shell.run("flags", "--mamba-full-memory-ratio").stdout
    for word in ("does", "takes", "range", "moves", "both pools", "costs", "needs a restart"):
        assert word in text
    assert "since 0.5.17" in shell.run("flags", "mamba_scheduler_strategy").stdout
    (info,) = shell.json("flags", "kv_cache_dtype")
    assert info["flag"] == "--kv-cache-dtype" and info["moves"] == "kv" and info["restart"] is True
    assert len(shell.json("flags")) >= 70 and len(shell.json("flags", "--all")) > 460
    assert "Perhaps chunked_prefill_size is meant" in shell.run("flags", "chunk_prefill_size", status=1).stderr
    assert "No flag has" in shell.run("flags", "日本語", status=1).stderr


def test_presets_are_listed_with_what_they_were_measured_on_and_may_be_ones_own(shell: Shell) -> None:
    shipped = {preset["name"]: preset for preset in shell.json("presets")}
    assert set(shipped) == {path.stem for path in PRESETS.glob("*.toml")}
    assert "RTX 4090D" in shipped["qwen3.8-27b-r15"]["measured_on"] and not shipped["demo"]["own"]
    command = "python -m sglang.launch_server --model-path /models/x --mem-frac 0.9 --nonsense 1"
    saved = shell.json("import", "-", "--save", "mine", text=command)
    assert saved["kept"][0]["where"] == "flags.nonsense" and "short for" in saved["remarks"][0]
    mine = {preset["name"]: preset for preset in shell.json("presets")}["mine"]
    assert mine["own"] and mine["model"] == "/models/x"
    assert "have a preset mine already" in shell.run("import", "-", "--save", "mine", status=2, text=command).stderr
    shell.run("import", "-", "--save", "mine", "--replace", text=command)
    assert "no name for a preset" in shell.run("import", "-", "--save", "../x", status=2, text=command).stderr
    (Home.at(shell.home).presets / "broken.toml").write_text("[", encoding="utf-8")
    assert "not valid TOML" in shell.run("presets").stdout


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_preset_is_loaded_planned_and_written_in_every_form(shell: Shell, path: Path) -> None:
    before, after = ("139", "60") if "80b" in path.stem else ("46.83", "19.29")
    plan = shell.json("plan", path.stem, "--sglang", "0.5.17", "--free-before", before, "--free-after", after)
    assert plan["fits"] and plan["kv_tokens"] > 0
    for fmt in ("toml", "settings", "yaml", "sh", "systemd", "docker"):
        read = shell.json("import", str(path), "--format", fmt)
        assert read["text"].strip(), fmt


def test_what_cannot_be_imported_is_told_and_the_history_is_left_alone(shell: Shell, tmp_path: Path) -> None:
    for words, said in (
        ((), "Name files, or --server URL, or --pid PID"),
        (("--pid", "999999999"), "There is no process"),
        (("--server", "127.0.0.1:9"), "nothing answers there"),
        (("nowhere.toml",), "cannot be read"),
        ((str(PRESETS / "demo.toml"), str(PRESETS / "demo.toml")), "would be a second recipe"),
    ):
        assert said in shell.run("import", *words, status=2).stderr
    (tmp_path / "x.yaml").write_text("a: [", encoding="utf-8")
    assert len(shell.run("import", str(tmp_path / "x.yaml"), status=2).stderr.strip().splitlines()) == 1
    assert not Home.at(shell.home).database.exists()


def test_a_round_that_lost_its_tuner_is_shown_closed_and_left_as_it_is(shell: Shell) -> None:
    with History(Home.at(shell.home).database) as history:
        history.open_round(draft("lost"))
    (listed,) = shell.json("rounds")
    assert listed["state"] == "failed" and "its server is gone" in listed["reason"]
    assert " failed " in shell.run("rounds").stdout
    assert shell.json("show", "r1")["state"] == "failed"
    with History(Home.at(shell.home).database) as history:
        assert history.get(1).state is RoundState.STARTING


def test_one_damaged_round_does_not_hide_the_others(three: Shell) -> None:
    with sqlite3.connect(Home.at(three.home).database) as connection:
        connection.execute("UPDATE rounds SET body = substr(body, 1, 60) WHERE number = 2")
    text = three.run("rounds").stdout
    assert "damaged" in text and "r3" in text and "r1" in text
    told = {r["name"]: r for r in three.json("rounds")}
    assert "cut short" in told["r2"]["damaged"] and told["r2"]["reason"] == "OOM."
    assert told["r3"]["recipe"] and told["r1"]["pareto"] is False
    assert "r2 cannot be read from the history" in three.run("show", "r2", status=2).stderr
    assert "mem_fraction_static" in three.run("diff", "r1", "r3").stdout
    assert three.json("show", "last")["name"] == three.json("show", "good")["name"] == "r3"


def test_words_of_the_app_work_on_the_command_line(three: Shell) -> None:
    three.run("tag", "r1", "winner")
    assert names(three.json("rounds", "failed")) == ["r2"]
    assert names(three.json("rounds", "real", "#winner")) == ["r1"]
    assert names(three.json("rounds", "simulated")) == []
    assert names(three.json("rounds", "mem_fraction_static=0.98")) == ["r3"]
    assert "it takes a number above 0" in three.run("rounds", "mem_fraction_static=x", status=2).stderr


def test_a_home_that_may_only_be_read_is_read_and_that_is_said(three: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda where, mode: mode != os.W_OK)
    for words in (("rounds",), ("show", "r1"), ("diff", "r1", "r3"), ("chart", "kv_tokens"), ("export", "r1")):
        assert "The history may only be read, so nothing is kept" in three.run(*words).stderr
    assert "may not be written: make the file and its folder writable" in three.run("keep", "r1", status=2).stderr


@pytest.mark.parametrize(("fmt", "runs"), [("sh", True), ("docker", True), ("toml", False), ("md", False)])
def test_an_exported_script_can_be_run_as_it_is(three: Shell, tmp_path: Path, fmt: str, *, runs: bool) -> None:
    target = tmp_path / f"out.{fmt}"
    three.run("export", "r1", "--format", fmt, "-o", str(target))
    assert os.access(target, os.X_OK) == runs
    assert list(tmp_path.glob("*.part")) == []
