"""What a terminal would show of an app under test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from textual.app import App
from textual.pilot import Pilot

from tuner.ui.app import TunerApp

Opened = Callable[..., AbstractAsyncContextManager[tuple[TunerApp, Pilot[None]]]]


def screen_text(app: App[None]) -> str:
    """The screen as lines of text, without trailing blanks."""
    strips = app.screen._compositor.render_strips(app.size)
    return "\n".join(strip.text.rstrip() for strip in strips[: app.size.height])


async def until(pilot: Pilot[None], true: Callable[[], bool], *, tries: int = 500) -> None:
    """Lets the app work until something is true; fails when it never comes."""
    for _ in range(tries):
        if true():
            return
        await pilot.pause(0.01)
    raise AssertionError(f"what the test waited for never came; the screen:\n{screen_text(pilot.app)}")


def told(app: App[None]) -> str:
    """What the app has said in its corner; a terminal under test does not draw that."""
    return " ".join(notification.message for notification in app._notifications)
