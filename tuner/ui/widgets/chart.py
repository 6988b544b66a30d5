"""KV tokens in use while two rounds were measured, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.reactive import reactive
from textual.widget import Widget
from textual_plotext import PlotextPlot

from tuner.metrics.model import Readings

if TYPE_CHECKING:
    from tuner.ui.screens.compare import Pair

_OLD, _NEW = "gray", "cyan"


class PairChart(Widget):
    """One line a round, minutes against thousands of tokens."""

    pair: reactive[Pair | None] = reactive(None, init=False)

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.set_reactive(PairChart.pair, pair)

    def compose(self) -> ComposeResult:
        """One plot."""
        yield PlotextPlot()

    def on_mount(self) -> None:
        """Draws."""
        self.watch_pair()

    def watch_pair(self) -> None:
        """Draws anew."""
        pair = self.pair
        if pair is None or not self.is_mounted:
            return
        widget = self.query_one(PlotextPlot)
        plot = widget.plt
        plot.clear_figure()
        for name, samples, colour in (
            (pair.old.name, pair.old_samples, _OLD),
            (pair.new.name, pair.new_samples, _NEW),
        ):
            minutes, used = _series(samples)
            if minutes:
                plot.plot(minutes, used, label=name, color=colour, marker="braille")
        plot.title("KV tokens in use, thousands, over the minutes of the round")
        widget.refresh()


def _series(samples: Sequence[Readings]) -> tuple[list[float], list[float]]:
    taken = [(s.at, s.kv_used_tokens) for s in samples if s.kv_used_tokens is not None]
    if not taken:
        return [], []
    start = taken[0][0]
    return [(at - start) / 60 for at, _ in taken], [used / 1000 for _, used in taken]
