"""A list of rows in colours of which the chosen row can be read in every theme."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widgets import OptionList

from tuner.ui.themes import FEW_COLOURS

#: A cell of text, and what stands at both sides of it.
_LEAST_CELLS = 3


class RowList(OptionList):
    """In sixteen colours none has all others readable on it: there the chosen row has the cursor's colour alone."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Of a width that text can be wrapped to: that of a terminal dragged to nothing is none."""
        return super().get_content_height(container, viewport, max(_LEAST_CELLS, width))

    def render_line(self, y: int) -> Strip:
        """A line of the list."""
        strip = super().render_line(y)
        if self.app.theme != FEW_COLOURS.name:
            return strip
        cursor = self.get_visual_style("option-list--option", "option-list--option-highlighted").rich_style
        alone = Style(color=cursor.color)
        return Strip(
            [
                Segment(text, style + alone if style and style.bgcolor == cursor.bgcolor else style, control)
                for text, style, control in strip
            ],
            strip.cell_length,
        )


def list_cells(listing: OptionList) -> int:
    """Cells of a row of ``listing``, with its scroll bar or without."""
    return max(20, listing.content_region.width - 1)
