"""The scripts for a GPU machine (tests/real), rehearsed on the stand-in: what they promise there they must do here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import User


def test_the_articles_need_is_answered_in_two_rounds(user: User, tmp_path: Path) -> None:
    told = user.rehearse("story.py", "--out", str(tmp_path / "story.json"))
    assert told.endswith("2 rounds; all as promised\n")
    found = json.loads((tmp_path / "story.json").read_text(encoding="utf-8"))
    assert [answer["completion_tokens"] for answer in found["beside"]["answers"]] == [64, 64, 64]


def test_a_second_start_is_refused_while_the_first_loads(user: User) -> None:
    # With the recipe's own interpreter, as without --python on a GPU machine.
    told = user.rehearse("restarts.py", "demo", "--times", "2", simulator='{"speed": 0, "fault": "bind-late:3"}')
    assert "second start while the first was starting: refused" in told
    assert told.endswith("all as it should be\n")


@pytest.mark.parametrize(("preset", "slots"), [("qwen3.8-27b-r01", "41 / 41"), ("demo", "81 / 81")])
def test_one_round_of_any_preset_is_told_against_its_plan(user: User, preset: str, slots: str) -> None:
    told = user.rehearse("once.py", preset)
    assert f"| {slots} |" in told and told.endswith("all as promised\n")
