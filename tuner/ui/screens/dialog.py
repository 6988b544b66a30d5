"""A question in a box, answered by a key or a click."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from tuner.ui.widgets.key_button import KeyButton


class ConfirmScreen(ModalScreen[bool]):
    """A question with yes and no; the focus starts on the harmless answer when ``careful``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "dismiss(False)", "No", tooltip="Change nothing"),
        Binding("y", "dismiss(True)", "Yes", tooltip="Do it"),
        Binding("up", "scroll(-1)", "Up", show=False, tooltip="The text a line up"),
        Binding("down", "scroll(1)", "Down", show=False, tooltip="The text a line down"),
        Binding("left", "app.focus_previous", "Other button", show=False, tooltip="To the other button"),
        Binding("right", "app.focus_next", "Other button", show=False, tooltip="To the other button"),
    ]

    def __init__(self, title: str, text: Content, *, yes: str, no: str = "Cancel", careful: bool = False) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._yes = yes
        self._no = no
        self._careful = careful

    def compose(self) -> ComposeResult:
        """Heading, text, two buttons."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._title
            with VerticalScroll(classes="said", can_focus=False):
                yield Static(self._text, classes="text")
            with Horizontal(classes="buttons"):
                yield KeyButton(
                    f"{self._yes} (y)", id="yes", variant="error" if self._careful else "primary", compact=True
                )
                yield KeyButton(f"{self._no} (Esc)", id="no", compact=True)

    def on_mount(self) -> None:
        """Enter gives the answer in focus."""
        self.query_one("#no" if self._careful else "#yes", Button).focus()

    def action_scroll(self, lines: int) -> None:
        """A text that is longer than the terminal."""
        self.query_one(".said", VerticalScroll).scroll_relative(y=lines, animate=False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answers."""
        event.stop()
        self.dismiss(event.button.id == "yes")
