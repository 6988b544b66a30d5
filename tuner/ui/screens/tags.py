"""The tags of a round."""

from __future__ import annotations

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from tuner.rounds.errors import HistoryError
from tuner.rounds.history import History
from tuner.text import clip, plain
from tuner.ui.widgets.key_button import KeyButton

#: Tags in use that are named, most used first.
_MOST_KNOWN = 12


class TagsScreen(ModalScreen[tuple[str, ...] | None]):
    """Answers the tags the round has then, or None when they stay as they are."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", tooltip="Keep the tags as they are")
    ]

    def __init__(self, name: str, tags: tuple[str, ...], history: History) -> None:
        super().__init__()
        self._round = name
        self._tags = tags
        self._history = history

    def compose(self) -> ComposeResult:
        """One line to write on, and the tags that other rounds have."""
        with Vertical(classes="dialog") as box:
            box.border_title = f"Tags of {self._round}"
            yield Input(value=" ".join(self._tags), placeholder="winner long-input", id="tags", select_on_focus=False)
            yield Static("", id="known", markup=False)
            yield Label("Words with spaces between. Enter saves, Esc keeps the old tags.", classes="hint")
            with Horizontal(classes="buttons"):
                yield KeyButton("Save (Enter)", id="save", variant="primary", compact=True)
                yield KeyButton("Cancel (Esc)", id="cancel", compact=True)

    def on_mount(self) -> None:
        """Ready to write."""
        self.query_one(Input).focus()
        self._look()

    @work(thread=True, group="known")
    def _look(self) -> None:
        try:
            counted = self._history.tags()
        except HistoryError as error:
            self.app.call_from_thread(self._say, str(error), bad=True)
            return
        known = sorted(counted, key=lambda tag: -counted[tag])[:_MOST_KNOWN]
        words = f"In use: {' '.join(plain(tag) for tag in known)}" if known else "No round has a tag yet."
        self.app.call_from_thread(self._say, clip(words, 140), bad=False)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._save(event.value)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "save":
            self._save(self.query_one(Input).value)
        else:
            self.dismiss(None)

    @work(thread=True, exclusive=True, group="save")
    def _save(self, text: str) -> None:
        wanted = [word.removeprefix("#") for word in plain(text).replace(",", " ").split()]
        number = int(self._round.removeprefix("r"))
        try:
            tags = self._history.set_tags(number, wanted, [tag for tag in self._tags if tag not in wanted])
        except HistoryError as error:
            self.app.call_from_thread(self._say, str(error), bad=True)
            return
        self.app.call_from_thread(self.dismiss, tags)

    def _say(self, text: str, *, bad: bool) -> None:
        self.query_one("#known", Static).update(Content.assemble((text, "bold $warning" if bad else "$foreground 60%")))
