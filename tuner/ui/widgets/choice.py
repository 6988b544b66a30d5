"""One value out of a few, on one line: stepped by arrows and wheel, or picked from a list.

Textual's Select has no stepping, no mark for "differs from what runs" and no line that explains an option,
and takes four widgets per choice.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from tuner.text import clip, width


class Option(msgspec.Struct, frozen=True):
    """One thing to choose: ``key`` names it in messages, ``label`` is shown, ``why`` explains it in the list."""

    key: str
    label: str
    why: str = ""


class Choice(Widget, can_focus=True):
    """A labelled value with a handful of options."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "left", "move(-1)", "Previous", show=False, tooltip="The option before, also by wheel", id="choice.previous"
        ),
        Binding("right", "move(1)", "Next", show=False, tooltip="The option after, also by wheel", id="choice.next"),
        Binding("home", "end(0)", "First", show=False, tooltip="The first option", id="choice.first"),
        Binding("end", "end(1)", "Last", show=False, tooltip="The last option", id="choice.last"),
        Binding("enter,space", "open", "List", show=False, tooltip="All options with what they mean", id="choice.list"),
        Binding(
            "backspace,delete",
            "reset",
            "As running",
            show=False,
            tooltip="The running server's value",
            id="choice.as_running",
        ),
        Binding("up", "app.focus_previous", "Knob above", show=False, tooltip="To the knob above", id="choice.above"),
        Binding("down", "app.focus_next", "Knob below", show=False, tooltip="To the knob below", id="choice.below"),
    ]

    ALLOW_SELECT = False

    value: reactive[str] = reactive("")
    running: reactive[str] = reactive("")
    compares: reactive[bool] = reactive(False)

    class Changed(Message):
        """The operator chose."""

        def __init__(self, choice: Choice, value: str) -> None:
            self.choice = choice
            self.value = value
            super().__init__()

        @property
        def control(self) -> Choice:
            """The choice made."""
            return self.choice

    class Opened(Message):
        """The operator wants the list of options."""

        def __init__(self, choice: Choice) -> None:
            self.choice = choice
            super().__init__()

    def __init__(self, label: str, options: tuple[Option, ...], *, label_width: int = 15, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.label = label
        self.options = options
        self.label_width = label_width

    @property
    def differs(self) -> bool:
        """Whether the value is not the running server's."""
        return self.compares and self.value != self.running

    def render(self) -> Content:
        """Label and value between two arrows to click."""
        focused = self.has_focus
        pointer = "▸" if focused else "•" if self.differs else " "
        label = clip(self.label, self.label_width)
        head = f"{pointer} {label}{' ' * (self.label_width - width(label))}"
        label_style = "bold $primary" if focused else "$warning" if self.differs else "$foreground"
        arrows = "$primary" if focused else "$foreground 40%"
        style = "bold $warning" if self.differs else "bold" if focused else ""
        room = max(4, self.size.width - self.label_width - 6)
        shown = clip(self._label_of(self.value), room)
        return Content.assemble((head, label_style), ("‹ ", arrows), (shown, style), (" ›", arrows))

    def _label_of(self, key: str) -> str:
        return next((o.label for o in self.options if o.key == key), key)

    def _index(self) -> int:
        return next((i for i, o in enumerate(self.options) if o.key == self.value), 0)

    def action_move(self, steps: int) -> None:
        """Some options further, without going round."""
        self.take(self.options[min(len(self.options) - 1, max(0, self._index() + steps))].key)

    def action_end(self, which: int) -> None:
        """The first or last option."""
        self.take(self.options[-1 if which else 0].key)

    def action_reset(self) -> None:
        """The running server's value."""
        if self.compares:
            self.take(self.running)

    def action_open(self) -> None:
        """Asks for the list."""
        self.post_message(self.Opened(self))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """The arrows step, the value opens the list."""
        event.stop()
        self.focus()
        start = self.label_width + 2
        shown = width(clip(self._label_of(self.value), max(4, self.size.width - self.label_width - 6)))
        if event.x < start:
            return
        if event.x <= start + 1:
            self.action_move(-1)
        elif event.x in (start + 2 + shown, start + 3 + shown):
            self.action_move(1)
        else:
            self.action_open()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The option before."""
        event.stop()
        event.prevent_default()
        self.action_move(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The option after."""
        event.stop()
        event.prevent_default()
        self.action_move(1)

    def take(self, value: str) -> None:
        """Chooses, and says so when that changes anything."""
        if value != self.value:
            self.value = value
            self.post_message(self.Changed(self, value))
