"""Compare: two rounds side by side, changed things first; more of them as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec
from textual import work
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.reactive import reactive, var
from textual.widget import Widget

from tuner.rounds.diff import (
    FREE_AT_READY,
    KV_TOKENS,
    LONGEST_INPUT,
    POOLS_IN_EFFECT,
    REQUESTS,
    STATE_SLOTS,
    diff,
)
from tuner.rounds.errors import DamagedRound, HistoryError
from tuner.rounds.model import Change, ChangeVerdict, Round, RoundDiff
from tuner.rounds.samples import Moment
from tuner.rounds.search import ANY
from tuner.rounds.table import RoundTable, table
from tuner.rounds.values import PREDICTED, number_text
from tuner.text import clip, plain, width
from tuner.ui.screens.base import Place
from tuner.ui.widgets.many_table import ManyTable
from tuner.ui.widgets.pair_bars import PairBars
from tuner.ui.wording import NONE, flag_value

_VERDICTS = {
    ChangeVerdict.CHANGED: ("•", "$primary"),
    ChangeVerdict.BETTER: ("▲", "bold $success"),
    ChangeVerdict.WORSE: ("▼", "bold $warning"),
    ChangeVerdict.WITHIN_NOISE: ("≈", "$foreground 60%"),
    ChangeVerdict.NOT_COMPARABLE: ("?", "$foreground 60%"),
}


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two rounds with their difference and the readings taken during each."""

    old: Round
    new: Round
    diff: RoundDiff
    old_samples: tuple[Moment, ...] = ()
    new_samples: tuple[Moment, ...] = ()


#: Pools by their name in a difference, and their fields in a plan.
_PLANNED = {
    KV_TOKENS: "kv_tokens",
    STATE_SLOTS: "mamba_slots",
    REQUESTS: "max_running_requests",
    LONGEST_INPUT: "longest_input_tokens",
    FREE_AT_READY: "ready_free_gib",
}
#: A plan closer than this is as good as the two decimals it came from (relative).
_AS_PLANNED = 0.0005

#: Fewer readings than this make no line worth looking at: the pools are drawn instead.
_ENOUGH_SAMPLES = 6


class DiffTable(Widget):
    """The difference, or the sentence that says why there is none."""

    pair: reactive[Pair | None] = reactive(None, layout=True)
    problem: reactive[str] = reactive("", layout=True)

    def render(self) -> Content:
        """Groups in the order of cause and effect."""
        if self.pair is None:
            return Content.assemble((self.problem, "$foreground 70%"))
        cells = self.size.width or 80
        told = self.pair.diff
        lines = [_summary(told)]
        pools = _pools(self.pair)
        groups: tuple[tuple[str, Sequence[tuple[Change, str]]], ...] = (
            ("Flags", [(c, "") for c in told.flags_changed]),
            ("In effect", [(c, "") for c in told.effective_changed if not (pools and c.name in POOLS_IN_EFFECT)]),
            ("Pools", pools),
            ("Checks", [(c, "") for c in told.checks]),
            ("Measured", [(c, "") for c in told.metrics]),
        )
        if not any(changes for _, changes in groups):
            lines.append(Content.assemble(("Nothing differs between these two rounds.", "$foreground 70%")))
        for title, changes in groups:
            if changes:
                lines.append(Content(""))
                sides = _widths(cells, long_values=title in ("Flags", "In effect"))
                lines.append(_heads(title, told, sides))
                lines += [_row(change, cells, sides, planned) for change, planned in changes]
        return Content("\n").join(lines)


class ManyRounds(msgspec.Struct, frozen=True, kw_only=True):
    """More than two rounds."""

    numbers: tuple[int, ...]
    table: RoundTable
    #: Which of the marked rounds are missing, one sentence, or empty.
    left_out: str = ""


class DiffScroll(VerticalScroll, inherit_bindings=False):
    """Scrolls up and down only: left and right choose rounds."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False, tooltip="A line up"),
        Binding("down", "scroll_down", "Down", show=False, tooltip="A line down"),
        Binding("pageup", "page_up", "Page up", show=False, tooltip="A page up"),
        Binding("pagedown", "page_down", "Page down", show=False, tooltip="A page down"),
        Binding("home", "scroll_home", "Top", show=False, tooltip="To the first line"),
        Binding("end", "scroll_end", "Bottom", show=False, tooltip="To the last line"),
    ]


class CompareScreen(Place):
    """Two rounds."""

    mode = "compare"
    purpose = "Two rounds side by side: what was changed, and what it bought. Three and more become a table."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "newer(-1)", "Older", key_display="←", tooltip="An earlier new round",
                id="compare.new_earlier"),
        Binding("right", "newer(1)", "Newer", key_display="→", tooltip="A later new round", id="compare.new_later"),
        Binding("shift+left", "older(-1)", "Base older", show=False, key_display="⇧←", tooltip="An earlier old round",
                id="compare.old_earlier"),
        Binding("shift+right", "older(1)", "Base newer", show=False, key_display="⇧→", tooltip="A later old round",
                id="compare.old_later"),
        Binding("w", "swap", "Swap", tooltip="Old and new change places", id="compare.swap"),
        Binding("g", "chart", "Chart", tooltip="Show or hide the chart", id="compare.chart"),
        Binding("u", "use", "Use", show=False, tooltip="Put the new round's flags on the Tune screen",
                id="compare.use"),
    ]  # fmt: skip

    pair: var[Pair | None] = var(None)
    many: var[ManyRounds | None] = var(None)
    charted: var[bool | None] = var(None)

    def body(self) -> Iterable[Widget]:
        """Table, and a place for the chart."""
        yield DiffScroll(DiffTable(), ManyTable(), id="diff")
        yield Vertical(PairBars(), id="chart")

    def on_mount(self) -> None:
        """Compares, and follows marks and history."""
        self.watch(self.app, "marked", self._reload, init=False)
        self.watch(self.app, "history_version", self._reload, init=False)
        self.query_one(ManyTable).display = False
        self.query_one("#diff").focus()

    def on_screen_resume(self) -> None:
        """Catches up."""
        self._reload()

    def on_resize(self) -> None:
        """Where there is room the chart shows by itself."""
        self._lay_out()

    def _reload(self) -> None:
        if self.is_current:
            self._load(self.tuner.marked, self.tuner.chosen)

    @work(thread=True, exclusive=True, group="pair")
    def _load(self, marked: tuple[int, ...], chosen: int | None) -> None:
        history = self.tuner.session.history
        try:
            if len(marked) > 2:
                self._load_many(marked)
                return
            numbers = self._numbers(marked, chosen)
            if numbers is None:
                self.app.call_from_thread(self._none, "Two rounds are needed to compare. R starts one.")
                return
            old, new = history.get(numbers[0]), history.get(numbers[1])
            samples = history.moments(old.number), history.moments(new.number)
        except DamagedRound as error:
            self.app.call_from_thread(self._none, f"{error} Mark two others with Space on the Rounds screen.")
            return
        except HistoryError as error:
            self.app.call_from_thread(self._none, str(error))
            return
        pair = Pair(old=old, new=new, diff=diff(old, new), old_samples=samples[0], new_samples=samples[1])
        self.app.call_from_thread(self._take_pair, pair)

    def _load_many(self, marked: tuple[int, ...]) -> None:
        history = self.tuner.session.history
        rounds, damaged = [], []
        for number in sorted(marked):
            try:
                rounds.append(history.get(number))
            except DamagedRound:
                damaged.append(f"r{number}")
        left_out = f"{', '.join(damaged)} cannot be read from the history and is left out." if damaged else ""
        if len(rounds) < 2:
            self.app.call_from_thread(self._none, f"{left_out} Mark others with Space on the Rounds screen.")
            return
        many = ManyRounds(numbers=tuple(r.number for r in rounds), table=table(rounds), left_out=left_out)
        self.app.call_from_thread(self._take_many, many)

    def _take_pair(self, pair: Pair) -> None:
        self.many, self.pair = None, pair

    def _take_many(self, many: ManyRounds) -> None:
        self.many, self.pair = many, None

    def _numbers(self, marked: tuple[int, ...], chosen: int | None) -> tuple[int, int] | None:
        """The marked rounds, as marked; else the chosen round (or the newest) with the one before it."""
        if len(marked) == 2:
            return marked[0], marked[1]
        history = self.tuner.session.history
        new = marked[0] if marked else chosen
        if new is None or new <= 1:
            newest = history.last()
            if newest is None or newest.number <= 1:
                return None
            new = newest.number
        return new - 1, new

    def _none(self, problem: str) -> None:
        self.many, self.pair = None, None
        self.query_one(DiffTable).problem = problem

    def watch_pair(self) -> None:
        """Draws the table, and the chart while it is shown."""
        if self.is_mounted:
            self.query_one(DiffTable).pair = self.pair
            self._lay_out()

    def watch_many(self) -> None:
        """Draws the table of several rounds in place of the difference of two."""
        if self.is_mounted:
            self.query_one(ManyTable).many = self.many.table if self.many is not None else None
            self.query_one(ManyTable).left_out = self.many.left_out if self.many is not None else ""
            self.query_one(ManyTable).display = self.many is not None
            self.query_one(DiffTable).display = self.many is None
            self.refresh_bindings()
            self._lay_out()

    def watch_charted(self) -> None:
        """Shows or hides the chart."""
        if self.is_mounted:
            self._lay_out()

    def _lay_out(self) -> None:
        place = self.query_one("#chart", Vertical)
        shown = self.pair is not None and (self.charted if self.charted is not None else self.size.height >= 34)
        place.display = shown
        self.set_class(shown and self.size.height < 34, "-chart-only")
        if shown and self.pair is not None:
            measured = _worked(self.pair.old_samples) and _worked(self.pair.new_samples)
            self.query_one(PairBars).pair = self.pair
            self.query_one(PairBars).display = not measured
            self._chart(place, self.pair, shown=measured)

    def _chart(self, place: Vertical, pair: Pair, *, shown: bool) -> None:
        """plotext is only paid for when there is something to plot and someone to see it."""
        if not shown:
            place.remove_children("PairChart")
            return
        from tuner.ui.widgets.chart import PairChart

        charts = place.query(PairChart)
        if charts:
            charts.first().pair = pair
        else:
            place.mount(PairChart(pair))

    def action_chart(self) -> None:
        """Shows or hides the chart; of several rounds any measure, in a place of its own."""
        if self.many is not None:
            from tuner.ui.screens.chart import ChartScreen  # bars are only paid for by those who look at them

            self.app.push_screen(ChartScreen(self.tuner.session.history, self.many.numbers, ANY))
            return
        self.charted = not self.query_one("#chart").display

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Of several rounds none is old or new."""
        return self.many is None or action not in ("swap", "older", "use")

    def action_swap(self) -> None:
        """Old and new change places."""
        if self.pair is not None:
            self.tuner.marked = (self.pair.new.number, self.pair.old.number)

    def action_newer(self, steps: int) -> None:
        """Another new round; of several, other columns."""
        if self.many is not None:
            self.query_one(ManyTable).step(steps)
        elif self.pair is not None:
            self._take(self.pair.old.number, max(1, self.pair.new.number + steps))

    def action_older(self, steps: int) -> None:
        """Another old round."""
        if self.pair is not None:
            self._take(max(1, self.pair.old.number + steps), self.pair.new.number)

    def action_use(self) -> None:
        """The new round's flags onto the bench."""
        if self.pair is not None:
            self.tuner.use(self.pair.new)

    @work(thread=True, exclusive=True, group="take")
    def _take(self, old: int, new: int) -> None:
        try:
            newest = self.tuner.session.history.last()
        except HistoryError as error:
            self.app.call_from_thread(self.tuner.say, str(error), severity="error")
            return
        if newest is not None and max(old, new) <= newest.number:
            self.app.call_from_thread(setattr, self.tuner, "marked", (old, new))


def _worked(samples: Sequence[Moment]) -> bool:
    """Whether a line of these readings would show anything."""
    used = [s.kv_used_tokens or 0 for s in samples]
    return len(used) >= _ENOUGH_SAMPLES and max(used) > 0


def _summary(told: RoundDiff) -> Content:
    mark = "SIMULATED: this proves nothing about a real SGLang." if told.simulated else ""
    return Content.assemble(
        (f"{told.old} → {told.new}  ", "bold $primary"),
        plain(told.summary),
        (f"\n{mark}" if mark else "", "bold $warning"),
    )


def _heads(title: str, told: RoundDiff, sides: tuple[int, int]) -> Content:
    name, side = sides
    return Content.assemble(
        (f"  {title:<{name}}", "bold"), (f"{told.old:>{side}}{told.new:>{side}}  change", "$foreground 60%")
    )


def _pools(pair: Pair) -> list[tuple[Change, str]]:
    """One row a pool: what came, and in words how that was planned; what was only planned says so in its name."""
    came = {c.name for c in pair.diff.pools if not c.name.endswith(PREDICTED)}
    rows = []
    for change in pair.diff.pools:
        if not change.name.endswith(PREDICTED):
            rows.append((change, _planned(pair, change)))
        elif change.name.removesuffix(PREDICTED) not in came:
            rows.append((msgspec.structs.replace(change, name=change.name.replace("predicted", "planned")), ""))
    return rows


def _planned(pair: Pair, change: Change) -> str:
    """How both rounds were planned: in numbers, and after a bar in fewer words; empty when that is not known."""
    field = _PLANNED.get(change.name)
    if field is None:
        return ""
    pairs = [(getattr(r.plan, field, None), came) for r, came in ((pair.old, change.old), (pair.new, change.new))]
    known = [(float(plan), float(came)) for plan, came in pairs if plan is not None and isinstance(came, int | float)]
    if len(known) < len(pairs):
        return ""
    if all(abs(came - plan) <= _AS_PLANNED * abs(plan) + 0.005 for plan, came in known):
        return "as planned"
    digits = 0 if isinstance(change.new, int) else 2
    return "planned " + ", ".join(f"{plan:,.{digits}f}" for plan, _ in known) + f"|{_worst(known)}"


def _worst(known: list[tuple[float, float]]) -> str:
    shares = [abs(came - plan) / abs(plan) for plan, came in known if plan]
    return f"plan off {100 * max(shares):.2g} %" if shares else "plan off"


def _row(change: Change, cells: int, sides: tuple[int, int], planned: str = "") -> Content:
    name, side = sides
    sign, style = _VERDICTS[change.verdict]
    told = change.change.replace("-", "−", 1) if change.change.startswith("-") else change.change
    # Times are told with their unit.
    label = plain(change.name.removesuffix(", s"))
    fits = (words for words in planned.split("|") if width(words) <= name - width(label) - 3)
    beside = next(fits, "")
    return Content.assemble(
        (f"{sign} ", style),
        _left(label, name if not beside else width(label) + 2),
        (_left(beside, name - width(label) - 2) if beside else "", "$foreground 60%"),
        (_right(_shown(change, change.old), side), "$foreground 70%"),
        (_right(_shown(change, change.new), side), "bold"),
        (f"  {_judged(change.verdict, told, cells - name - 2 * side - 4)}", style),
    )


def _judged(verdict: ChangeVerdict, told: str, cells: int) -> str:
    """The change and what it is worth; where there is no room for both, what matters of them: the sign tells more."""
    if verdict is ChangeVerdict.CHANGED:
        return clip(told, cells)
    both = f"{told} {verdict}".strip()
    short = told if verdict in (ChangeVerdict.BETTER, ChangeVerdict.WORSE) else str(verdict)
    return both if width(both) <= cells else clip(short, cells)


def _shown(change: Change, what: object) -> str:
    """A value, with the precision of its field."""
    if what is None:
        return NONE
    return number_text(change.name, what) if isinstance(what, float) else flag_value(change.name, what)


def _widths(cells: int, *, long_values: bool) -> tuple[int, int]:
    """Of the name and of each value; the new value ends at the same cell in every group."""
    if cells < 100:
        return (28, 14) if long_values else (34, 11)
    return 48, 18


def _left(text: str, cells: int) -> str:
    shown = clip(plain(text), cells - 1)
    return shown + " " * (cells - width(shown))


def _right(text: str, cells: int) -> str:
    shown = clip(text, cells - 1)
    return " " * (cells - width(shown)) + shown
