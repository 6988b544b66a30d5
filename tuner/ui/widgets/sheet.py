"""A widget as high as its text."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

#: Cells of a widget that has not been laid out yet.
_UNKNOWN = 40


class Sheet(Widget):
    """Draws again without laying the whole screen out again, as long as its height stays."""

    def text(self, cells: int) -> Content:
        """What is shown in a width of ``cells``."""
        raise NotImplementedError

    def render(self) -> Content:
        """The text."""
        return self.text(self.size.width or _UNKNOWN)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Of the width to come: Textual asks ``render``, which knows the last one, and would lay out a second time."""
        return _height(self.text(width), width)

    def redraw(self) -> None:
        """To be called when what is shown has changed."""
        wide = self.content_size.width
        self.refresh(layout=wide == 0 or _height(self.text(wide), wide) != self.content_size.height)


def _height(text: Content, wide: int) -> int:
    """Lines that ``text`` takes; wrapping is only worked out where a line is too long."""
    lines = text.split("\n")
    if all(line.cell_length <= wide for line in lines):
        return len(lines)
    # Of a terminal that is dragged to nothing, Textual asks for a width of none, and cannot wrap to that.
    return text.get_height({}, max(1, wide))
