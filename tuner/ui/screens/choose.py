"""The list behind a choice: every option with what it means."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option as Line

from tuner.ui.widgets.choice import Choice, Option
from tuner.ui.widgets.row_list import RowList


class ChooseScreen(ModalScreen[str | None]):
    """Answers the key of the option chosen, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel", tooltip="Change nothing")]

    def __init__(self, title: str, options: tuple[Option, ...], chosen: str) -> None:
        super().__init__()
        self._title = title
        self._options = options
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._title)
            yield RowList(*(Line(self._line(o), id=o.key) for o in self._options))

    def on_mount(self) -> None:
        """Starts on the option chosen now."""
        listing = self.query_one(OptionList)
        keys = [o.key for o in self._options]
        listing.highlighted = keys.index(self._chosen) if self._chosen in keys else 0
        listing.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answers."""
        event.stop()
        self.dismiss(event.option_id)

    def _line(self, option: Option) -> Content:
        mark = "● " if option.key == self._chosen else "  "
        return Content.assemble((f"{mark}{option.label:<20}", "bold"), (f" {option.why}", "$foreground 70%"))


async def choose_for(app: App[Any], choice: Choice) -> None:
    """Shows the list of ``choice`` and gives it the answer; for a worker."""
    answer = await app.push_screen_wait(ChooseScreen(choice.label, choice.options, choice.value))
    if answer is not None:
        choice.take(answer)
