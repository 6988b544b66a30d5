"""A swap on a disk without room: the server that runs could not be started again, so it is left alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tuner.findings import Severity
from tuner.paths import Home
from tuner.planner.need import Need
from tuner.recipe.model import SIMULATOR, Recipe, TunerSettings
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round, RoundState
from tuner.server import machine
from tuner.session.auto.model import AutoOutcome, Goal
from tuner.session.events import AutoNews, Event
from tuner.session.session import Session

FULL = SimpleNamespace(free=500 << 10)


@pytest.fixture
def session(home: Home) -> Iterator[Session]:
    session = Session(home, os.environ)
    yield session
    session.close()


@pytest.fixture
def recipe(port: int) -> Recipe:
    flags = {"model_path": "demo/hybrid-27b", "host": "127.0.0.1", "port": port, "max_running_requests": 1}
    return Recipe(
        python=SIMULATOR,
        flags=flags,
        tuner=TunerSettings(simulator={"speed": 0}, model_shape="qwen3.8-27b-fp8", sglang_version="0.5.17"),
    )


def run(session: Session, recipe: Recipe) -> Round:
    return session.run_round(recipe, publish=lambda _: None, cancel=threading.Event())


def auto(session: Session, recipe: Recipe, events: list[Event]) -> AutoOutcome:
    goal = Goal(need=Need(input_tokens=60_000, agents=2), max_rounds=2)
    return session.auto(recipe, goal, publish=events.append, cancel=threading.Event(), leave=threading.Event())


def test_the_server_that_runs_is_not_stopped_for_one_that_could_not_write_its_log(
    session: Session, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(session, recipe)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: FULL)
    second = run(session, recipe.with_flags({"mem_fraction_static": 0.8}))
    assert second.state is RoundState.REFUSED
    assert "is full, and a server that cannot write its log ends" in second.reason
    assert any(finding.severity is Severity.FATAL for finding in second.findings)
    running = session.running()
    assert running is not None and running.round is not None
    assert running.round.number == first.number


def test_auto_leaves_it_too_and_says_why(session: Session, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(session, recipe)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: FULL)
    outcome = auto(session, recipe, [])
    assert not outcome.met and outcome.serving == first.name
    assert "is full, and a server that cannot write its log ends" in outcome.reason
    running = session.running()
    assert running is not None and running.handle.round_name == first.name


def test_where_the_history_cannot_keep_the_way_back_auto_names_what_to_start_by_hand(
    session: Session, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(session, recipe)
    real = session.run_round
    asked: list[str] = []

    def failing(wanted: Recipe, **how: object) -> Round:
        asked.append(str(how["note"]))
        if len(asked) > 1:
            raise HistoryError("The disk that holds the history is full.")
        session.stop(publish=lambda _: None)
        return real(wanted.with_flags({"model_path": "/no/such/model"}), **how)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "run_round", failing)
    events: list[Event] = []
    assert not auto(session, recipe, events).met
    told = [event.text for event in events if isinstance(event, AutoNews) and event.kind == "back"]
    assert told[-1] == (
        f"{first.name} could not be started again, so start it by hand: The disk that holds the history is full."
    )
