"""A button that shows by brackets, too, that it is in focus: not every terminal has colours."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size
from textual.widgets import Button


class KeyButton(Button):
    """``[Restart (y)]`` in focus, `` Restart (y) `` else."""

    def render(self) -> Content:
        """The label in its brackets."""
        left, right = ("[", "]") if self.has_focus else (" ", " ")
        return Content.assemble(left, Content.from_text(self.label, markup=False), right)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """Room for the brackets too."""
        return super().get_content_width(container, viewport) + 2
