"""Rounds of a real server that an earlier tuner kept, as they are read today."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tuner.rounds.history import History
from tuner.rounds.measures import measure
from tuner.rounds.model import FIRST_ANSWERS, Round
from tuner.rounds.report import round_text
from tuner.session.earlier import phase_estimates
from tuner.ui.progress import Work, begin
from tuner.ui.timing import last_like, times_of

REAL = Path(__file__).parents[2] / "data" / "real_rounds"
#: The server's own warm-up and what the tuner's first requests took after ready, by the times of the logs, seconds.
WARM_UPS = {
    "27b-48g-solved-mtp": (4.3, 93.6),
    "27b-48g-auto-r1": (11.5, 1.5),
    "27b-48g-auto-r2": (4.3, 80.5),
    "next-80b-whole-card": (38.4, 11.4),
}


def as_written(name: str) -> Round:
    return msgspec.json.decode((REAL / f"{name}.json").read_bytes(), type=Round)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history.sqlite3")


def kept(history: History, name: str) -> Round:
    """The round as the history gives it."""
    number = history.open_round(as_written(name)).number
    history.save(msgspec.structs.replace(as_written(name), number=number))
    return history.get(number)


@pytest.mark.parametrize("name", WARM_UPS)
def test_the_first_answers_are_told_apart_from_the_servers_own_warm_up(history: History, name: str) -> None:
    before, now = as_written(name), kept(history, name)
    own, ours = WARM_UPS[name]
    assert now.phase_seconds["warming up"] == pytest.approx(own, abs=0.1)
    assert now.phase_seconds[FIRST_ANSWERS] == pytest.approx(ours, abs=0.1)
    assert list(now.phase_seconds)[-2:] == ["warming up", FIRST_ANSWERS]
    assert sum(now.phase_seconds.values()) == pytest.approx(sum(before.phase_seconds.values()))
    assert sum(now.phase_seconds.values()) - ours == pytest.approx(now.ready_seconds, abs=0.1)


def test_the_minute_after_ready_is_read_from_the_round(history: History) -> None:
    text = round_text(kept(history, "27b-48g-auto-r2"))
    assert "ready after 1 min 23 s, first answers 1 min 20 s" in text
    assert ["warming", "up", "4.3", "s"] in [line.split() for line in text.splitlines()]
    assert ["first", "answers", "1", "min", "20", "s"] in [line.split() for line in text.splitlines()]


def test_the_next_start_is_timed_by_both(history: History) -> None:
    round_ = kept(history, "27b-48g-auto-r2")
    estimates = phase_estimates(history, round_.recipe)
    assert estimates["warming up"] == pytest.approx(4.3, abs=0.1)
    assert estimates[FIRST_ANSWERS] == pytest.approx(80.5, abs=0.1)
    before = times_of(last_like(history, round_.recipe))
    progress = begin(Work.ROUND, stops_first=False, before=before, simulated=False)
    assert progress.steps[-1].name == FIRST_ANSWERS
    checks = sum(check.seconds for check in round_.checks)
    assert progress.total_before_s == pytest.approx(163.7 + checks, abs=0.1)


def test_what_was_read_once_stays_as_it_is(history: History) -> None:
    round_ = kept(history, "27b-48g-auto-r2")
    history.save(round_)
    assert history.get(round_.number) == round_


def test_a_round_without_a_warm_up_of_ours_is_left_alone(history: History) -> None:
    ready = msgspec.structs.replace(
        as_written("27b-48g-auto-r2"), phase_seconds={"launching": 5.0, "warming up": 4.0}, ready_seconds=9.01
    )
    number = history.open_round(ready).number
    assert history.get(number).phase_seconds == {"launching": 5.0, "warming up": 4.0}
    first = measure("first-answers-seconds")
    assert first is not None and first.read(history.get(number)) is None


def test_the_plan_is_held_against_the_cards_own_reading(history: History) -> None:
    round_ = kept(history, "27b-48g-auto-r2")
    assert round_.accuracy is not None
    assert round_.accuracy.ready_free_actual == pytest.approx(2.86, abs=0.005)
    assert "free at ready -0.04 GiB" in round_text(round_)
