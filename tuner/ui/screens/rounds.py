"""Rounds: the history, a page at a time, one line a round; what is typed finds rounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec
from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.reactive import reactive, var
from textual.widget import Widget
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round
from tuner.rounds.search import ANY, Search, read_line
from tuner.rounds.summary import RoundSummary
from tuner.session.settle import seen_here, seen_line
from tuner.text import clip, plain, width
from tuner.ui.copying import Copied, launch_command
from tuner.ui.round_text import known_words, round_text
from tuner.ui.screens.base import Place
from tuner.ui.screens.details import DetailsScreen
from tuner.ui.widgets.rounds_brief import head, line
from tuner.ui.widgets.row_list import RowList
from tuner.ui.widgets.sheet import Sheet

#: More pages than any history has.
_ALL_PAGES = 1_000_000
#: Rounds that may be marked: a table of more is no table.
_MOST_MARKS = 12
_LETTERS = "ABCDEFGHIJKL"


class Page(msgspec.Struct, frozen=True):
    """One page of the rounds found, newest first."""

    lines: tuple[RoundSummary, ...] = ()
    offset: int = 0
    total: int = 0
    #: The last good round, by number.
    good: int | None = None


class PageHead(Widget):
    """Column heads, and which page of what this is."""

    page: reactive[Page] = reactive(Page())
    #: What was looked for, and why it cannot be.
    wanted: reactive[str] = reactive("")
    problem: reactive[str] = reactive("")

    def render(self) -> Content:
        """Heads at the left, page at the right."""
        cells = self.size.width
        if self.problem:
            return Content.assemble((clip(f" {plain(self.problem)}", cells), "bold $warning"))
        heads, page = head(cells), self.page
        which = []
        if self.wanted:
            which.append(f"{page.total:,} found")
        if page.lines and page.total > len(page.lines):
            which.append(f"{page.offset + 1:,}–{page.offset + len(page.lines):,} of {page.total:,}")
        if not which:
            return heads
        words = f" {' · '.join(which)} "
        return Content.assemble(heads[: max(0, cells - width(words))], (words, "bold $primary"))


class RoundDetail(Sheet):
    """The round under the cursor, in full; in its place why there is none."""

    shown: reactive[Round | None] = reactive(None, layout=True)
    best: reactive[bool] = reactive(False, layout=True)
    #: Name of the last good round.
    good: reactive[str] = reactive("", layout=True)
    problem: reactive[str] = reactive("", layout=True)

    def text(self, cells: int) -> Content:
        """Everything that its line had to cut."""
        if self.problem:
            first, _, rest = plain(self.problem).partition("\n")
            return Content.assemble((first, "bold $error"), f"\n{rest}" if rest else "")
        if self.shown is None:
            return Content("")
        text = round_text(self.shown, cells, good=self.good)
        if not self.best:
            return text
        words = "* No other round takes longer inputs, more requests and answers sooner."
        return Content("\n").join([text, Content.assemble((words, "$primary"))])


class RoundsScreen(Place):
    """All rounds; the page is as long as the list is high, so nothing scrolls inside it."""

    mode = "rounds"
    purpose = "All rounds, newest first. Failed ones stay, with the reason; * is beaten by no other round."
    spare = frozenset({"tags", "chart"})

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "Mark", tooltip="Mark rounds to compare: two side by side, up to twelve as a table",
                id="rounds.mark"),
        Binding("c", "compare", "Compare", tooltip="Compare the marked rounds, or this one with the one before",
                id="rounds.compare"),
        Binding("slash", "find", "Find", key_display="/",
                tooltip="Find rounds: words, failed, kept, rejected, real, simulated, front, #tag, flag=value",
                id="rounds.find"),
        Binding("t", "tags", "Tags", tooltip="Write this round's tags", id="rounds.tags"),
        Binding("g", "chart", "Chart", tooltip="Any measure over the rounds marked, else over those found",
                id="rounds.chart"),
        Binding("u", "use", "Use", tooltip="Put this round's flags on the Tune screen, to go back to them",
                id="rounds.use"),
        Binding("l", "log", "Its log", show=False, tooltip="Show this round's log", id="rounds.log"),
        Binding("escape", "leave", "All rounds", show=False, tooltip="Close the search, then take all marks away",
                id="rounds.all"),
    ]  # fmt: skip

    page: var[Page] = var(Page())
    search: var[Search] = var(ANY)

    def __init__(self) -> None:
        super().__init__()
        #: Counts what was asked of the history: of two answers the later question's holds.
        self._asked = 0
        self._front: frozenset[int] = frozenset()
        #: The version of the history that the front was found in.
        self._front_of = -1

    def body(self) -> Iterable[Widget]:
        """Heads, list, the round under the cursor, what to find."""
        yield PageHead()
        yield RoundList(id="rounds")
        yield VerticalScroll(RoundDetail(), id="detail", can_focus=False)
        yield Horizontal(
            Label("/"), Input(placeholder="failed kept real front #tag flag=value words", id="wanted"), id="find"
        )

    def on_mount(self) -> None:
        """Loads the newest page and follows the history."""
        self.query_one("#find").display = False
        self.watch(self.app, "history_version", self._changed, init=False)
        self.watch(self.app, "marked", self._redraw, init=False)
        self.watch(self.app, "running_name", self._redraw, init=False)
        self.query_one(OptionList).focus()

    def on_screen_resume(self) -> None:
        """Catches up."""
        self._changed()

    def on_resize(self) -> None:
        """A page is as long as the list is high."""
        self.call_after_refresh(self._reload)

    def _rows(self) -> int:
        return max(3, self.query_one(OptionList).size.height)

    def _changed(self) -> None:
        if self.is_current:
            self._reload()
            if self._front_of != self.tuner.history_version:
                self._front_of = self.tuner.history_version
                self._find_front()

    def _reload(self) -> None:
        if self.is_current:
            self._ask(self.page.offset)

    def _ask(self, offset: int) -> None:
        self._asked += 1
        self._load(offset, self.search, self._rows(), self._asked)

    @work(thread=True, group="page")
    def _load(self, offset: int, search: Search, rows: int, asked: int) -> None:
        session = self.tuner.session
        history = session.history
        try:
            total = history.count(search=search)
            offset = max(0, min(offset, (total - 1) // rows * rows if total else 0))
            found = history.summaries(limit=rows, offset=offset, search=search)
            lines = tuple(seen_line(line, history, session.home) for line in found)
            good = history.last_good()
        except HistoryError as error:
            self.app.call_from_thread(self._refused, str(error), asked)
            return
        page = Page(lines, offset, total, good.number if good is not None else None)
        self.app.call_from_thread(self._take, page, asked)

    @work(thread=True, exclusive=True, group="front")
    def _find_front(self) -> None:
        """Looks at every round: the list does not wait for it."""
        try:
            front = self.tuner.session.history.front()
        except HistoryError:
            # The page is read from the same file and says what is wrong with it.
            return
        self.app.call_from_thread(self._take_front, front)

    def _take_front(self, front: frozenset[int]) -> None:
        if front != self._front:
            self._front = front
            self._redraw()

    def _refused(self, problem: str, asked: int) -> None:
        if asked == self._asked:
            self.query_one(PageHead).problem = problem

    def _take(self, page: Page, asked: int) -> None:
        """Draws the page, the cursor staying on its round; the same page too, as the width may be another."""
        if asked == self._asked:
            self.page = page
            self.query_one(PageHead).problem = ""
            self._redraw()

    def _redraw(self) -> None:
        listing = self.query_one(OptionList)
        self.query_one(PageHead).page = self.page
        chosen, marked = self.tuner.chosen, self.tuner.marked
        cells = max(40, listing.size.width)
        with self.prevent(OptionList.OptionHighlighted):
            listing.clear_options()
            listing.add_options(
                Option(
                    line(s, cells, running=s.name == self.tuner.running_name, best=s.number in self._front,
                         good=s.number == self.page.good,
                         mark=_LETTERS[marked.index(s.number)] if s.number in marked else ""),
                    id=str(s.number),
                )
                for s in self.page.lines
            )  # fmt: skip
        numbers = [s.number for s in self.page.lines]
        if numbers:
            listing.highlighted = numbers.index(chosen) if chosen in numbers else 0
        else:
            self._nothing()

    def _nothing(self) -> None:
        """No round under the cursor."""
        detail = self.query_one(RoundDetail)
        detail.shown = None
        words = "No round is like that. Esc shows all." if self.search != ANY else "No round yet. R starts one."
        detail.problem = words

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id is not None:
            self.tuner.chosen = int(event.option_id)
            self._show(int(event.option_id))

    @work(thread=True, exclusive=True, group="detail")
    def _show(self, number: int) -> None:
        session = self.tuner.session
        try:
            round_ = session.history.get(number)
        except HistoryError as error:
            known = next((s for s in self.page.lines if s.number == number), None)
            self.app.call_from_thread(self._shown, number, None, f"{error}{known_words(known)}")
            return
        self.app.call_from_thread(self._shown, number, seen_here(round_, session.home), "")

    def _shown(self, number: int, round_: Round | None, problem: str) -> None:
        if number != self.tuner.chosen:
            return
        detail = self.query_one(RoundDetail)
        detail.shown, detail.problem, detail.best = round_, problem, number in self._front
        good = f"r{self.page.good}" if self.page.good is not None else ""
        # What runs is not gone back to.
        detail.good = good if good != self.tuner.running_name else ""
        self.query_one("#detail").scroll_home(animate=False)

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        shown = self.query_one(RoundDetail).shown
        if shown is not None:
            self.app.push_screen(DetailsScreen(shown))

    def action_mark(self) -> None:
        """Marks the round under the cursor, or takes its mark away."""
        number, marked = self.tuner.chosen, self.tuner.marked
        if number is None:
            return
        if number in marked:
            self.tuner.marked = tuple(n for n in marked if n != number)
        elif len(marked) < _MOST_MARKS:
            self.tuner.marked = (*marked, number)
        else:
            self.tuner.say(f"{_MOST_MARKS} rounds are marked already: Esc takes all marks away.", severity="warning")

    def action_compare(self) -> None:
        """To the Compare screen."""
        self.tuner.go("compare")

    def to_copy(self) -> Copied:
        """The launch command of the round under the cursor."""
        shown = self.query_one(RoundDetail).shown
        return launch_command(shown.recipe, shown.name) if shown is not None else super().to_copy()

    def action_use(self) -> None:
        """This round's flags onto the bench."""
        shown = self.query_one(RoundDetail).shown
        if shown is not None:
            self.tuner.use(shown)

    def action_log(self) -> None:
        """To the log of the round under the cursor."""
        self.tuner.go("log")

    def action_chart(self) -> None:
        """Any measure over the rounds marked, or over those found."""
        from tuner.ui.screens.chart import ChartScreen  # bars are only paid for by those who look at them

        self.app.push_screen(ChartScreen(self.tuner.session.history, self.tuner.marked, self.search))

    @work(exclusive=True, group="tags")
    async def action_tags(self) -> None:
        """The tags of the round under the cursor."""
        from tuner.ui.screens.tags import TagsScreen

        shown = self.query_one(RoundDetail).shown
        if shown is None:
            return
        tags = await self.app.push_screen_wait(TagsScreen(shown.name, shown.tags, self.tuner.session.history))
        if tags is not None:
            self.tuner.history_version += 1
            self.tuner.say(f"Tags of {shown.name}: {' '.join(tags) or 'none'}.")

    # finding

    def action_find(self) -> None:
        """Opens the line to type in."""
        self.query_one("#find").display = True
        self.query_one("#wanted").focus()

    def action_leave(self) -> None:
        """All rounds again; with all rounds shown, the marks go."""
        if self.query_one("#find").display:
            self.query_one("#wanted", Input).value = ""
            self.query_one("#find").display = False
            self.query_one(OptionList).focus()
            self._look_for("")
        elif self.tuner.marked:
            self.tuner.marked = ()

    @on(Input.Changed, "#wanted")
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._look_for(event.value)

    @on(Input.Submitted, "#wanted")
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(OptionList).focus()
        if not event.value.strip():
            self.query_one("#find").display = False

    def _look_for(self, text: str) -> None:
        try:
            search = read_line(plain(text))
        except HistoryError as error:
            self.query_one(PageHead).problem = str(error)
            return
        self.query_one(PageHead).wanted = text.strip()
        if search != self.search:
            self.search = search
            self._ask(0)

    def flip(self, pages: int) -> None:
        """Some pages further."""
        self.tuner.chosen = None
        self._ask(max(0, self.page.offset + pages * self._rows()))


class RoundList(RowList):
    """The lines of a page; stepping over its edge flips the page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "cursor_down", "Older", show=False, tooltip="The round below"),
        Binding("up", "cursor_up", "Newer", show=False, tooltip="The round above"),
        Binding("enter", "select", "Details", tooltip="Everything about this round"),
        Binding("pagedown", "page_down", "Older page", show=False, tooltip="The next page: older rounds"),
        Binding("pageup", "page_up", "Newer page", show=False, tooltip="The page before: newer rounds"),
        Binding("home", "first", "Newest", show=False, tooltip="The newest rounds"),
        Binding("end", "last", "Oldest", show=False, tooltip="The oldest rounds"),
    ]

    async def _on_click(self, event: events.Click) -> None:
        """A click shows a round below; another one on it opens it."""
        event.prevent_default()
        clicked = event.style.meta.get("option")
        if clicked is None:
            return
        if clicked == self.highlighted:
            self.action_select()
        else:
            self.highlighted = clicked

    def action_cursor_down(self) -> None:
        """Down, and over the end to the next page."""
        screen = self.screen
        if isinstance(screen, RoundsScreen) and self.highlighted == self.option_count - 1:
            if screen.page.offset + self.option_count < screen.page.total:
                screen.flip(1)
            return
        super().action_cursor_down()

    def action_cursor_up(self) -> None:
        """Up, and over the start to the page before."""
        screen = self.screen
        if isinstance(screen, RoundsScreen) and self.highlighted == 0:
            if screen.page.offset:
                screen.flip(-1)
            return
        super().action_cursor_up()

    def action_page_down(self) -> None:
        """Older rounds."""
        self._flip(1)

    def action_page_up(self) -> None:
        """Newer rounds."""
        self._flip(-1)

    def action_first(self) -> None:
        """The newest rounds."""
        self._flip(-_ALL_PAGES)

    def action_last(self) -> None:
        """The oldest rounds."""
        self._flip(_ALL_PAGES)

    def _flip(self, pages: int) -> None:
        if isinstance(self.screen, RoundsScreen):
            self.screen.flip(pages)
