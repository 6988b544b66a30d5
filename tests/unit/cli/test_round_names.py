"""``tuner log rN`` and ``tuner doctor rN``: a round where a file or a preset can stand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tuner.cli import main
from tuner.doctor import diagnose_log
from tuner.findings import Finding, FindingId, Severity
from tuner.paths import Home
from tuner.recipe import load
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.session.bootlog import read_log

DATA = Path(__file__).parents[2] / "data"
PRESETS = Path(__file__).parents[3] / "presets"
GOOD_LOG = DATA / "real_rounds" / "27b-48g-r01.log"
BAD_LOG = DATA / "measured" / "27b-48g-fraction-too-low.log"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def history(home: Path) -> Home:
    """r1 verified, r2 failed for its fraction, r3 refused without a server, r4 lost its tuner."""
    place = Home.at(home / "home")
    with History(place.database) as rounds:
        for state, log in ((RoundState.VERIFIED, GOOD_LOG), (RoundState.FAILED, BAD_LOG)):
            facts, tail = read_log(log)
            assert facts is not None
            rounds.save(
                msgspec.structs.replace(
                    opened(rounds), state=state, log_path=str(log), boot=facts, findings=diagnose_log(facts, tail)
                )
            )
        rounds.save(
            msgspec.structs.replace(opened(rounds), state=RoundState.REFUSED, reason="The port 30000 is taken.")
        )
        opened(rounds)
    return place


def opened(rounds: History) -> Round:
    recipe = load(PRESETS / "qwen3.8-27b-r01.toml")
    return rounds.open_round(Round(number=0, started_at=1.0, state=RoundState.STARTING, recipe=recipe))


def run(*words: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_the_log_of_a_round_is_read_by_its_name(history: Home) -> None:
    assert run("log", "r1").stdout == run("log", str(GOOD_LOG)).stdout
    assert json.loads(run("log", "good", "--json").stdout)["kv_tokens"] == 109_851


def test_a_file_of_such_a_name_comes_first(history: Home, home: Path) -> None:
    (home / "r1").write_bytes(BAD_LOG.read_bytes())
    assert run("log", "r1").stdout == run("log", str(BAD_LOG)).stdout


def test_a_log_that_is_not_there_is_one_sentence_with_what_to_do(history: Home) -> None:
    assert run("log", "r3", status=2).stderr == (
        "tuner: r3 has no log: no server came of it; tuner show r3 tells why.\n"
    )
    assert "There is no round r9: the history holds 4" in run("log", "r9", status=2).stderr
    assert "cannot be read: give the path of a file, or a round like r3." in run("log", "no.log", status=2).stderr
    with History(history.database) as rounds:
        gone = str(history.logs / "gone.log")
        rounds.save(msgspec.structs.replace(rounds.get(1), log_path=gone))
    said = run("log", "r1", status=2).stderr
    assert said == f"tuner: The log of r1 is gone ({gone}): tuner show r1 tells what was kept of it.\n"


def test_the_doctor_says_what_was_wrong_with_a_round_and_plans_the_remedy(history: Home) -> None:
    told = json.loads(run("doctor", "r2", "--json", status=1).stdout)
    assert told["of"] == "r2 as it ended, failed"
    assert told["findings"][0]["id"] == "slots-negative"
    assert told["unplanned"] == ""
    assert told["findings"][0]["after"]["fits"] is True
    assert "--set mem_fraction_static=0.63" in run("doctor", "r2", status=1).stdout


def test_the_doctor_needs_no_log_of_a_round_any_more(history: Home) -> None:
    with History(history.database) as rounds:
        rounds.save(msgspec.structs.replace(rounds.get(2), log_path=os.devnull))
    assert "slots-negative" in run("doctor", "r2", status=1).stdout


def test_a_round_of_which_nothing_was_found_says_why_it_ended(history: Home) -> None:
    told = run("doctor", "r3").stdout
    assert told.startswith("Looked at r3 as it ended, refused: The port 30000 is taken.\n")
    # What a failure alone has for a cause is a finding.
    assert "unknown: The tuner ended in the middle of this round" in run("doctor", "last", status=1).stdout


def test_a_log_is_judged_with_the_recipe_of_a_round(history: Home) -> None:
    told = json.loads(run("doctor", "r1", "--log", str(BAD_LOG), "--json", status=1).stdout)
    assert told["of"] == str(BAD_LOG)
    assert told["findings"][0]["after"] is not None


def test_a_round_that_is_not_there_is_not_taken_for_a_preset(history: Home) -> None:
    assert "There is no round r9" in run("doctor", "r9", status=2).stderr
    assert "There is no preset or file 'r'" in run("doctor", "r", status=2).stderr


def test_what_an_earlier_tuner_said_of_a_log_is_said_as_it_is_understood_today(history: Home) -> None:
    with History(history.database) as rounds:
        failed = rounds.get(2)
        stale = [msgspec.structs.replace(f, title="Said long ago.") for f in failed.findings]
        rounds.save(msgspec.structs.replace(failed, findings=tuple(stale)))
    told = json.loads(run("doctor", "r2", "--json", status=1).stdout)
    assert [f["id"] for f in told["findings"]] == [str(f.id) for f in failed.findings]
    assert "Said long ago." not in {f["title"] for f in told["findings"]}


def test_a_failure_that_nobody_explained_is_not_called_well(history: Home) -> None:
    with History(history.database) as rounds:
        rounds.save(
            msgspec.structs.replace(rounds.get(2), findings=(), log_path="", boot=None, reason="It was killed.")
        )
    told = run("doctor", "r2", status=1).stdout
    assert "It was killed." in told and "Nothing is wrong" not in told


def test_a_remedy_of_a_round_that_loses_its_need_says_so(history: Home) -> None:
    with History(history.database) as rounds:
        first = rounds.get(1)
        needy = msgspec.structs.replace(first.recipe.tuner, need_input_tokens=100_000, need_agents=1)
        less = Finding(
            id=FindingId.GPU_BUSY,
            severity=Severity.WARNING,
            title="T.",
            remedy="R.",
            flags={"mem_fraction_static": 0.8},
        )
        recipe = msgspec.structs.replace(first.recipe, tuner=needy)
        rounds.save(msgspec.structs.replace(first, recipe=recipe, findings=(less,)))
    assert "The need that the recipe states is then no longer met" in run("doctor", "r1", status=1).stdout
