"""Tune: knobs at the left, what a start would give at the right, the running server below."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Label

from tuner.planner.model import Plan
from tuner.rounds.errors import HistoryError
from tuner.rounds.summary import RoundSummary
from tuner.ui.bench import Bench
from tuner.ui.knobs import (
    SPECULATION,
    SPECULATIVE_FLAGS,
    ChoiceKnob,
    Knob,
    SliderKnob,
    choice_flags,
    choice_key,
    knobs_for,
    resting_value,
    slider_flags,
    slider_value,
)
from tuner.ui.preview import failing, preview
from tuner.ui.screens.base import Place
from tuner.ui.screens.choose import choose_for
from tuner.ui.trend import FINE_S
from tuner.ui.widgets.choice import Choice
from tuner.ui.widgets.findings_list import FindingsList
from tuner.ui.widgets.live_strip import LiveStrip
from tuner.ui.widgets.live_trend import LiveTrend
from tuner.ui.widgets.pool_numbers import PoolNumbers
from tuner.ui.widgets.rounds_brief import RoundsBrief
from tuner.ui.widgets.sheet import Sheet
from tuner.ui.widgets.slider import Slider
from tuner.ui.widgets.vram_bar import TermTable, VramBar
from tuner.ui.wording import changes_line

#: Places of a track that are tried for "a start here would fail".
_TRIED = 24
#: Rows of a screen that has room for the last minutes below the plan and its findings.
_TREND_ROWS = 42
#: Lines for the changes, one less on a small screen: with them, all knobs and the longest help fit there.
_CHANGE_LINES = 3
#: In place of a plan that nothing was chosen for.
NO_MODEL = "No model is named yet: 6 lists recipes to start from, F3 looks around this machine."
_MARKED = ("mem_fraction_static", "mamba_full_memory_ratio", "max_mamba_cache_size", "max_running_requests")


class KnobHelp(Sheet):
    """What the knob in focus does, and where there is room the bounds of its track."""

    words: reactive[str] = reactive("", repaint=False)
    bounds: reactive[str] = reactive("", repaint=False)
    roomy: reactive[bool] = reactive(False, layout=True)

    def watch_words(self) -> None:
        """Draws."""
        self.redraw()

    def watch_bounds(self) -> None:
        """Draws."""
        self.redraw()

    def text(self, cells: int) -> Content:
        """Plain sentences."""
        more = f"\n{self.bounds}" if self.roomy and self.bounds else ""
        return Content.assemble((self.words, "$foreground 70%"), (more, "$foreground 60%"))


class ChangeLine(Sheet):
    """What the draft changes against what runs, and the key that starts it."""

    changes: reactive[tuple[str, ...]] = reactive((), repaint=False)
    #: What stands before the changes: "R restarts r3:", "Against r3:".
    lead: reactive[str] = reactive("", repaint=False)
    #: In place of changes: that these flags failed just now.
    failed: reactive[str] = reactive("", repaint=False)
    roomy: reactive[bool] = reactive(False, layout=True)

    def watch_changes(self) -> None:
        """Draws."""
        self.redraw()

    def watch_lead(self) -> None:
        """Draws."""
        self.redraw()

    def watch_failed(self) -> None:
        """Draws."""
        self.redraw()

    def text(self, cells: int) -> Content:
        """The changes, as many as a few lines hold, or how to get some."""
        if self.failed:
            return Content.assemble(("! ", "bold $warning"), (self.failed, "$warning"))
        if not self.changes:
            return Content.assemble(("No change yet: ← → turn it.", "$foreground 60%"))
        most = _CHANGE_LINES if self.roomy else _CHANGE_LINES - 1
        for shown in range(len(self.changes), 0, -1):
            more = f" and {len(self.changes) - shown} more" if shown < len(self.changes) else ""
            words = Content.assemble(
                (f"{self.lead} ", "$foreground 70%"), (", ".join(self.changes[:shown]) + more, "bold $warning")
            )
            if shown == 1 or words.get_height({}, cells) <= most:
                break
        return words


class TuneScreen(Place):
    """The start screen."""

    mode = "tune"
    purpose = "Turn knobs and see both pools before the restart."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+z", "app.undo", "Undo", show=False, tooltip="Take the last change of a knob back", id="tune.undo"
        ),
        Binding("ctrl+y", "app.redo", "Redo", show=False, tooltip="Make the change again", id="tune.redo"),
        Binding(
            "A",
            "app.auto",
            "Auto",
            tooltip="Say what is needed: rounds from these flags until a server was seen to meet it",
            id="tune.auto",
        ),
        Binding("b", "app.reset", "Reset", tooltip="All knobs to the running server's values", id="tune.reset"),
        Binding("i", "app.go('doctor')", "Doctor", tooltip="What was found, why, and what to do", id="tune.doctor"),
        Binding(
            "t",
            "numbers",
            "Numbers",
            show=False,
            tooltip="Every number of the plan and where it comes from",
            id="tune.numbers",
        ),
        Binding("v", "app.verify", "Verify", tooltip="Run the checks on the running server again"),
        Binding("s", "app.stop", "Stop", tooltip="Stop the running server, after a question"),
        Binding("d", "unset", "Unset", show=False, tooltip="Leave this flag to the server (auto)", id="tune.unset"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._knobs: tuple[Knob, ...] = ()
        self._widgets: dict[str, Widget] = {}
        self._settle: Timer | None = None

    def body(self) -> Iterable[Widget]:
        """Knobs, preview, rounds (where there is room), live strip."""
        yield Horizontal(
            Vertical(VerticalScroll(id="knobs", can_focus=False), ChangeLine(), KnobHelp(), id="left"),
            VerticalScroll(
                VramBar(id="bar"),
                TermTable(id="terms"),
                PoolNumbers(id="numbers"),
                FindingsList(id="found"),
                Label("Last minutes", classes="title", id="trend-title"),
                LiveTrend(),
                id="preview",
                can_focus=False,
            ),
            Vertical(Label("Last rounds", classes="title"), RoundsBrief(), id="brief"),
            id="desk",
        )
        yield LiveStrip(id="live")

    async def on_mount(self) -> None:
        """Builds the knobs and follows bench, inputs and looks."""
        await self._build()
        self.watch(self.app, "bench", self._draw, init=False)
        self.watch(self.app, "inputs", self._inputs_changed, init=False)
        self.watch(self.app, "look", self._live, init=False)
        self.watch(self.app, "progress", self._moved_on, init=False)
        self.watch(self.app, "starter", self._live, init=False)
        self.watch(self.app, "inputs_problem", self._draw, init=False)
        self.watch(self.app, "baseline", self._draw, init=False)
        self.watch(self.app, "known", self._draw, init=False)
        self.watch(self.app, "history_version", self._rounds_changed, init=False)
        self._draw()
        self._live()
        self._history()

    def on_screen_resume(self) -> None:
        """Catches up."""
        self._draw()
        self._live()
        self._history()

    def on_resize(self, event: events.Resize) -> None:
        """The table of terms is long where the screen is tall and wide enough."""
        roomy = event.size.height >= 32 and event.size.width >= 110
        self.query_one(TermTable).tall = roomy
        self.query_one(PoolNumbers).roomy = roomy
        self.query_one(KnobHelp).roomy = self.query_one(ChangeLine).roomy = roomy
        self.query_one("#preview").set_class(roomy and event.size.height >= _TREND_ROWS, "-roomy")

    # knobs

    async def _build(self) -> None:
        app = self.tuner
        knobs = knobs_for(app.inputs.shape if app.inputs else None, {**app.bench.base.flags, **app.bench.draft.flags})
        if knobs == self._knobs:
            return
        self._knobs = knobs
        panel = self.query_one("#knobs", VerticalScroll)
        focused = self.focused.id if self.focused else None
        widgets: list[Widget] = []
        group = ""
        for knob in sorted(knobs, key=lambda k: ("Memory", "Scheduling").index(k.group)):
            if knob.group != group:
                group = knob.group
                widgets.append(Label(group, classes="title"))
            if isinstance(knob, SliderKnob):
                moved = partial(self._turned, knob)
                widgets.append(Slider(knob.label, knob.scale, unit=knob.unit, moved=moved, id=knob.name))
            else:
                widgets.append(Choice(knob.label, knob.options, id=knob.name))
        self._widgets = {widget.id: widget for widget in widgets if widget.id is not None}
        async with self.batch():
            await panel.remove_children()
            await panel.mount(*widgets)
        for slider in panel.query(Slider):
            self.watch(slider, "typed", self._explain, init=False)
        wanted = focused if focused and panel.query(f"#{focused}") else "mamba_full_memory_ratio"
        target = panel.query(f"#{wanted}") or panel.query("#mem_fraction_static")
        if self.focused is None or focused:
            target.first().focus()

    async def _inputs_changed(self) -> None:
        await self._build()
        self._draw()

    def _turned(self, knob: SliderKnob, value: float | None) -> None:
        self.tuner.change(slider_flags(knob, value))

    @on(Choice.Changed)
    def _chosen(self, event: Choice.Changed) -> None:
        knob = self._knob(event.choice.id)
        if isinstance(knob, ChoiceKnob):
            self.tuner.change(choice_flags(knob, event.value, self.tuner.bench.base.flags))

    @on(Choice.Opened)
    @work
    async def _opened(self, event: Choice.Opened) -> None:
        await choose_for(self.app, event.choice)

    def action_unset(self) -> None:
        """Leaves the flag of the knob in focus to the server."""
        knob = self._knob(self.focused.id if self.focused else None)
        if knob is not None:
            names = SPECULATIVE_FLAGS if knob.name == SPECULATION else (knob.name,)
            self.tuner.change(dict.fromkeys(names))

    def action_numbers(self) -> None:
        """Every number of the plan with its source."""
        from tuner.ui.screens.numbers import NumbersScreen

        inputs = self.tuner.inputs
        plan = preview(inputs, self.tuner.bench.draft).plan if inputs is not None else None
        if inputs is None or plan is None:
            self.tuner.say("There is no plan to explain.", severity="warning")
            return
        self.app.push_screen(NumbersScreen(inputs, plan, self.tuner.known))

    def on_descendant_focus(self) -> None:
        """Tells what the knob in focus does."""
        self._explain()

    def _explain(self) -> None:
        knob = self._knob(self.focused.id if self.focused else None)
        if knob is not None:
            told = self.query_one(KnobHelp)
            told.words, told.bounds = self._help(knob), self._bounds(knob)

    def _bounds(self, knob: Knob) -> str:
        widget = self._widgets.get(knob.name)
        if not isinstance(widget, Slider):
            return "← → change it · Enter lists all, with reasons"
        unit = f" {widget.unit}" if widget.unit else ""
        return f"{widget.bounds}{unit} · ┃ runs · ╌ fails · Enter types"

    def _help(self, knob: Knob) -> str:
        widget = self._widgets.get(knob.name)
        if isinstance(widget, Slider) and widget.typed is not None:
            return f"{widget.bounds}{f' {widget.unit}' if widget.unit else ''}. Enter takes it, Esc drops it."
        slots = self.tuner.bench.draft.flags.get("max_mamba_cache_size")
        if knob.name == "mamba_full_memory_ratio" and slots is not None:
            return f"No effect now: max_mamba_cache_size {slots} sets the state slots. On that knob, d leaves it unset."
        return knob.help

    def _knob(self, name: str | None) -> Knob | None:
        return next((k for k in self._knobs if k.name == name), None)

    # drawing

    def _draw(self) -> None:
        if not self.is_current:
            return
        app = self.tuner
        bench, inputs = app.bench, app.inputs
        shown = preview(inputs, bench.draft) if inputs is not None else None
        plan = shown.plan if shown else None
        self._draw_knobs(bench, plan)
        self._say_changes()
        ghost = app.baseline.plan
        self.query_one(VramBar).plan = plan
        self.query_one(VramBar).ghost = ghost
        self.query_one(TermTable).plan = plan
        self.query_one(TermTable).ghost = ghost
        self.query_one(PoolNumbers).plan = plan
        self.query_one(PoolNumbers).before = app.baseline
        self.query_one(PoolNumbers).known = app.known
        self.query_one("#preview").set_class(plan is None, "-no-plan")
        self.query_one("#preview").set_class(plan is not None and not plan.fits, "-fails")
        found = self.query_one(FindingsList)
        found.findings = plan.findings if plan else ()
        found.problem = shown.problem if shown else app.inputs_problem if bench.draft.model_path else NO_MODEL
        self._mark_later()

    def _say_changes(self) -> None:
        """What R would start now; that it failed, where nothing was changed since."""
        app, line = self.tuner, self.query_one(ChangeLine)
        bench, ended = app.bench, app.progress
        line.changes = tuple(changes_line((change,)) for change in bench.changes())
        if app.session.attached:
            line.lead = f"Against {bench.base_name}:"
        else:
            line.lead = f"R restarts {bench.base_name}:" if bench.base_name else "R starts:"
        round_ = ended.round if ended is not None and ended.lost else None
        same = round_ is not None and not bench.base_name and round_.recipe.flags == bench.draft.flags
        line.failed = f"{ended.title} with these flags: p shows why." if ended is not None and same else ""

    def _draw_knobs(self, bench: Bench, plan: Plan | None) -> None:
        base, draft = bench.base.flags, bench.draft.flags
        for knob in self._knobs:
            widget = self._widgets[knob.name]
            if isinstance(knob, SliderKnob) and isinstance(widget, Slider):
                slider = widget
                slider.compares = True
                slider.running = slider_value(knob, base)
                slider.value = slider_value(knob, draft)
                if slider.value is None:
                    slider.resting = resting_value(knob, self.tuner.inputs, plan)
            elif isinstance(knob, ChoiceKnob) and isinstance(widget, Choice):
                choice = widget
                choice.compares = True
                choice.running = choice_key(knob, base)
                choice.value = choice_key(knob, draft)

    def _mark_later(self) -> None:
        if self._settle is not None:
            self._settle.stop()
        self._settle = self.set_timer(0.2, self._mark)

    @work(thread=True, exclusive=True, group="marks")
    def _mark(self) -> None:
        """Tries values along the tracks, off the event loop."""
        app = self.tuner
        inputs, recipe = app.inputs, app.bench.draft
        if inputs is None:
            return
        for knob in self._knobs:
            if isinstance(knob, SliderKnob) and knob.name in _MARKED:
                values = [knob.scale.at(i / (_TRIED - 1)) for i in range(_TRIED)]
                bad = failing(inputs, recipe, knob.name, [round(v) if knob.whole else v for v in values])
                self.app.call_from_thread(self._marked, knob.name, bad if any(bad) else ())

    def _marked(self, name: str, bad: tuple[bool, ...]) -> None:
        for slider in self.query(f"#{name}").results(Slider):
            slider.bad = bad

    def _live(self) -> None:
        if self.is_current:
            self.query_one(LiveStrip).show(self.tuner.look, self.tuner.progress, self.tuner.starter)
        self.query_one(LiveTrend).show(self.tuner.trend.told(FINE_S))

    def _moved_on(self) -> None:
        self._live()
        if self.is_current:
            self._say_changes()

    def _rounds_changed(self) -> None:
        self._history()

    @work(thread=True, exclusive=True, group="brief")
    def _history(self) -> None:
        try:
            lines = self.tuner.session.history.summaries(limit=40)
        except HistoryError as error:
            self.app.call_from_thread(self.tuner.say, str(error), severity="error")
            return
        self.app.call_from_thread(self._brief, tuple(lines))

    def _brief(self, lines: tuple[RoundSummary, ...]) -> None:
        # The answer of a thread may come after the screen has gone.
        for brief in self.query(RoundsBrief):
            brief.lines = lines
