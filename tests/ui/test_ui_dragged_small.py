"""A terminal that is dragged to next to nothing and back: the app draws what it can, and goes on."""

from __future__ import annotations

import pytest
from test_ui_live import serve
from uifakes import FakeSession
from uiscreen import Opened, screen_text, until


@pytest.mark.parametrize("place", ["1", "2", "4", "5", "6", "7"])
async def test_every_place_outlives_a_terminal_of_a_few_cells(session: FakeSession, opened: Opened, place: str) -> None:
    serve(session)
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press(place)
        for size in ((20, 5), (5, 2), (1, 1)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        await until(pilot, lambda: "on port 30000" in screen_text(app))
