"""What every screen has: where one is, what runs, the keys at the bottom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget

from tuner.ui.commands import ON_THE_SERVER
from tuner.ui.copying import Copied, address
from tuner.ui.restyling import PAUSE_S
from tuner.ui.screens.sizing import paint_after_layout, size_classes
from tuner.ui.widgets.chrome import NavBar, StatusLine
from tuner.ui.widgets.foot import Foot

if TYPE_CHECKING:
    from tuner.ui.app import TunerApp

#: Cells from which on a list has what is chosen in it beside it, not below.
BESIDE = 140


class Place(Screen[None]):
    """One of the screens of the top line. Subclasses name their ``mode`` and give a ``body``."""

    mode: ClassVar[str] = ""
    #: Heading of the help overlay, and what the screen is for in one sentence.
    purpose: ClassVar[str] = ""
    #: Actions whose keys are not at the bottom of a narrow terminal.
    spare: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        # Textual marks every new screen as older than the styles, and then reads all of them again, twice, which holds
        # the app up for longer than anything else it does. A new screen gets its styles when it is mounted.
        # Textual has no public word for that; one that counts otherwise is only slower.
        known = getattr(self.app, "_css_update_count", None)
        if known is not None:
            self._css_update_count = known
        #: What the screen was last told to be as large as.
        self._told_size = Size(0, 0)

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
        yield Foot(self.spare, hidden=ON_THE_SERVER if self.tuner.session.attached else ())

    @on(events.Resize)
    async def _take_size(self, event: events.Resize) -> None:
        """Takes the classes of the new size before Textual lays the screen out, not after, which would do it twice.

        A screen hears of every size again from its own layout; that would lay it out once more.
        """
        if event.size == self._told_size:
            event.prevent_default()
            return
        self._told_size = event.size
        classes = size_classes(self.app, event.size)
        classes["-beside"] = event.size.width >= BESIDE
        self.update_classes(classes, animate=False)
        # Until then nothing is painted: the screen takes no other message.
        await asyncio.sleep(PAUSE_S)
        paint_after_layout(self)

    def to_copy(self) -> Copied:
        """What the copy key takes: what is under the eye, where nothing is chosen the server's address."""
        return address(self.tuner.look)

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
