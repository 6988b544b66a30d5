"""Looks at a server are kept with its round by one watcher only."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tuner.metrics.model import Reach, Readings
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.server.model import ServerHandle
from tuner.session import watching
from tuner.session.watching import Running, Watch


class SilentServer:
    """A server that answers nothing."""

    problem = ""

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 1.0) -> None:
        self.url = url

    def metrics(self) -> Reach:
        return Reach.UNREACHABLE

    def loads(self) -> Reach:
        return Reach.UNREACHABLE

    def server_info(self) -> Reach:
        return Reach.UNREACHABLE

    def close(self) -> None:
        pass


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(watching, "ServerClient", SilentServer)
    return Home.at(tmp_path)


def running(history: History, *, ready: bool) -> Running:
    """A server and its round, ready or still loading."""
    draft = Round(number=0, started_at=1.0, state=RoundState.VERIFIED, recipe=Recipe())
    round_ = history.open_round(draft)
    round_ = msgspec.structs.replace(round_, ready_seconds=5.0 if ready else None)
    handle = ServerHandle(
        pid=4_000_000,
        create_time=1.0,
        host="127.0.0.1",
        port=30000,
        log_path="",
        started_at=1.0,
        simulated=True,
        recipe=Recipe(),
        round_name=round_.name,
    )
    return Running(handle, round_)


def kept(history: History) -> list[Readings]:
    return list(history.samples(1))


def test_of_two_apps_on_one_server_one_keeps_the_readings(home: Home) -> None:
    with History(home.database) as history:
        server = running(history, ready=True)
        first, second = Watch(home, history, {}), Watch(home, history, {})
        assert first.read(server, keep=True) is not None
        assert second.read(server, keep=True) is not None
        first.close()
        second.close()
        assert len(kept(history)) == 1


def test_a_command_that_only_looks_keeps_nothing(home: Home) -> None:
    with History(home.database) as history:
        watch = Watch(home, history, {})
        watch.read(running(history, ready=True), keep=False)
        watch.close()
        assert kept(history) == []


def test_a_server_that_still_loads_is_not_charted(home: Home) -> None:
    with History(home.database) as history:
        watch = Watch(home, history, {})
        watch.read(running(history, ready=False), keep=True)
        watch.close()
        assert kept(history) == []


def test_a_reading_carries_the_time_of_day(home: Home) -> None:
    with History(home.database) as history:
        watch = Watch(home, history, {})
        readings = watch.read(running(history, ready=True), keep=False)
        watch.close()
        assert readings is not None
        assert abs(readings.at - time.time()) < 60


class TellingServer(SilentServer):
    """A server that admits fewer requests than were asked."""

    def loads(self) -> dict[str, object]:  # type: ignore[override]
        return {"loads": [{"num_running_reqs": 0}]}

    def server_info(self) -> dict[str, object]:  # type: ignore[override]
        states = [{"effective_max_running_requests_per_dp": 9, "mem_fraction_static": 0.86}]
        return {"model_path": "/m", "max_running_requests": 32, "internal_states": states}


def test_values_that_the_server_changed_on_its_own_are_told(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "ServerClient", TellingServer)
    with History(home.database) as history:
        server = running(history, ready=True)
        asked = Recipe(flags={"max_running_requests": 32, "mem_fraction_static": 0.86})
        server = Running(msgspec.structs.replace(server.handle, recipe=asked), server.round)
        watch = Watch(home, history, {})
        assert watch.changed(server) == ()
        watch.read(server, keep=False)
        titles = [finding.title for finding in watch.changed(server)]
        assert titles == ["max_running_requests is 9 in effect, 32 was asked."]
        assert watch.changed(None) == ()
        watch.close()


def test_of_a_server_that_tells_nothing_no_change_is_claimed(home: Home) -> None:
    with History(home.database) as history:
        server = running(history, ready=True)
        watch = Watch(home, history, {})
        watch.read(server, keep=False)
        assert watch.changed(server) == ()
        watch.close()
