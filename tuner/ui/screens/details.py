"""Everything about one round, to scroll through."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Footer

from tuner.rounds.model import Round
from tuner.ui.copying import Copied, launch_command
from tuner.ui.round_text import round_text
from tuner.ui.screens.overlay import Overlay
from tuner.ui.widgets.sheet import Sheet


class RoundPage(Sheet):
    """The text of a round, as wide as it is shown."""

    shown: reactive[Round | None] = reactive(None, layout=True)

    def text(self, cells: int) -> Content:
        """In full."""
        return round_text(self.shown, cells, full=True) if self.shown else Content("")


class DetailsScreen(Overlay[None]):
    """A round in full."""

    purpose = "Everything about one round."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss", "Close", tooltip="Back to the list"),
        Binding("y", "app.copy", "Copy", tooltip="Copy the launch command of this round", id="copy"),
    ]

    def __init__(self, round_: Round) -> None:
        super().__init__()
        self._round = round_

    def compose(self) -> ComposeResult:
        """One long page."""
        with VerticalScroll(classes="dialog wide", id="page") as page:
            page.border_title = f"{self._round.name}"
            page.border_subtitle = "↑ ↓ scroll · Esc closes"
            yield RoundPage()
        yield Footer(show_command_palette=False, compact=True)

    def to_copy(self) -> Copied:
        """The launch command."""
        return launch_command(self._round.recipe, self._round.name)

    def on_mount(self) -> None:
        """Ready to scroll."""
        self.query_one(RoundPage).shown = self._round
        self.query_one("#page").focus()
