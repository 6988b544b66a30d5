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

    def __init__(self) -> None:
        super().__init__()
        # Textual marks every new screen as older than the styles, and then reads all of them again, twice, which holds
        # the app up for longer than anything else it does. A new screen gets its styles when it is mounted.
        self._css_update_count = self.app._css_update_count

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
        for name in ("look", "look_problem", "progress", "bench", "starter", "late_s"):
            self.watch(self.app, name, self._status, init=False)
        self._status()

    @on(events.ScreenResume)
    def _catch_up(self) -> None:
        self._status()

    def _status(self) -> None:
        if self.is_current:
            app = self.tuner
            self.query_one(StatusLine).show(
                app.look,
                app.progress,
                problem=app.look_problem or _late(app.late_s),
                simulated=app.simulated,
                starter=app.starter,
            )


def _late(seconds: int) -> str:
    """The sentence about looks that do not come; empty while they do."""
    return f"No news for {seconds} s: what is shown is that old." if seconds else ""
