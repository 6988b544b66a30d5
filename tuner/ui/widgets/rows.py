"""Lines of which only those that changed are sent to the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Region
from textual.widget import Widget

#: Blank lines held at the end.
_HELD = 3


class Rows(Widget):
    """One line of the terminal each. Textual sends a widget that is refreshed whole; this one line by line."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[Content, ...] = ()

    def put(self, rows: Sequence[Content]) -> None:
        """Shows these lines, none of them longer than the widget is wide."""
        # A line less is a blank one more: another height would lay out and send everything.
        missing = len(self._rows) - len(rows)
        blank = missing if 0 < missing <= _HELD else 0
        before, self._rows = self._rows, (*rows, *[Content()] * blank)
        if len(before) != len(self._rows):
            self.refresh(layout=True)
            return
        wide = self.size.width
        # Contents are equal by their text alone.
        pairs = enumerate(zip(before, self._rows, strict=True))
        changed = [Region(0, y, wide, 1) for y, (old, new) in pairs if not old.is_same(new)]
        if changed:
            self.refresh(*changed)

    def render(self) -> Content:
        """All lines."""
        return Content("\n").join(self._rows)
