"""Lines of which only those that changed are sent to the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Region, Size
from textual.widget import Widget

#: Blank lines held at the end.
_HELD = 3


class Rows(Widget):
    """One line of the terminal each. Textual sends a widget that is refreshed whole; this one line by line."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[Content, ...] = ()
        #: What the lines were made for: those of another width are of no use.
        self._made_for = Size(0, 0)

    def lines(self, cells: int) -> Sequence[Content]:
        """What is shown in a width of ``cells``; no line is longer than that."""
        raise NotImplementedError

    def redraw(self) -> None:
        """To be called when what is shown has changed."""
        size, before, same = self.size, self._rows, self._made_for == self.size
        if not size.width:
            self.refresh(layout=True)
            return
        self._make()
        if not same or len(before) != len(self._rows):
            self.refresh(layout=True)
            return
        # Contents are equal by their text alone.
        pairs = enumerate(zip(before, self._rows, strict=True))
        changed = [Region(0, y, size.width, 1) for y, (old, new) in pairs if not old.is_same(new)]
        if changed:
            self.refresh(*changed)

    def _make(self) -> None:
        rows = tuple(self.lines(self.size.width))
        # A line less is a blank one more: another height would lay out and send everything.
        missing = len(self._rows) - len(rows) if self._made_for.width == self.size.width else 0
        self._rows = (*rows, *[Content()] * (missing if 0 < missing <= _HELD else 0))
        self._made_for = self.size

    def render(self) -> Content:
        """All lines, of the width that there is now: a scrollbar that comes or goes makes it another."""
        if self._made_for != self.size:
            self._make()
        return Content("\n").join(self._rows)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Of the width to come: Textual asks ``render``, which knows the last one."""
        return len(self._rows if width == self._made_for.width else self.lines(width))
