"""A widget as high as its text."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget


class Sheet(Widget):
    """Draws again without laying the whole screen out again, as long as its height stays."""

    def text(self) -> Content:
        """What is shown, as wide as the widget is."""
        raise NotImplementedError

    def render(self) -> Content:
        """The text."""
        return self.text()

    def redraw(self) -> None:
        """To be called when what is shown has changed."""
        wide = self.content_size.width
        self.refresh(layout=wide == 0 or _height(self.text(), wide) != self.content_size.height)


def _height(text: Content, wide: int) -> int:
    """Lines that ``text`` takes; wrapping is only worked out where a line is too long."""
    lines = text.split("\n")
    if all(line.cell_length <= wide for line in lines):
        return len(lines)
    return text.get_height({}, wide)
