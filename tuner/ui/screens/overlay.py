"""Screens of much text above another: drawn once when they are opened, in two turns."""

from __future__ import annotations

from typing import TypeVar

from textual import events, on
from textual.geometry import Size
from textual.screen import ModalScreen

from tuner.ui.screens.sizing import paint_after_layout, size_classes

Result = TypeVar("Result")


class Overlay(ModalScreen[Result]):
    """Lays itself out at every size once, where Textual does it twice and paints both times."""

    def __init__(self) -> None:
        super().__init__()
        self._told_size = Size(0, 0)

    @on(events.ScreenResume)
    def _lay_out(self) -> None:
        """Runs before Textual's own, which lays out."""
        paint_after_layout(self)

    @on(events.Resize)
    def _take_size(self, event: events.Resize) -> None:
        """A screen hears of every size again from its own layout, also of the first."""
        if event.size == (self._told_size or self.app.size):
            event.prevent_default()
        else:
            paint_after_layout(self)
        self._told_size = event.size
        self.update_classes(size_classes(self.app, event.size), animate=False)
