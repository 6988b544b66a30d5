"""The pools of two rounds as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tuner.ui.widgets.palette import meter
from tuner.ui.wording import pools_of, tokens

if TYPE_CHECKING:
    from tuner.ui.screens.compare import Pair


class PairBars(Widget):
    """KV tokens, state slots and requests at once, the larger of both rounds filling the line."""

    pair: reactive[Pair | None] = reactive(None, layout=True)

    def render(self) -> Content:
        """Two lines a number."""
        pair = self.pair
        if pair is None:
            return Content("")
        cells = max(10, (self.size.width or 80) - 34)
        lines: list[Content] = []
        titles = ("KV tokens", "State slots", "Requests")
        for title, old, new in zip(titles, pools_of(pair.old), pools_of(pair.new), strict=True):
            if not old and not new:
                continue
            most = max(old or 0, new or 0)
            for label, name, count, style in (
                (title, pair.old.name, old, "$foreground 60%"),
                ("", pair.new.name, new, "$primary"),
            ):
                lines.append(
                    Content.assemble(
                        (f"{label:<13}", "$foreground 60%"),
                        (f"{name:>6} ", style),
                        meter(count, most, cells, style=style),
                        (f"{tokens(count):>12}", "bold"),
                    )
                )
            lines.append(Content(""))
        return Content("\n").join(lines[:-1])
