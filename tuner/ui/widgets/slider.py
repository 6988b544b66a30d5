"""A slider on one line: label, track, value. By mouse (drag, click, wheel) and by keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import msgspec
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tuner.text import clip, width
from tuner.ui.widgets.scale import Scale

_TYPED = frozenset("0123456789.,")
#: Keys that say themselves what becomes of a value that is being typed.
_OWN_KEYS = frozenset({"enter", "delete"})
#: Digits behind the point that are shown of a value that has them; more there is no room for.
_MOST_DIGITS = 5


def fine(scale: Scale) -> Scale:
    """The values of ``scale`` with one digit more: those that are typed, and that a solved recipe has.

    Of a scale of whole numbers the scale itself.
    """
    if not scale.digits:
        return scale
    digits = scale.digits + 1
    return msgspec.structs.replace(scale, step=10.0**-digits, digits=digits)


class Slider(Widget, can_focus=True):
    """One knob. ``value`` None means the flag is not set; the knob then stands, hollow, where ``resting`` says."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Less", show=False, tooltip="One step down, also by wheel", id="slider.less"),
        Binding("right", "move(1)", "More", show=False, tooltip="One step up, also by wheel", id="slider.more"),
        Binding(
            "shift+left,pagedown",
            "leap(-1)",
            "Much less",
            show=False,
            tooltip="A coarse step down",
            id="slider.much_less",
        ),
        Binding(
            "shift+right,pageup", "leap(1)", "Much more", show=False, tooltip="A coarse step up", id="slider.much_more"
        ),
        Binding("home", "end(0)", "Lowest", show=False, tooltip="To the lowest value", id="slider.lowest"),
        Binding("end", "end(1)", "Highest", show=False, tooltip="To the highest value", id="slider.highest"),
        Binding(
            "enter",
            "type",
            "Type a value",
            show=False,
            tooltip="0 and . start it too; Enter takes it",
            id="slider.type",
        ),
        Binding(
            "backspace,delete",
            "reset",
            "As running",
            show=False,
            tooltip="The running server's value",
            id="slider.as_running",
        ),
        Binding("up", "app.focus_previous", "Knob above", show=False, tooltip="To the knob above", id="slider.above"),
        Binding("down", "app.focus_next", "Knob below", show=False, tooltip="To the knob below", id="slider.below"),
    ]

    #: A drag turns the knob; it must not mark text as well.
    ALLOW_SELECT = False

    value: reactive[float | None] = reactive(None)
    #: The running server's value, marked on the track.
    running: reactive[float | None] = reactive(None)
    compares: reactive[bool] = reactive(False)
    resting: reactive[float | None] = reactive(None)
    #: For each cell of the track, whether a start there would fail.
    bad: reactive[tuple[bool, ...]] = reactive(())
    #: What is being typed; None when nothing is.
    typed: reactive[str | None] = reactive(None)

    def __init__(
        self,
        label: str,
        scale: Scale,
        *,
        moved: Callable[[float | None], None],
        unit: str = "",
        label_width: int = 15,
        id: str,  # noqa: A002
    ) -> None:
        """``moved`` is told each value that the operator takes; None: back to unset.

        It is called at once and not by a message, so that the knob and what follows from it are drawn in one frame.
        """
        super().__init__(id=id)
        self._moved = moved
        self.label = label
        self.scale = scale
        self._fine = fine(scale)
        self.unit = unit
        self.label_width = label_width
        #: Where the mouse took hold, and the value that belongs there; None when it holds nothing.
        self._grabbed: tuple[int, float | None] | None = None

    @property
    def track_width(self) -> int:
        """Cells of the track."""
        return max(4, self.size.width - self.label_width - self._value_width - 3)

    @property
    def _value_width(self) -> int:
        return max(7, width(self._written(self.scale.high)) + 1)

    @property
    def _at(self) -> float:
        """Where the knob stands."""
        if self.value is not None:
            return self.value
        return self.resting if self.resting is not None else self.scale.low

    @property
    def _track_start(self) -> int:
        return self.label_width + 2

    @property
    def bounds(self) -> str:
        """``0.05 to 3.00``."""
        return f"{self.scale.low:,.{self.scale.digits}f} to {self.scale.high:,.{self.scale.digits}f}"

    @property
    def differs(self) -> bool:
        """Whether the value is not the running server's."""
        return self.compares and self.value != self.running

    def render(self) -> Content:
        """One line; what colour says is said by a sign too."""
        focused = self.has_focus
        pointer = "▸" if focused else "•" if self.differs else " "
        label = clip(self.label, self.label_width)
        head = f"{pointer} {label}{' ' * (self.label_width - width(label))}"
        label_style = "bold $primary" if focused else "$warning" if self.differs else "$foreground"
        return Content.assemble((head, label_style), self._track(focused), self._value_part())

    def _track(self, focused: bool) -> Content:
        cells = self.track_width
        if self.typed is not None:
            return Content.assemble((f"{clip(self.bounds, cells):^{cells}}", "$foreground 70%"))
        knob = self._cell(self._at)
        mark = self._cell(self.running) if self.compares and self.running is not None else None
        filled = "$primary" if focused else "$secondary"
        parts: list[tuple[str, str]] = []
        for cell in range(cells):
            fails = bool(self.bad) and self.bad[min(len(self.bad) - 1, cell * len(self.bad) // cells)]
            if cell == knob:
                sign = "●" if self.value is not None else "○"
                parts.append((sign, "bold $error" if self._fails else f"bold {filled}"))
            elif cell == mark:
                parts.append(("┃", "$foreground"))
            elif fails:
                parts.append(("╌", "$error"))
            else:
                parts.append(("━", filled) if cell < knob else ("─", "$foreground 40%"))
        return Content.assemble(*parts)

    @property
    def _fails(self) -> bool:
        """Whether a start fails where the knob stands: between two places that were tried, only if both do."""
        if not self.bad:
            return False
        place = round(self.scale.position(self._at) * (len(self.bad) - 1), 6)
        return self.bad[math.floor(place)] and self.bad[math.ceil(place)]

    def _value_part(self) -> Content:
        wide = self._value_width
        if self.typed is not None:
            shown = (self.typed + "▏")[-wide:]
            return Content.assemble((f" {shown:>{wide}}", "bold reverse"))
        shown = "auto" if self.value is None else self._written(self.value)
        style = "bold $warning" if self.differs else "bold" if self.has_focus else ""
        return Content.assemble((f" {shown:>{wide}}", style))

    def _written(self, value: float) -> str:
        """The value as it is set: with the digits that it has, and never fewer than the scale's own."""
        digits = self.scale.digits
        number = f"{value:,.{digits}f}"
        if digits:
            whole, _, behind = f"{value:,.{_MOST_DIGITS}f}".partition(".")
            number = f"{whole}.{behind.rstrip('0').ljust(digits, '0')}"
        return f"{number} {self.unit}" if self.unit else number

    def _cell(self, value: float) -> int:
        return round(self.scale.position(value) * (self.track_width - 1))

    # keys

    def action_move(self, steps: int) -> None:
        """Some steps up or down; a value that is set keeps its finer digits."""
        if self.value is None:
            self._take(self.scale.moved(self._at, steps))
        else:
            self._take(self._fine.moved(self.value, steps * round(self.scale.step / self._fine.step)))

    def action_leap(self, direction: int) -> None:
        """A coarse step."""
        self.action_move(direction * self.scale.coarse)

    def action_end(self, which: int) -> None:
        """To the lowest or highest value."""
        self._take(self.scale.high if which else self.scale.low)

    def action_reset(self) -> None:
        """The running server's value."""
        self.typed = None
        self._take(self.running)

    def action_type(self) -> None:
        """Opens the value for typing, or takes what was typed."""
        if self.typed is None:
            self.typed = ""
            return
        text, self.typed = self.typed.replace(",", ""), None
        if not text:
            return
        try:
            number = float(text)
        except ValueError:
            self.notify(f"{text!r} is not a number.", severity="warning", markup=False)
            return
        held = self._fine.snap(number)
        if held != number:
            self.notify(
                f"{self.label}: took {self._written(held)}, the nearest between "
                f"{self._written(self.scale.low)} and {self._written(self.scale.high)}.",
                markup=False,
            )
        self._take(held)

    def on_key(self, event: events.Key) -> None:
        """Digits go into the value while it is open; 0 and the point open it, Esc drops what was typed."""
        if self.typed is None:
            if event.character in ("0", "."):
                self.typed = event.character
                event.stop()
                event.prevent_default()
            return
        if event.key == "escape":
            self.typed = None
        elif event.key == "backspace":
            self.typed = self.typed[:-1]
        elif event.character in _TYPED:
            self.typed += event.character or ""
        else:
            if event.key not in _OWN_KEYS:
                # Whoever goes on with it open, to another knob or to the restart, means what it says.
                self.action_type()
            return
        event.stop()
        event.prevent_default()

    def on_blur(self) -> None:
        """What was typed is taken, as by any key that goes on."""
        if self.typed is not None:
            self.action_type()

    # mouse

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Grabs the knob; a click on the value opens it for typing, one on the label only focuses."""
        event.stop()
        self.focus()
        if event.button != 1 or event.x < self._track_start:
            return
        if event.x >= self._track_start + self.track_width:
            self.typed = ""
            return
        # A cell stands for many values: taking hold of the knob where it stands must not turn it.
        if event.x - self._track_start != self._cell(self._at):
            self._take(self._value_at(event.x))
        self._grabbed = event.x, self.value
        self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Drags the knob; back where it was taken hold of it has its value again."""
        if self._grabbed is not None:
            event.stop()
            start, value = self._grabbed
            self._take(value if event.x == start else self._value_at(event.x))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Lets the knob go."""
        if self._grabbed is not None:
            event.stop()
            self._grabbed = None
            self.release_mouse()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """One step up."""
        event.stop()
        event.prevent_default()
        self.action_move(1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """One step down."""
        event.stop()
        event.prevent_default()
        self.action_move(-1)

    def _value_at(self, x: int) -> float:
        return self.scale.at((x - self._track_start) / max(1, self.track_width - 1))

    def _take(self, value: float | None) -> None:
        if value != self.value:
            self.value = value
            self._moved(value)
