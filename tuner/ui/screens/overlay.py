"""Screens of much text above another: drawn once when they are opened, in two turns."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TypeVar

from textual import events, on
from textual.geometry import Size
from textual.screen import ModalScreen

from tuner.ui.restyling import PAUSE_S
from tuner.ui.screens.sizing import size_classes

Result = TypeVar("Result")


class Overlay(ModalScreen[Result]):
    """Lays itself out at every size once, where Textual does it twice and paints both times."""

    def __init__(self) -> None:
        super().__init__()
        self._told_size = Size(0, 0)

    @on(events.ScreenResume)
    def _lay_out(self) -> None:
        """Runs before Textual's own, which lays out: that is painted in a turn of its own, after a pause."""
        unseen = ExitStack()
        unseen.enter_context(self.app.batch_update())
        # The app ends that, not the screen, which may be closed before.
        self.app.call_later(unseen.close)
        self.call_later(asyncio.sleep, PAUSE_S)

    @on(events.Resize)
    def _take_size(self, event: events.Resize) -> None:
        """A screen hears of every size again from its own layout, also of the first."""
        if event.size == (self._told_size or self.app.size):
            event.prevent_default()
        self._told_size = event.size
        self.update_classes(size_classes(self.app, event.size), animate=False)
