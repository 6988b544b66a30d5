"""Lines of a log with marks for what was searched. Draws only the lines in sight, so length costs nothing.

Textual's RichLog renders every line as it is written and cannot mark it later; Log cannot mark at all.
"""

from __future__ import annotations

from typing import ClassVar

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tuner.text import width

#: Lines kept; older ones fall out.
KEPT = 20_000
_BAD = ("error", "exception", "traceback", "killed", "not enough", "out of memory", "fatal")
_WARN = ("warning", "warn ", "capped")


class LogView(ScrollView, can_focus=True):
    """A log. ``following`` keeps its end in sight."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False, tooltip="A line up; following stops", id="lines.up"),
        Binding("down", "scroll_down", "Down", show=False, tooltip="A line down", id="lines.down"),
        Binding("pageup", "page_up", "Page up", show=False, tooltip="A page up; following stops", id="lines.page_up"),
        Binding("pagedown", "page_down", "Page down", show=False, tooltip="A page down", id="lines.page_down"),
        Binding("left", "scroll_left", "Left", show=False, tooltip="Back to the start of long lines", id="lines.left"),
        Binding("right", "scroll_right", "Right", show=False, tooltip="Along long lines", id="lines.right"),
        Binding("home", "scroll_home", "Start", show=False, tooltip="To the first line kept", id="lines.home"),
        Binding("end", "scroll_end", "End", show=False, tooltip="To the newest line", id="lines.end"),
    ]

    following: reactive[bool] = reactive(True)
    needle: reactive[str] = reactive("")

    class Counted(Message):
        """The number of lines or hits changed."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._lines: list[str] = []
        self._pending = ""
        self._wide = 0
        self.hits: list[int] = []
        self.hit = -1

    @property
    def count(self) -> int:
        """Lines kept."""
        return len(self._lines)

    @property
    def found(self) -> str | None:
        """The line of the hit one is at."""
        return self._lines[self.hits[self.hit]] if 0 <= self.hit < len(self.hits) else None

    def in_sight(self) -> list[str]:
        """The lines on the screen, in full, with the one that has not ended."""
        first = self.scroll_offset.y
        lines = [*self._lines[first : first + self.size.height], self._pending]
        return [line for line in lines[: self.size.height] if line]

    def clear(self) -> None:
        """Forgets every line."""
        self._lines, self._pending, self._wide, self.hits, self.hit = [], "", 0, [], -1
        self._resized()

    def add(self, lines: list[str], pending: str) -> None:
        """Appends lines, and replaces the one not ended yet."""
        if not lines and pending == self._pending:
            return
        self._pending = pending
        first = len(self._lines)
        self._lines += lines
        self._wide = max([self._wide, *(_cells(line) for line in (*lines, pending))])
        if self.needle:
            self.hits += [first + i for i, line in enumerate(lines) if self.needle.lower() in line.lower()]
        dropped = len(self._lines) - KEPT
        if dropped > 0:
            del self._lines[:dropped]
            self.hits = [h - dropped for h in self.hits if h >= dropped]
        self._resized()

    def watch_needle(self) -> None:
        """Searches anew, from the end."""
        wanted = self.needle.lower()
        self.hits = [i for i, line in enumerate(self._lines) if wanted in line.lower()] if wanted else []
        self.hit = -1
        self.refresh()
        if self.hits:
            self.seek(-1)
        self.post_message(self.Counted())

    def watch_following(self) -> None:
        """Back to the end."""
        self.keep_end()

    def on_resize(self) -> None:
        """The end stays in sight."""
        self.keep_end()

    def keep_end(self) -> None:
        """Scrolls to the end while following; after the layout, which has to know the new length first."""
        if self.following and self.scroll_y != self.max_scroll_y:
            self.call_after_refresh(self.scroll_end, animate=False, immediate=True, force=True)

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Scrolling up stops following; reaching the end starts it again."""
        super().watch_scroll_y(old, new)
        if new >= self.max_scroll_y:
            self.following = self.following or old != new
        elif new < old:
            self.following = False

    def seek(self, steps: int) -> None:
        """To another hit, round and round."""
        if not self.hits:
            return
        self.hit = (self.hit + steps) % len(self.hits) if self.hit >= 0 else len(self.hits) - 1
        self.following = False
        line = self._lines[self.hits[self.hit]]
        end = _cells(line[: line.lower().find(self.needle.lower()) + len(self.needle)])
        x = 0 if end <= self.size.width else end - self.size.width // 2
        self.scroll_to(x=x, y=max(0, self.hits[self.hit] - self.size.height // 2), animate=False)
        self.refresh()
        self.post_message(self.Counted())

    def render_line(self, y: int) -> Strip:
        """One line in sight."""
        scroll_x, scroll_y = self.scroll_offset
        number = scroll_y + y
        base = self.rich_style
        if number < len(self._lines):
            text = self._lines[number]
        elif number == len(self._lines):
            text = self._pending
        else:
            return Strip.blank(self.size.width, base)
        strip = Strip(self._segments(text, number, base))
        return strip.crop_extend(scroll_x, scroll_x + self.size.width, base)

    def _segments(self, text: str, number: int, base: Style) -> list[Segment]:
        style = base + self._tone(text)
        if not self.needle or self.needle.lower() not in text.lower():
            return [Segment(text, style)]
        current = bool(self.hits) and 0 <= self.hit < len(self.hits) and self.hits[self.hit] == number
        mark = base + Style(reverse=True, bold=current)
        segments: list[Segment] = []
        at, wanted, lower = 0, self.needle.lower(), text.lower()
        # Lower-casing changes the length of a few letters; then the marks would be off, and the line stays plain.
        if len(lower) != len(text):
            return [Segment(text, mark)]
        while (found := lower.find(wanted, at)) >= 0:
            segments += [Segment(text[at:found], style), Segment(text[found : found + len(wanted)], mark)]
            at = found + len(wanted)
        return [*segments, Segment(text[at:], style)]

    def _tone(self, text: str) -> Style:
        lower = text[:400].lower()
        if any(word in lower for word in _BAD):
            return Style(color=self._colour("error"), bold=True)
        if any(word in lower for word in _WARN):
            return Style(color=self._colour("warning"))
        return Style()

    def _colour(self, name: str) -> RichColor:
        """A colour of the theme; those of a terminal's own sixteen are named otherwise in Textual than in Rich."""
        return Color.parse(self.app.theme_variables[name]).rich_color

    def _resized(self) -> None:
        self.virtual_size = Size(self._wide, len(self._lines) + (1 if self._pending else 0))
        self.keep_end()
        self.refresh()
        self.post_message(self.Counted())


def _cells(line: str) -> int:
    """Measuring cell by cell is slow, and logs are nearly all ASCII."""
    return len(line) if line.isascii() else width(line)
