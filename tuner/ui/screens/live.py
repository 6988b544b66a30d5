"""Live: every reading of the running server, what binds it now, its cards, and how all that went over time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from textual import work
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget
from textual.worker import get_current_worker

from tuner.metrics.binding import Binds, binding
from tuner.metrics.model import GpuProcess, GpuReading
from tuner.metrics.words import gpu_words, rows
from tuner.rounds.errors import HistoryError
from tuner.server.holders import Holder
from tuner.server.holders import holders as find_holders
from tuner.text import plain, width, wrapped
from tuner.ui.card_lines import card_lines, holder_words, names_line
from tuner.ui.screens.base import Place
from tuner.ui.trend import COARSE_EVERY_S, COARSE_S, FINE_S, Told
from tuner.ui.widgets.live_trend import TrendCharts
from tuner.ui.widgets.rows import Rows
from tuner.ui.wording import answers
from tuner.units import format_gib

if TYPE_CHECKING:
    from tuner.rounds.history import History
    from tuner.server.model import ServerHandle
    from tuner.session.watching import Look

#: Seconds that the charts show, by key; each finer step is what the wall of a screen can still tell apart.
SPANS: tuple[tuple[float, str], ...] = (
    (300.0, "5 minutes"), (600.0, "10 minutes"), (1800.0, "30 minutes"), (7200.0, "2 hours"), (28_800.0, "8 hours"),
    (86_400.0, "24 hours"),
)  # fmt: skip
#: Seconds between two drawings of charts of more than ten minutes: their columns are wider than that.
_SLOW_S = 10.0
_NAME = 13
_BINDS = "Binds now"
#: Cells from which on what binds always takes one line.
_ROOMY = 100
#: Cards from which on a narrow terminal gives them and the readings more rows than the charts.
_FEW_CARDS = 4
#: Name, words and style of each.
Lines: TypeAlias = tuple[tuple[str, str, str], ...]


class Facts(Rows):
    """What binds, what the server changed on its own, every reading, and the cards."""

    _look: Look | None = None
    _holders: Mapping[int, Holder] = {}

    def show(self, look: Look | None, holders: Mapping[int, Holder]) -> None:
        """Takes one look, and what is known of the processes on the cards."""
        self._look, self._holders = look, holders
        self.redraw()

    def lines(self, cells: int) -> list[Content]:
        """Several cards go before the readings: which one runs out is seen without scrolling."""
        look, holders = self._look, self._holders
        if look is None or len(look.gpus) < 2:
            return _drawn(facts(look, holders, cells), cells)
        above = _drawn(head(look), cells)
        if cells >= _ROOMY:
            above.append(Content())
        below = (("", "", ""), *readings(look), ("", "", ""), *holding(look, holders, cells))
        return [*above, *card_lines(look.gpus, cells), *_drawn(below, cells)]


def _drawn(told: Lines, cells: int) -> list[Content]:
    """Names at the left, words wrapped beside them."""
    drawn: list[Content] = []
    held = False
    for name, words, style in told:
        if held and not name and not words:
            # The line held for what binds parts it from the rest already.
            continue
        # An empty name leaves its column to the words.
        left = f"{name}{' ' * max(1, _NAME - width(name))}" if name else ""
        parts = wrapped(words, max(20, cells - width(left)))
        held = name == _BINDS and cells < _ROOMY
        if held:
            # Its length changes by the second: what is below must not move with it.
            parts += [""] * (2 - len(parts))
        for number, part in enumerate(parts):
            lead = left if number == 0 else " " * width(left)
            drawn.append(Content.assemble((lead, "$foreground 60%"), (part, style)))
    return drawn


class LiveScreen(Place):
    """Readings and charts."""

    mode = "live"
    purpose = "How the running server does now and did before."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("minus", "span(1)", "Longer", key_display="-", tooltip="Charts of a longer time", id="live.longer"),
        Binding("plus,equals_sign", "span(-1)", "Shorter", tooltip="Charts of a shorter time",
                id="live.shorter"),
        Binding("c", "large", "Large chart", tooltip="One measure over the whole time, as large as the screen",
                id="live.large"),
    ]  # fmt: skip

    span: reactive[int] = reactive(1, init=False)

    def __init__(self) -> None:
        super().__init__()
        self._drawn_at = 0.0
        self._read = False
        #: What is known of the processes on the cards, and of which ones.
        self._holders: dict[int, Holder] = {}
        self._on_cards: tuple[int | None, frozenset[tuple[int, str | None]]] = (None, frozenset())

    def body(self) -> Iterable[Widget]:
        """Readings, then charts; side by side where there is room."""
        with_focus = VerticalScroll(Facts(), id="facts")
        yield Container(with_focus, Vertical(TrendCharts(), id="charts"), id="live-desk")

    def on_mount(self) -> None:
        """Follows the looks."""
        self.watch(self.app, "look", self._live, init=False)
        self.watch(self.app, "history_version", self._again, init=False)
        self.query_one("#facts").focus()

    def on_screen_resume(self) -> None:
        """Catches up; what was kept before the app opened is read once."""
        self._live(charts=True)
        if not self._read:
            self._earlier()

    def on_resize(self) -> None:
        """Other columns."""
        self.call_after_refresh(self._live, charts=True)

    def action_span(self, step: int) -> None:
        """Longer or shorter."""
        self.span = max(0, min(len(SPANS) - 1, self.span + step))

    def watch_span(self) -> None:
        """Draws at once."""
        self._charts()

    def action_large(self) -> None:
        """One chart alone."""
        from tuner.ui.screens.large_chart import LargeChartScreen  # brings plotext

        self.app.push_screen(LargeChartScreen(self.tuner.trend, *SPANS[self.span]))

    def _again(self) -> None:
        if self._seen:
            self._live()

    @property
    def _seen(self) -> bool:
        """Whether it is in sight: alone, or behind a dialog. Textual takes any screen below another one for that."""
        return self.is_active or (self.is_current and self.app.screen.is_modal)

    def _live(self, charts: bool = False) -> None:
        if not self._seen:
            return
        look = self.tuner.look
        self.query_one("#live-desk").set_class(look is not None and len(look.gpus) > _FEW_CARDS, "-many")
        self._know(look)
        self.query_one(Facts).show(look, self._holders)
        seconds = SPANS[self.span][0]
        if charts or seconds <= FINE_S or time.monotonic() - self._drawn_at >= _SLOW_S:
            self._charts()

    def _know(self, look: Look | None) -> None:
        """Finds out who is on the cards, when others are there than before."""
        processes = [process for gpu in look.gpus for process in gpu.processes] if look is not None else []
        server = look.running.handle if look is not None and look.running is not None else None
        on_cards = (server.pid if server else None, frozenset((one.pid, one.name) for one in processes))
        if on_cards != self._on_cards:
            self._on_cards = on_cards
            self._find_holders(processes, server)

    @work(thread=True, exclusive=True, group="holders")
    def _find_holders(self, processes: list[GpuProcess], server: ServerHandle | None) -> None:
        found = find_holders(processes, server) if processes else {}
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._found_holders, found)

    def _found_holders(self, found: dict[int, Holder]) -> None:
        self._holders = found
        self._live()

    def _charts(self) -> None:
        if not self._seen:
            return
        self._drawn_at = time.monotonic()
        seconds, words = SPANS[self.span]
        self.query_one(TrendCharts).show(self.tuner.trend.told(seconds), seconds, words)

    @work(thread=True, exclusive=True, group="earlier")
    def _earlier(self) -> None:
        """Reads what was kept with the rounds before this app took over."""
        now = time.time()
        try:
            history = self.tuner.session.history
            fine = kept(history, now - FINE_S, 1.0)
            coarse = kept(history, now - COARSE_S, COARSE_EVERY_S)
        except HistoryError as error:
            self.app.call_from_thread(self.tuner.say, str(error), severity="error")
            return
        self.app.call_from_thread(self._take, fine, coarse)

    def _take(self, fine: list[Told], coarse: list[Told]) -> None:
        self._read = True
        self.tuner.trend.earlier(fine, coarse)
        self._charts()


def kept(history: History, since: float, every_s: float) -> list[Told]:
    """What the history has from ``since`` (Unix time) on, in the order of time. Raises HistoryError."""
    told = [
        Told(moment, f"r{number}")
        for number in history.sampled_since(since)
        for moment in history.moments(number, every_s, since)
    ]
    return sorted(told, key=lambda one: one.moment.at)


def facts(look: Look | None, holders: Mapping[int, Holder], cells: int) -> Lines:
    """Name, words and style of each line about a look, the cards last."""
    if look is None:
        return (("", "Looking for a running server …", "$foreground 70%"),)
    told = readings(look)
    return (*head(look), *((("", "", ""),) if told else ()), *told, *cards(look, holders, cells))


def head(look: Look) -> Lines:
    """What binds now, and what the server changed on its own or lacks."""
    if look.running is None:
        return (("", "No server runs. R starts one with the flags of the Tune screen.", "$foreground 70%"),)
    if look.readings is None or not answers(look.readings):
        return (("!", "The server does not answer: nothing of it is known now.", "bold $error"),)
    asked = look.running.handle.recipe.flags.get("max_running_requests")
    bound = binding(look.readings, asked if isinstance(asked, int) else None)
    calm = bound.kind in (Binds.NOTHING, Binds.UNKNOWN)
    lines = [(_BINDS, plain(bound.words), "bold" if calm else "bold $warning")]
    lines += [("! changed", plain(finding.title), "$warning") for finding in look.changed]
    if look.readings.notice:
        lines.append(("! notice", plain(look.readings.notice), "$warning"))
    return tuple(lines)


def readings(look: Look) -> Lines:
    """All readings that are told."""
    if look.running is None or look.readings is None or not answers(look.readings):
        return ()
    return tuple((name, words, "") for name, words in rows(look.readings))


def cards(look: Look, holders: Mapping[int, Holder], cells: int) -> Lines:
    """Everything about each card."""
    lines: list[tuple[str, str, str]] = []
    if look.no_gpus:
        lines += [("", "", ""), ("GPU", plain(look.no_gpus), "$foreground 70%")]
    for gpu in look.gpus:
        lines.append(("", "", ""))
        lines.append((f"GPU {gpu.index}", plain(gpu.name or "its name is not told"), ""))
        lines.append((" ", gpu_words(gpu), "$warning" if gpu.throttled else ""))
        lines += [(" ", words, style) for words, style in _on_card(gpu, holders, cells)]
    return tuple(lines)


def holding(look: Look, holders: Mapping[int, Holder], cells: int) -> Lines:
    """Of several cards their names, and what is on each."""
    lines = [("Cards", names_line(look.gpus), "")]
    for gpu in look.gpus:
        told = list(_on_card(gpu, holders, cells))
        if gpu.throttled:
            told.insert(0, (f"held back: {', '.join(gpu.throttled)}", "$warning"))
        lines += [(" " if number else f"GPU {gpu.index}", *one) for number, one in enumerate(told)]
    return tuple(lines)


def _on_card(gpu: GpuReading, holders: Mapping[int, Holder], cells: int) -> Iterator[tuple[str, str]]:
    for part in gpu.instances:
        size = f"{format_gib((part.used_mib or 0) / 1024)} of {format_gib((part.total_mib or 0) / 1024)}"
        yield f"{plain(part.name or part.uuid or 'a MIG part')} {size}", ""
    for words in holder_words(gpu, holders, cells - _NAME):
        yield words, "$foreground 70%"
