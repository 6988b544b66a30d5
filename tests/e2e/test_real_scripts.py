"""The scripts for a GPU machine (tests/real), rehearsed on the stand-in: what they promise there they must do here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import User

REAL = Path(__file__).parents[1] / "real"


def rehearse(user: User, script: str, *words: str, simulator: str = '{"speed": 0}') -> str:
    """The script's output; fails unless it ends well."""
    options = ("--sim", "--port", str(user.port), "--set", f"tuner.simulator={simulator}")
    done = subprocess.run(
        [sys.executable, str(REAL / script), *words, *options],
        env=user.environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert user.servers() == []
    return done.stdout


def test_the_articles_need_is_answered_in_two_rounds(user: User, tmp_path: Path) -> None:
    told = rehearse(user, "story.py", "--out", str(tmp_path / "story.json"))
    assert told.endswith("2 rounds; all as promised\n")
    found = json.loads((tmp_path / "story.json").read_text(encoding="utf-8"))
    assert [answer["completion_tokens"] for answer in found["beside"]["answers"]] == [64, 64, 64]


def test_a_second_start_is_refused_while_the_first_loads(user: User) -> None:
    # With the recipe's own interpreter, as without --python on a GPU machine.
    told = rehearse(user, "restarts.py", "demo", "--times", "2", simulator='{"speed": 0, "fault": "bind-late:3"}')
    assert "second start while the first was starting: refused" in told
    assert told.endswith("all as it should be\n")


@pytest.mark.parametrize(("preset", "slots"), [("qwen3.8-27b-r01", "41 / 41"), ("demo", "81 / 81")])
def test_one_round_of_any_preset_is_told_against_its_plan(user: User, preset: str, slots: str) -> None:
    told = rehearse(user, "once.py", preset)
    assert f"| {slots} |" in told and told.endswith("all as promised\n")
