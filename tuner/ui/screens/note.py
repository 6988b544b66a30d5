"""The note of a round."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label

from tuner.ui.widgets.key_button import KeyButton


class NoteScreen(ModalScreen[str | None]):
    """Answers the note, or None when it stays as it is."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel", tooltip="Keep the old note")]

    def __init__(self, name: str, note: str) -> None:
        super().__init__()
        self._name = name
        self._note = note

    def compose(self) -> ComposeResult:
        """One line to write on."""
        with Vertical(classes="dialog") as box:
            box.border_title = f"Note on {self._name}"
            yield Input(value=self._note, placeholder="What did this round teach?", id="note", select_on_focus=False)
            yield Label("Enter saves, Esc keeps the old note.", classes="hint")
            with Horizontal(classes="buttons"):
                yield KeyButton("Save (Enter)", id="save", variant="primary", compact=True)
                yield KeyButton("Cancel (Esc)", id="cancel", compact=True)

    def on_mount(self) -> None:
        """Ready to write."""
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Saves."""
        event.stop()
        self.dismiss(event.value.strip())

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Saves or not."""
        event.stop()
        self.dismiss(self.query_one(Input).value.strip() if event.button.id == "save" else None)
