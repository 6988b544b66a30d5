"""Any measure over the rounds, as bars."""

from __future__ import annotations

import re
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Footer

from tuner.rounds.chart import measure_chart
from tuner.rounds.errors import HistoryError
from tuner.rounds.history import History
from tuner.rounds.measures import MEASURES
from tuner.rounds.model import Round
from tuner.rounds.search import Search
from tuner.text import plain
from tuner.ui.screens.choose import ChooseScreen
from tuner.ui.widgets.choice import Option

#: Rounds that are drawn where none is marked: the newest.
_MOST = 60
_BAR = re.compile("[█▏▎▍▌▋▊▉]+")
_KEYS = [measure.name for measure in MEASURES]


class Bars(Widget):
    """A bar a round, oldest first."""

    rounds: reactive[tuple[Round, ...]] = reactive((), layout=True)
    measure: reactive[str] = reactive(_KEYS[0], layout=True)
    problem: reactive[str] = reactive("", layout=True)

    def render(self) -> Content:
        """The measure's name, and its bars."""
        measure = MEASURES[_KEYS.index(self.measure)]
        if self.problem or not self.rounds:
            return Content.assemble((plain(self.problem) or "No round to draw.", "$warning"))
        lines = [Content.assemble((measure.label, "bold $primary"), ("  ← → another measure", "$foreground 60%"))]
        known = sum(measure.read(round_) is not None for round_ in self.rounds)
        if not known:
            lines.append(Content.assemble(("No round here has told it.", "$warning")))
        lines += [_coloured(text) for text in measure_chart(measure, self.rounds, self.size.width or 80)]
        if any(round_.simulated for round_ in self.rounds):
            lines.append(Content.assemble(("sim: SIMULATED, no real SGLang", "$warning")))
        return Content("\n").join(lines)


def _coloured(line: str) -> Content:
    bar = _BAR.search(line)
    if bar is None:
        return Content(line)
    return Content.assemble(line[: bar.start()], (bar[0], "$primary"), (line[bar.end() :], "bold"))


class ChartScreen(ModalScreen[None]):
    """The marked rounds in the order marked, else the newest of those found."""

    purpose = "Any measure over the rounds."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", "Measure before", show=False, tooltip="The measure before"),
        Binding("right", "turn(1)", "Next measure", key_display="← →", tooltip="The next measure"),
        Binding("enter", "choose", "Measures", tooltip="All measures, to choose from"),
        Binding("escape,g", "dismiss", "Close", tooltip="Back"),
    ]

    def __init__(self, history: History, numbers: tuple[int, ...], search: Search) -> None:
        super().__init__()
        self._history = history
        self._numbers = numbers
        self._search = search

    def compose(self) -> ComposeResult:
        """Bars to scroll through."""
        with VerticalScroll(classes="dialog wide", id="page") as page:
            page.border_title = "Over the rounds"
            yield Bars()
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Reads the rounds."""
        self.query_one("#page").focus()
        self._read()

    @work(thread=True, exclusive=True, group="rounds")
    def _read(self) -> None:
        try:
            if self._numbers:
                rounds = [self._history.get(number) for number in self._numbers]
            else:
                rounds = self._history.list(limit=_MOST, search=self._search)[::-1]
        except HistoryError as error:
            self.app.call_from_thread(setattr, self.query_one(Bars), "problem", str(error))
            return
        self.app.call_from_thread(setattr, self.query_one(Bars), "rounds", tuple(rounds))

    def action_turn(self, steps: int) -> None:
        """Another measure."""
        bars = self.query_one(Bars)
        bars.measure = _KEYS[(_KEYS.index(bars.measure) + steps) % len(_KEYS)]

    @work(exclusive=True, group="choose")
    async def action_choose(self) -> None:
        """One of all measures."""
        bars = self.query_one(Bars)
        options = tuple(Option(measure.name, measure.label, "") for measure in MEASURES)
        chosen = await self.app.push_screen_wait(ChooseScreen("Measure", options, bars.measure))
        if chosen is not None:
            bars.measure = chosen
