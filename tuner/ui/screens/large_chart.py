"""One measure over time, as large as the screen. Drawn by plotext, so slowly: four plots a second cost a quarter
of a core."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen

from tuner.ui.trend import CARD_CURVES, CURVES, Trend
from tuner.ui.widgets.chart import TraceChart

#: Seconds between two drawings.
EVERY_S = 10.0
_ALL = (*CURVES, *CARD_CURVES)


class LargeChartScreen(Screen[None]):
    """Left and right choose the measure. No dialog: what lies behind one is drawn, too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,down", "turn(1)", "Next", tooltip="The next measure"),
        Binding("left,up", "turn(-1)", "Before", tooltip="The measure before"),
        Binding("escape,c,enter", "dismiss", "Close", tooltip="Back"),
    ]

    def __init__(self, trend: Trend, seconds: float, words: str) -> None:
        super().__init__()
        self._trend = trend
        self._seconds, self._words = seconds, words
        self._place = 0

    def compose(self) -> ComposeResult:
        """A frame around the plot."""
        with Vertical(id="large") as box:
            box.border_subtitle = "← → another measure · Esc closes"
            yield TraceChart()

    def on_mount(self) -> None:
        """Draws now, and slowly from then on."""
        self.set_interval(EVERY_S, self._draw)
        self.call_after_refresh(self._draw)

    def action_turn(self, step: int) -> None:
        """Another measure that has values."""
        told = self._trend.told(self._seconds)
        for _ in _ALL:
            self._place = (self._place + step) % len(_ALL)
            if any(_ALL[self._place].value(moment) is not None for moment, _ in told):
                break
        self._draw()

    def _draw(self) -> None:
        curve = _ALL[self._place]
        self.query_one("#large").border_title = f"{curve.title}, {curve.unit}, last {self._words}"
        self.query_one(TraceChart).show(self._trend.told(self._seconds), curve, self._seconds, time.time())
