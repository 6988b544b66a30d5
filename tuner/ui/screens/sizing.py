"""What a screen does at another size of the terminal: takes its classes, and is painted after it was laid out."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any

from textual.app import App
from textual.errors import NoWidget
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget

from tuner.ui.restyling import PAUSE_S

#: Seconds after which drawing ahead lets others have their turn.
_DRAWN_S = 0.008


def size_classes(app: App[None], size: Size) -> dict[str, bool]:
    """Each of the app's classes for widths and heights, in cells, and whether a screen of this size has it."""
    steps = ((size.width, app.HORIZONTAL_BREAKPOINTS), (size.height, app.VERTICAL_BREAKPOINTS))
    classes = {name: False for _, points in steps for _, name in points or ()}
    for cells, points in steps:
        classes[max((least, name) for least, name in points or () if cells >= least)[1]] = True
    return classes


def paint_after_layout(screen: Screen[Any]) -> None:
    """What Textual lays out in this turn is painted in a later one; nothing is painted in between.

    To be called in a handler of the message that Textual's own handler, which comes after it, lays the screen out for.
    """
    unseen = ExitStack()
    unseen.enter_context(screen.app.batch_update())
    # The app ends that, not the screen, which may be closed before. Textual's painting waits behind the drawing.
    screen.app.call_later(unseen.close)
    screen.call_later(_draw_ahead, screen)


async def _draw_ahead(screen: Screen[Any]) -> None:
    """Has the widgets in sight draw their lines, a few a turn; they keep them, and painting puts them together."""
    await asyncio.sleep(PAUSE_S)
    began = time.perf_counter()
    for widget in screen.walk_children(Widget):
        if time.perf_counter() - began > _DRAWN_S:
            await asyncio.sleep(PAUSE_S)
            began = time.perf_counter()
        if not (screen.is_current and widget.is_attached and widget.visible):
            continue
        try:
            placed = screen.find_widget(widget)
        except NoWidget:
            continue
        if seen := placed.visible_region:
            widget.render_lines(seen.translate(-placed.region.offset))
