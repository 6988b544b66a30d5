"""Rounds: the history, a page at a time, one line a round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec
from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.reactive import reactive, var
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round
from tuner.rounds.summary import RoundSummary
from tuner.ui.round_text import round_text
from tuner.ui.screens.base import Place
from tuner.ui.screens.details import DetailsScreen
from tuner.ui.widgets.rounds_brief import head, line

#: More pages than any history has.
_ALL_PAGES = 1_000_000


class Page(msgspec.Struct, frozen=True):
    """One page of the history, newest first."""

    lines: tuple[RoundSummary, ...] = ()
    offset: int = 0
    total: int = 0


class PageHead(Widget):
    """Column heads, and which page this is."""

    page: reactive[Page] = reactive(Page())

    def render(self) -> Content:
        """Heads at the left, page at the right."""
        heads = head(self.size.width)
        page = self.page
        if page.total <= len(page.lines) or not page.lines:
            return heads
        which = f" {page.offset + 1}–{page.offset + len(page.lines)} of {page.total} "
        return Content.assemble(heads[: max(0, self.size.width - len(which))], (which, "bold $primary"))


class RoundDetail(Widget):
    """The round under the cursor, in full."""

    shown: reactive[Round | None] = reactive(None, layout=True)

    def render(self) -> Content:
        """Everything that its line had to cut."""
        return round_text(self.shown, self.size.width or 80) if self.shown else Content("")


class RoundsScreen(Place):
    """All rounds; the page is as long as the list is high, so nothing scrolls inside it."""

    mode = "rounds"
    purpose = "All rounds, newest first. Failed ones stay, with the reason."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "mark", "Mark", tooltip="Mark up to two rounds to compare", id="rounds.mark"),
        Binding("c", "compare", "Compare", tooltip="Compare the marked rounds, or this one with the one before",
                id="rounds.compare"),
        Binding("u", "use", "Use flags", tooltip="Put this round's flags on the Tune screen, to go back to them",
                id="rounds.use"),
        Binding("l", "log", "Its log", show=False, tooltip="Show this round's log", id="rounds.log"),
    ]  # fmt: skip

    page: var[Page] = var(Page())

    def body(self) -> Iterable[Widget]:
        """Heads, list, the round under the cursor."""
        yield PageHead()
        yield RoundList(id="rounds")
        yield VerticalScroll(RoundDetail(), id="detail", can_focus=False)

    def on_mount(self) -> None:
        """Loads the newest page and follows the history."""
        self.watch(self.app, "history_version", self._reload, init=False)
        self.watch(self.app, "marked", self._redraw, init=False)
        self.watch(self.app, "running_name", self._redraw, init=False)
        self.query_one(OptionList).focus()

    def on_screen_resume(self) -> None:
        """Catches up."""
        self._reload()

    def on_resize(self) -> None:
        """A page is as long as the list is high."""
        self.call_after_refresh(self._reload)

    def _rows(self) -> int:
        return max(3, self.query_one(OptionList).size.height)

    def _reload(self) -> None:
        if self.is_current:
            self._load(self.page.offset)

    @work(thread=True, exclusive=True, group="page")
    def _load(self, offset: int) -> None:
        history, rows = self.tuner.session.history, self._rows()
        try:
            total = history.count()
            offset = max(0, min(offset, (total - 1) // rows * rows if total else 0))
            lines = tuple(history.summaries(limit=rows, offset=offset))
        except HistoryError as error:
            self.app.call_from_thread(self.tuner.say, str(error), severity="error")
            return
        self.app.call_from_thread(self._take, Page(lines, offset, total))

    def _take(self, page: Page) -> None:
        """Draws the page, the cursor staying on its round; the same page too, as the width may be another."""
        self.page = page
        self._redraw()

    def _redraw(self) -> None:
        listing = self.query_one(OptionList)
        self.query_one(PageHead).page = self.page
        chosen = self.tuner.chosen
        cells = max(40, listing.size.width)
        marked = self.tuner.marked
        listing.clear_options()
        listing.add_options(
            Option(
                line(s, cells, running=s.name == self.tuner.running_name,
                     mark="AB"[marked.index(s.number)] if s.number in marked else ""),
                id=str(s.number),
            )
            for s in self.page.lines
        )  # fmt: skip
        numbers = [s.number for s in self.page.lines]
        if numbers:
            listing.highlighted = numbers.index(chosen) if chosen in numbers else 0

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id is not None:
            self.tuner.chosen = int(event.option_id)
            self._show(int(event.option_id))

    @work(thread=True, exclusive=True, group="detail")
    def _show(self, number: int) -> None:
        try:
            round_ = self.tuner.session.history.get(number)
        except HistoryError as error:
            self.app.call_from_thread(self.tuner.say, str(error), severity="error")
            return
        self.app.call_from_thread(self._shown, round_)

    def _shown(self, round_: Round) -> None:
        self.query_one(RoundDetail).shown = round_
        self.query_one("#detail").scroll_home(animate=False)

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        shown = self.query_one(RoundDetail).shown
        if shown is not None:
            self.app.push_screen(DetailsScreen(shown))

    def action_mark(self) -> None:
        """Marks the round under the cursor, or takes its mark away; a third mark drops the first."""
        number = self.tuner.chosen
        if number is None:
            return
        marked = self.tuner.marked
        rest = tuple(n for n in marked if n != number)
        self.tuner.marked = rest if number in marked else (*marked, number)[-2:]

    def action_compare(self) -> None:
        """To the Compare screen."""
        self.tuner.go("compare")

    def action_use(self) -> None:
        """This round's flags onto the bench."""
        shown = self.query_one(RoundDetail).shown
        if shown is not None:
            self.tuner.use(shown)

    def action_log(self) -> None:
        """To the log of the round under the cursor."""
        self.tuner.go("log")

    def flip(self, pages: int) -> None:
        """Some pages further."""
        self.tuner.chosen = None
        self._load(max(0, self.page.offset + pages * self._rows()))


class RoundList(OptionList):
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
