"""What every screen has: where one is, what runs, the keys at the bottom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from tuner.ui.widgets.chrome import NavBar, StatusLine

if TYPE_CHECKING:
    from tuner.ui.app import TunerApp


class Place(Screen[None]):
    """One of the screens of the top line. Subclasses name their ``mode`` and give a ``body``."""

    mode: ClassVar[str] = ""
    #: Heading of the help overlay, and what the screen is for in one sentence.
    purpose: ClassVar[str] = ""

    @property
    def tuner(self) -> TunerApp:
        """The app with its type."""
        return cast("TunerApp", self.app)

    def body(self) -> Iterable[Widget]:
        """The screen's own widgets."""
        return ()

    def compose(self) -> ComposeResult:
        """Chrome around the body."""
        yield NavBar(self.mode)
        yield StatusLine()
        yield from self.body()
        yield Footer(show_command_palette=False, compact=True)

    def turn_page(self, selector: str) -> None:
        """A page further in a text beside the list in focus; after its end back to the start."""
        text = self.query_one(selector, VerticalScroll)
        if text.scroll_y >= text.max_scroll_y:
            text.scroll_home(animate=False)
        else:
            text.scroll_page_down(animate=False)

    @on(events.Mount)
    def _follow(self) -> None:
        for name in ("look", "look_problem", "progress", "bench", "starter"):
            self.watch(self.app, name, self._status, init=False)
        self._status()

    @on(events.ScreenResume)
    def _catch_up(self) -> None:
        self._status()

    def _status(self) -> None:
        if self.is_current:
            app = self.tuner
            self.query_one(StatusLine).show(
                app.look, app.progress, problem=app.look_problem, simulated=app.simulated, starter=app.starter
            )
