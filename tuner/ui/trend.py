"""The last minutes and hours of readings, for charts: fine for ten minutes, coarse for a day. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from tuner.metrics.model import GpuReading, Readings
from tuner.rounds.samples import Moment, thinned

#: Seconds of the fine part, at one look a second, and of the coarse part with the time between its moments.
FINE_S = 600.0
COARSE_S = 86_400.0
COARSE_EVERY_S = 30.0
#: Seconds without a moment from which on a chart shows a gap: an idle server's readings are kept every 10 s.
GAP_S = 25.0


class Told(NamedTuple):
    """A moment and whose it was: a round's name, or how the server is called."""

    moment: Moment
    name: str


class Curve(msgspec.Struct, frozen=True):
    """A measure as charts show it: its title, the value of a moment, the end of the scale (None: the highest value),
    how a value is written, and its unit on an axis with what a value is multiplied by for it."""

    title: str
    value: Callable[[Moment], float | None]
    top: float | None
    form: Callable[[float], str]
    unit: str = ""
    factor: float = 1.0


class Stretch(msgspec.Struct, frozen=True):
    """What a chart of ``cells`` columns shows of a curve: its values by column, oldest first, and the newest value."""

    values: tuple[float | None, ...]
    last: float | None


class Trend:
    """Moments in the order of time. What is read from the history goes before what is taken live."""

    def __init__(self) -> None:
        self._fine: deque[Told] = deque()
        self._coarse: deque[Told] = deque()
        self._group: list[Moment] = []
        self._group_name = ""

    def take(self, readings: Readings, name: str, gpus: Sequence[GpuReading] = ()) -> None:
        """One look at the server called ``name`` and at its cards."""
        moment = Moment.of(readings, gpus)
        if self._fine and moment.at <= self._fine[-1].moment.at:
            if moment.at > self._fine[-1].moment.at - GAP_S:
                return
            # The clock was set back: what is there lies in a future that may come again.
            self._fine.clear()
            self._coarse.clear()
            self._group = []
        self._fine.append(Told(moment, name))
        while self._fine and self._fine[0].moment.at < moment.at - FINE_S:
            self._fine.popleft()
        group = self._group
        if group and (name != self._group_name or moment.at // COARSE_EVERY_S != group[0].at // COARSE_EVERY_S):
            self._close_group()
        self._group.append(moment)
        self._group_name = name

    def _close_group(self) -> None:
        told = [Told(moment, self._group_name) for moment in thinned(self._group, COARSE_EVERY_S)]
        self._group = []
        self._coarse.extend(told)
        while self._coarse and self._coarse[0].moment.at < told[-1].moment.at - COARSE_S:
            self._coarse.popleft()

    def earlier(self, fine: Iterable[Told], coarse: Iterable[Told]) -> None:
        """Moments from the history, in the order of time; what overlaps with those taken live is left out."""
        self._fine = _before(self._fine, fine)
        self._coarse = _before(self._coarse, coarse, self._group[0].at if self._group else None)

    def told(self, seconds: float) -> Sequence[Told]:
        """What there is for charts of the last ``seconds``."""
        if seconds <= FINE_S:
            return self._fine
        return [*self._coarse, *(Told(moment, self._group_name) for moment in self._group)]


def _before(live: deque[Told], kept: Iterable[Told], until: float | None = None) -> deque[Told]:
    end = live[0].moment.at if live else until
    return deque((*(told for told in kept if end is None or told.moment.at < end), *live))


def stretch(told: Sequence[Told], curve: Curve, end: float, seconds: float, cells: int) -> Stretch:
    """The highest value of ``curve`` in each of ``cells`` columns that end with the one of ``end`` (Unix time).

    Columns begin at whole multiples of their width, so that a chart moves by whole columns. A column without a moment
    repeats the one before it, unless more than ``GAP_S`` passed since the last moment.
    """
    width = seconds / cells
    newest = int(end // width)
    first = newest - cells + 1
    values: list[float | None] = [None] * cells
    seen: list[float | None] = [None] * cells
    for moment, _ in told:
        column = int(moment.at // width) - first
        if not 0 <= column < cells:
            continue
        seen[column] = moment.at
        value = curve.value(moment)
        if value is not None:
            held = values[column]
            values[column] = value if held is None else max(held, value)
    for column in range(1, cells):
        at = seen[column - 1]
        if seen[column] is None and at is not None and (first + column) * width - at < GAP_S:
            values[column], seen[column] = values[column - 1], at
    return Stretch(tuple(values), curve.value(told[-1].moment) if told else None)


def boundaries(told: Sequence[Told], end: float, seconds: float, cells: int) -> dict[int, str]:
    """The columns in which another server begins, with its name."""
    width = seconds / cells
    first = int(end // width) - cells + 1
    found: dict[int, str] = {}
    before: str | None = None
    for moment, name in told:
        column = int(moment.at // width) - first
        if name != before and before is not None and 0 <= column < cells:
            found[column] = name
        before = name
    return found


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _speed(value: float) -> str:
    return f"{value:,.0f} tokens/s"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


CURVES: tuple[Curve, ...] = (
    Curve("KV in use", lambda m: _share(m.kv_used_tokens, m.kv_total_tokens), 1.0, _percent, "%", 100.0),
    Curve("Slots in use", lambda m: _share(m.slots_used, m.slots_total), 1.0, _percent, "%", 100.0),
    Curve("Running", lambda m: m.running, None, _count, "requests"),
    Curve("Waiting", lambda m: m.queued, None, _count, "requests"),
    Curve("Decode", lambda m: m.decode_tokens_per_s, None, _speed, "tokens/s"),
    Curve("Prefill", lambda m: m.prefill_tokens_per_s, None, _speed, "tokens/s"),
    Curve("TTFT p95", lambda m: m.ttft_s.p95 if m.ttft_s else None, None, _seconds, "s"),
    Curve("ITL p95", lambda m: m.itl_s.p95 if m.itl_s else None, None, lambda v: f"{1000 * v:.0f} ms", "ms", 1000.0),
)
#: What is only known since the app opened, and told where there is room.
CARD_CURVES: tuple[Curve, ...] = (
    Curve("GPU busy", lambda m: _share(m.gpu_busy, 100), 1.0, _percent, "%", 100.0),
    Curve("VRAM in use", lambda m: m.vram_share, 1.0, _percent, "%", 100.0),
)
