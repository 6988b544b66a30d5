"""A session of fakes and an app on it, at any size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from uifakes import DEMO, FakeSession
from uiscreen import Opened, until

from tuner.recipe.model import Recipe
from tuner.ui.app import TunerApp


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal with all colours, whatever the tests run in."""
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TEXTUAL_COLOR_SYSTEM", raising=False)


@pytest.fixture
def session(tmp_path: Path) -> FakeSession:
    return FakeSession(tmp_path)


@pytest.fixture
def opened(session: FakeSession) -> Opened:
    """Opens the app on the fake session and waits until it has looked once and can plan."""

    @asynccontextmanager
    async def _open(
        size: tuple[int, int] = (120, 36), recipe: Recipe = DEMO, *, demo: bool = False
    ) -> AsyncIterator[tuple[TunerApp, Pilot[None]]]:
        app = TunerApp(session, recipe, demo=demo, every_s=0.1)  # type: ignore[arg-type]
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.look is not None and (app.inputs is not None or app.inputs_problem != ""))
            await pilot.pause()
            yield app, pilot

    return _open
