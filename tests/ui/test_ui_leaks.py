"""An app that is left open all day and walked through holds no more than one that was walked through once."""

from __future__ import annotations

import gc

from textual._styles_cache import StylesCache
from textual.widget import Widget
from textual.widgets._footer import FooterKey
from uifakes import FakeSession
from uiscreen import Opened, until

from tuner.ui.garbage import collect


def gone() -> list[Widget]:
    """Keys of the foot that are on no screen any more, and still in memory."""
    gc.collect()
    return [o for o in gc.get_objects() if isinstance(o, FooterKey) and not o.is_attached]


async def test_the_keys_of_the_foot_are_forgotten_when_others_take_their_place(
    session: FakeSession, opened: Opened
) -> None:
    async with opened() as (app, pilot):
        before = len(gone())
        for _ in range(8):
            for mode in ("rounds", "tune"):
                app.go(mode)
                await until(pilot, lambda mode=mode: app.current_mode == mode)
                await pilot.pause()
        # Those of the line before are forgotten with the next.
        assert len(gone()) <= before + 30


async def test_no_drawn_lines_of_widgets_that_are_gone_are_kept(session: FakeSession, opened: Opened) -> None:
    async with opened() as (app, pilot):
        for _ in range(4):
            await pilot.press("question_mark")
            await until(pilot, lambda: len(app.screen_stack) > 1)
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1)
        await collect()
        widgets = [o for o in gc.get_objects() if isinstance(o, Widget)]
        of_widgets = {id(getattr(o, "_styles_cache", None)) for o in widgets}
        of_widgets |= {id(getattr(o, "_line_api_cache", None)) for o in widgets}
        kept = [o for o in gc.get_objects() if isinstance(o, StylesCache)]
        assert kept and [o for o in kept if id(o) not in of_widgets] == []
