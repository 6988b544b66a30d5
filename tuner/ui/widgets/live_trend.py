"""The last minutes and hours of the running server: a line a reading, or a small chart each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from textual.content import Content

from tuner.text import clip, plain, width
from tuner.ui.trend import CARD_CURVES, CURVES, FINE_S, Curve, Stretch, Told, boundaries, stretch
from tuner.ui.widgets.rows import Rows
from tuner.ui.wording import NONE

_STEPS = " ▁▂▃▄▅▆▇█"
_FULL = 8
#: Columns of a title and of the newest value beside a line.
_TITLE, _LAST = 13, 15
#: Narrowest chart worth a second column, and the highest one worth its rows.
_TWO_FROM, _ROWS_MOST = 96, 7
#: Rows of each chart that those of the cards leave to the others.
_ROWS_LEAST = 2
_BOUNDARY = "┊"
#: Curves that the Tune screen has room for.
_SHORT = ("KV in use", "Slots in use", "Running", "Waiting", "Decode")


class LiveTrend(Rows):
    """KV use, slots in use, running and waiting requests and decode speed over the last ten minutes."""

    _told: Sequence[Told] = ()

    def show(self, told: Sequence[Told]) -> None:
        """Draws when a line has changed, and only while shown."""
        self._told = told
        if self.is_on_screen:
            self.redraw()

    def lines(self, cells: int) -> list[Content]:
        """A line a curve that has values."""
        told = self._told
        if not told:
            return [Content.assemble(("Nothing measured yet.", "$foreground 60%"))]
        wide = max(10, cells - _TITLE - _LAST)
        end = told[-1].moment.at
        drawn = [(c, stretch(told, c, end, FINE_S, wide)) for c in CURVES if c.title in _SHORT]
        return [_line(curve, what) for curve, what in drawn if any(v is not None for v in what.values)]


class TrendCharts(Rows):
    """A chart for each curve that has values, with the boundaries of rounds, as large as there is room for."""

    _told: tuple[Sequence[Told], float, str, float] = ((), FINE_S, "", 0.0)

    def show(self, told: Sequence[Told], seconds: float, words: str) -> None:
        """Draws when anything has changed, and only while shown."""
        self._told = told, seconds, words, time.time()
        if self.is_on_screen:
            self.redraw()

    def lines(self, cells: int) -> list[Content]:
        """All charts, as high as the widget."""
        told, seconds, words, now = self._told
        return charts(told, seconds, words, cells, self.size.height, now)


def charts(told: Sequence[Told], seconds: float, words: str, cells: int, rows: int, now: float) -> list[Content]:
    """All curves that are told, in one or two columns, and the time below; ``rows`` lines at the most."""
    columns = 2 if cells >= _TWO_FROM else 1
    wide = cells // columns - (2 if columns > 1 else 0)
    drawn = [(c, stretch(told, c, now, seconds, wide)) for c in CURVES]
    drawn = [(c, what) for c, what in drawn if any(v is not None for v in what.values)]
    if (rows - 1) // max(1, -(-(len(drawn) + len(CARD_CURVES)) // columns)) > _ROWS_LEAST:
        cards = [(c, stretch(told, c, now, seconds, wide)) for c in CARD_CURVES]
        drawn += [(c, what) for c, what in cards if any(v is not None for v in what.values)]
    if not drawn:
        return [Content.assemble(("Nothing measured in this time.", "$foreground 60%"))]
    bands = -(-len(drawn) // columns)
    high = max(1, min(_ROWS_MOST, (rows - 1) // bands - 1))
    bands = min(bands, max(1, (rows - 1) // (high + 1)))
    marks = boundaries(told, now, seconds, wide)
    lines: list[Content] = []
    for band in range(bands):
        pair = [_chart(c, what, wide, high, marks) for c, what in drawn[band * columns : (band + 1) * columns]]
        pair += [[Content(" " * wide)] * (high + 1)] * (columns - len(pair))
        lines += [Content("    ").join(row) for row in zip(*pair, strict=True)]
    foot = _axis(seconds, words, now, wide, marks)
    lines.append(Content("    ").join([foot] * columns))
    return lines


def _chart(curve: Curve, what: Stretch, cells: int, high: int, marks: Mapping[int, str]) -> list[Content]:
    known = [v for v in what.values if v is not None]
    top = curve.top if curve.top is not None else max(known)
    last = NONE if what.last is None else curve.form(what.last)
    scale = f"0 to {curve.form(top)}" if top > 0 else "all 0"
    gap = cells - width(curve.title) - width(last) - width(scale) - 2
    head = Content.assemble(
        (curve.title, "$foreground 70%"), " ", (last, "bold"), " " * max(1, gap + 1), (scale, "$foreground 60%")
    )
    return [head, *(_row(what.values, top, high, level, marks) for level in reversed(range(high)))]


def _row(values: Sequence[float | None], top: float, high: int, level: int, marks: Mapping[int, str]) -> Content:
    signs = []
    for column, value in enumerate(values):
        steps = 0 if value is None or top <= 0 else round(min(1.0, max(0.0, value / top)) * high * _FULL)
        # A value that is there is seen, however small.
        steps = max(steps, 1) if value is not None else steps
        sign = _STEPS[max(0, min(_FULL, steps - level * _FULL))]
        signs.append(_BOUNDARY if sign == " " and column in marks else sign)
    return Content.assemble(("".join(signs), "$primary"))


def _axis(seconds: float, words: str, now: float, cells: int, marks: Mapping[int, str]) -> Content:
    """When the chart begins and ends, and where another round begins."""
    start = now - seconds
    form = "%H:%M" if seconds >= FINE_S else "%H:%M:%S"
    left, right = (datetime.fromtimestamp(at).strftime(form) for at in (start, now - now % (seconds / cells)))
    if cells > 40:
        left = f"{left} · {words}"
    line = [*f"{left}{' ' * max(1, cells - len(left) - len(right))}{right}"]
    for column, name in marks.items():
        shown = f"{_BOUNDARY}{clip(plain(name), 8)}"
        if column >= len(left) + 1 and column + len(shown) < cells - len(right):
            line[column : column + len(shown)] = shown
    return Content.assemble(("".join(line)[:cells], "$foreground 60%"))


def _line(curve: Curve, what: Stretch) -> Content:
    known = [v for v in what.values if v is not None]
    top = curve.top if curve.top is not None else max(1.0, *known)
    signs = "".join(" " if v is None else _STEPS[1 + min(7, int(max(0.0, v) / top * 7.99))] for v in what.values)
    last = NONE if what.last is None else curve.form(what.last)
    return Content.assemble(
        (f"{curve.title:<{_TITLE}}", "$foreground 60%"), (signs, "$primary"), (f"{last:>{_LAST}}", "bold")
    )
