"""Plots by plotext: two rounds over the time they were measured, one measure of the running server over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from textual.app import ComposeResult
from textual.reactive import reactive
from textual.widget import Widget
from textual_plotext import PlotextPlot

from tuner.text import plain
from tuner.ui.trend import GAP_S, Curve, Told, boundaries

if TYPE_CHECKING:
    from tuner.ui.screens.compare import Pair

_OLD, _NEW = "gray", "cyan"
#: Times written below a plot.
_TICKS = 6
#: Parts that the scale of a share of something is divided into.
_LEVELS = 4


class Used(Protocol):
    """What a plot of KV use needs of a sample: readings, and moments of them."""

    @property
    def at(self) -> float:
        """Unix time."""

    @property
    def kv_used_tokens(self) -> int | None:
        """Tokens in use."""


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
        if self.app.current_theme.ansi:
            # Made from a terminal's own colours, which have no values, axes would be black on black.
            widget.theme = "clear"
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


class TraceChart(Widget):
    """A measure against the time of day; the beginning of another round is a line with its name."""

    def compose(self) -> ComposeResult:
        """One plot."""
        yield PlotextPlot()

    def show(self, told: Sequence[Told], curve: Curve, seconds: float, now: float) -> None:
        """Draws the moments of the last ``seconds`` before ``now`` (Unix time)."""
        widget = self.query_one(PlotextPlot)
        # A plot in colours is sent with a colour for each of its cells, a quarter of a megabyte.
        widget.theme = "clear"
        plot = widget.plt
        plot.clear_figure()
        start = now - seconds
        for line in _lines(told, curve, start):
            plot.plot(
                [at - start for at, _ in line],
                [value * curve.factor for _, value in line],
                color=_NEW,
                marker="braille",
            )
        for at, name in boundaries(told, now, seconds, round(seconds)).items():
            plot.vline(at, color=_OLD)
            plot.text(plain(name), at, 0, color=_OLD)
        plot.xlim(0, seconds)
        if curve.top is not None:
            plot.ylim(0, curve.top * curve.factor)
            levels = [curve.top * curve.factor * i / _LEVELS for i in range(_LEVELS + 1)]
            plot.yticks(levels, [f"{level:g}" for level in levels])
        form = "%H:%M" if seconds > 600 else "%H:%M:%S"
        places = [seconds * i / (_TICKS - 1) for i in range(_TICKS)]
        plot.xticks(places, [datetime.fromtimestamp(start + at).strftime(form) for at in places])
        widget.refresh()


def _lines(told: Sequence[Told], curve: Curve, start: float) -> list[list[tuple[float, float]]]:
    """Unbroken stretches of (Unix time, value): a gap of the readings is a gap of the line."""
    lines: list[list[tuple[float, float]]] = []
    before = None
    for moment, name in told:
        value = curve.value(moment)
        if moment.at < start or value is None:
            continue
        if before is None or name != before[1] or moment.at - before[0] > 2 * GAP_S:
            lines.append([])
        lines[-1].append((moment.at, value))
        before = (moment.at, name)
    return lines


def _series(samples: Sequence[Used]) -> tuple[list[float], list[float]]:
    taken = [(s.at, s.kv_used_tokens) for s in samples if s.kv_used_tokens is not None]
    if not taken:
        return [], []
    start = taken[0][0]
    return [(at - start) / 60 for at, _ in taken], [used / 1000 for _, used in taken]
