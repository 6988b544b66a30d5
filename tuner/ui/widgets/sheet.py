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
        self.refresh(layout=wide == 0 or self.text().get_height({}, wide) != self.content_size.height)
