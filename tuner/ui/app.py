"""The terminal app: it holds what the screens share, and turns keys into calls of the session."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click
import msgspec
from textual import on, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.reactive import var
from textual.screen import Screen

from tuner.paths import HomeError
from tuner.planner.model import HEADROOM_GIB, PlanInputs
from tuner.recipe.model import Recipe, RecipeError
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round, RoundState
from tuner.session.events import RoundClosed, RoundOpened
from tuner.session.first_preset import keep_preset, packaged_demo
from tuner.ui import auto_view
from tuner.ui import progress as progressing
from tuner.ui.ascii import AsciiFilter
from tuner.ui.bench import Bench, flag_changes
from tuner.ui.commands import commands
from tuner.ui.keys import named_keys
from tuner.ui.messages import Happened, InputsArrived, LookArrived, LookFailed, WorkEnded
from tuner.ui.modes import MODES
from tuner.ui.preview import Baseline, baseline, preview
from tuner.ui.progress import Progress, Work
from tuner.ui.runner import EVERY_S, Runner
from tuner.ui.screens.base import Place
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.screens.restart import RestartFacts, back_screen, force_screen, restart_screen
from tuner.ui.screens.working import WorkingScreen
from tuner.ui.settings import FILE, AppSettings, SettingsError, read_settings
from tuner.ui.settling import settled
from tuner.ui.signals import Handlers, on_signals
from tuner.ui.terminal import TerminalDriver
from tuner.ui.themes import THEMES
from tuner.ui.timing import last_like, times_of
from tuner.ui.trend import Trend
from tuner.ui.widgets.chrome import PLACES
from tuner.ui.wording import Known, changes_line, in_flight_words

if TYPE_CHECKING:
    from tuner.session.session import Session
    from tuner.session.watching import Look

#: Seconds after which a screen has been drawn for the first time.
_OPENED_S = 1.5
_ENDED_EARLY = (RoundState.FAILED, RoundState.ABORTED, RoundState.REFUSED)


def _machine(recipe: Recipe) -> object:
    """Of a recipe, what the inputs of its plans depend on; the other flags only go into the plan itself."""
    parallel = tuple(recipe.flags.get(name) for name in ("tp_size", "pp_size", "dp_size"))
    return recipe.model_path, recipe.port, parallel, recipe.python, recipe.environment, recipe.tuner


#: Seconds without a look from which on what is shown counts as old; a look takes 1.5 s at the most.
LATE_S = 2.5


class TunerApp(App[None]):
    """Screens read its reactives; only its methods change them."""

    TITLE = "tuner"
    CSS_PATH = "tuner.tcss"
    MODES = MODES  # type: ignore[assignment]
    DEFAULT_MODE = "tune"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide"), (176, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "Help", show=False, id="help",
                tooltip="The keys of this screen"),
        Binding("G", "guide", "Guide", show=False, id="guide", tooltip="The page of the guide on this screen"),
        Binding("1", "go('tune')", "Tune", show=False, id="go.tune", tooltip="Knobs and the plan of the next start"),
        Binding("2", "go('rounds')", "Rounds", show=False, id="go.rounds", tooltip="The history of rounds"),
        Binding("3", "go('compare')", "Compare", show=False, id="go.compare", tooltip="Two rounds side by side"),
        Binding("4", "go('log')", "Log", show=False, id="go.log", tooltip="What the server prints"),
        Binding("5", "go('doctor')", "Doctor", show=False, id="go.doctor", tooltip="What was found, and what to do"),
        Binding("6", "go('presets')", "Presets", show=False, id="go.presets", tooltip="Recipes to start from"),
        Binding("7", "go('live')", "Live", show=False, id="go.live", tooltip="Every reading, what binds now, charts"),
        Binding("R,ctrl+r", "restart", "Restart", id="restart",
                tooltip="Start the server with the flags on the Tune screen, after a question"),
        Binding("v", "verify", "Verify", show=False, id="verify", tooltip="Run the checks on the running server again"),
        Binding("s", "stop", "Stop", show=False, id="stop", tooltip="Stop the running server, after a question"),
        Binding("n", "note", "Note", id="note", tooltip="Write the note of the round chosen (else of the newest)"),
        Binding("e", "export", "Export", id="export", tooltip="Write the round chosen (else the newest) to a file"),
        Binding("k", "judge('keep')", "Keep", show=False, id="keep", tooltip="Mark the round as one to keep"),
        Binding("x", "judge('reject')", "Reject", show=False, id="reject", tooltip="Mark the round as rejected"),
        Binding("p", "progress", "Progress", show=False, id="progress",
                tooltip="Show the work under way, or how the last one ended"),
        Binding("f3", "find", "Find", show=False, id="find",
                tooltip="Look around for SGLang, models, cards and servers, and begin with what is found"),
        Binding("T", "shade", "Light or dark", show=False, id="shade", tooltip="Light colours or dark ones"),
        Binding("q", "quit", "Quit", id="quit", tooltip="Leave; the server stays up"),
    ]  # fmt: skip

    # Vars, not reactives: a reactive of the app would repaint the whole screen at every look.
    look: var[Look | None] = var(None)
    #: Why the last poll failed; then ``look`` is old.
    look_problem: var[str] = var("")
    #: Seconds since the last look, once it is overdue.
    late_s: var[int] = var(0)
    bench: var[Bench] = var(Bench.opened(Recipe()))
    inputs: var[PlanInputs | None] = var(None)
    inputs_problem: var[str] = var("")
    baseline: var[Baseline] = var(Baseline())
    #: How far the plans of the last rounds were off, newest first.
    known: var[Known] = var(())
    #: The process of another tuner that is in the middle of the running server's round.
    starter: var[int | None] = var(None)
    progress: var[Progress | None] = var(None)
    #: The rounds of auto, under way or the last.
    auto: var[auto_view.AutoView | None] = var(None)
    #: Name of the running round ("r3"), "server" for one without a round, "" while nothing runs.
    running_name: var[str] = var("")
    #: Counts changes of the history, for screens that show it.
    history_version: var[int] = var(0)
    #: Rounds marked to compare, in the order marked.
    marked: var[tuple[int, ...]] = var(())
    #: The round under the cursor of the rounds list.
    chosen: var[int | None] = var(None)

    def __init__(
        self, session: Session, recipe: Recipe, *, demo: bool = False, first: bool = False, every_s: float = EVERY_S
    ) -> None:
        """``demo`` starts the recipe when nothing runs; ``first`` looks around for what a recipe needs."""
        super().__init__()
        self.session = session
        self._demo = demo
        self._first = first
        self._looked = False
        #: What the inputs were gathered for and in which turn.
        self._gathered_for: object = None
        self._gathered_turn = 0
        #: The server whose end is no surprise, and the running round as last seen.
        self._ended = ""
        self._seen: object = None
        self._ascii = False
        self._told_to_go: Handlers | None = None
        #: Screens whose objects are kept out of collections.
        self._frozen: set[str] = set()
        #: What charts show, and when the last look came.
        self.trend = Trend()
        self._looked_at_s = time.monotonic()
        self.runner = Runner(session, self.post_message, every_s=every_s)
        self.set_reactive(TunerApp.bench, Bench.opened(recipe))
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name
        self.settings_problem = ""
        self._settle()

    def _settle(self) -> None:
        """Takes the operator's settings; what cannot be used is told once the screen is up."""
        settings, problem = AppSettings(), ""
        try:
            settings = read_settings(self.session.home.config)
        except (SettingsError, HomeError) as error:
            problem = str(error)
        taken = settled(settings, self.available_themes, partial(named_keys, type(self)), os.environ)
        self.settings_problem = problem or taken.problem
        self._ascii, self.theme = taken.ascii, taken.theme
        if taken.keys:
            self.set_keymap(taken.keys)

    def get_driver_class(self) -> type[Driver]:
        """Textual's own choice; on a plain terminal the driver that notices when it is gone."""
        chosen = super().get_driver_class()
        return TerminalDriver if chosen is LinuxDriver else chosen

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Besides Textual's own: everything in ASCII where the terminal has nothing else."""
        filters = super().get_line_filters()
        return [*filters, AsciiFilter()] if self._ascii else filters

    @property
    def simulated(self) -> bool:
        """Whether what runs (or would start) is the stand-in server."""
        if self.look is not None and self.look.running is not None:
            return self.look.running.handle.simulated
        return self.bench.draft.simulated

    @property
    def running_round(self) -> Round | None:
        """The round of the running server."""
        return self.look.running.round if self.look is not None and self.look.running is not None else None

    # life

    def on_mount(self) -> None:
        """Polls, gathers what plans need, and leaves properly when it is told to go."""
        self._told_to_go = on_signals(self._let_go, self.exit)
        self._gather()
        self._close_lost()
        self.runner.watch()
        self._keep_out_of_collections()
        self.set_interval(1.0, self._mark_late)
        if self.settings_problem:
            self.say(self.settings_problem, severity="warning")
        if self._first:
            self.action_find()

    @work(thread=True, group="lost")
    def _close_lost(self) -> None:
        """Rounds whose tuner went away in the middle are closed, where that may be written."""
        if self.session.attached:
            return
        try:
            self.session.settle()
        except HistoryError as error:
            self.call_from_thread(self.say, str(error), severity="warning")

    def _keep_out_of_collections(self) -> None:
        """Modules and screens live as long as the app: looking through them for garbage holds it up 0.1 s a time."""
        if self.current_mode not in self._frozen:
            self._frozen.add(self.current_mode)
            self.set_timer(_OPENED_S, gc.freeze)

    def on_unmount(self) -> None:
        """Lets the threads go; the server stays up."""
        self.runner.close()
        if self._told_to_go is not None:
            self._told_to_go.restore()

    def _let_go(self) -> None:
        """The loop may wait for a terminal that takes nothing: no longer. Runs in a signal handler."""
        if isinstance(self._driver, TerminalDriver):
            self._driver.leave()

    @property
    def unseen(self) -> bool:
        """Whether nobody sees any more what is written."""
        return isinstance(self._driver, TerminalDriver) and self._driver.gone

    # what threads tell

    @on(LookArrived)
    def _looked_at(self, message: LookArrived) -> None:
        if self.progress is not None:
            self.progress = progressing.ticked(self.progress, time.monotonic())
        self._keep_for_charts(message.look)
        self.look, self.look_problem, self.starter = message.look, "", message.starter
        running = message.look.running
        name = (running.handle.round_name or "server") if running else ""
        if name != self.running_name or not self._looked:
            gone, self.running_name = self.running_name, name
            if running is not None:
                self.bench = self.bench.rebased(running.handle.recipe, name)
            else:
                self.bench = self.bench.rebased(self.bench.base, "")
                self._miss(gone)
            self._gather()
        seen = running.round if running is not None else None
        state = (seen.name, seen.state, seen.note, seen.verdict) if seen is not None else None
        if state != self._seen:
            # Another tuner may be at work on it.
            self._seen = state
            self.history_version += 1
        if not self._looked:
            self._looked = True
            if self._demo and running is None:
                self._begin_round()

    def _keep_for_charts(self, look: Look) -> None:
        self._looked_at_s = time.monotonic()
        self.late_s = 0
        if look.running is not None and look.readings is not None:
            self.trend.take(look.readings, look.running.handle.round_name or "server")

    def _mark_late(self) -> None:
        """Says since when there is no news at all: a look that hangs must not pass for a quiet server."""
        passed = time.monotonic() - self._looked_at_s
        self.late_s = int(passed) if passed > LATE_S else 0

    def _miss(self, name: str) -> None:
        """Says that a server has gone, unless that was asked for here or a start has just told it."""
        round_ = self.progress.round if self.progress is not None else None
        told = round_ is not None and round_.name == name and round_.state in _ENDED_EARLY
        if name and name != self._ended and not told and not self.runner.busy:
            self.say(
                f"The server of {name} is gone: stopped or killed from outside. 4 shows its log, R starts it again.",
                severity="warning",
            )

    def _gather(self) -> None:
        """What plans of the draft need."""
        self._gathered_for = _machine(self.bench.draft)
        self.runner.gather(self.bench.draft)

    def watch_bench(self) -> None:
        """Another model, interpreter or environment on the bench needs other inputs."""
        if self.is_running and self._gathered_for is not None and self._gathered_for != _machine(self.bench.draft):
            self._gather()

    @on(LookFailed)
    def _look_failed(self, message: LookFailed) -> None:
        self.look_problem = message.problem

    @on(InputsArrived)
    def _gathered(self, message: InputsArrived) -> None:
        if _machine(message.recipe) != self._gathered_for or message.turn < self._gathered_turn:
            return
        self._gathered_turn = message.turn
        self.inputs, self.inputs_problem, self.known = message.inputs, message.problem, message.accuracy
        same = _machine(self.bench.base) == self._gathered_for
        planned = preview(message.inputs, self.bench.base).plan if message.inputs is not None and same else None
        self.baseline = baseline(self.bench.base_name, planned, self.running_round)

    @on(Happened)
    def _happened(self, message: Happened) -> None:
        if self.auto is not None and not self.auto.ended:
            self.auto = auto_view.advance(self.auto, message.event)
            if isinstance(message.event, RoundOpened):
                # Each of its rounds has a list of steps of its own.
                self.progress = self._begun_round({}, simulated=message.event.round.simulated)
        if self.progress is not None:
            self.progress = progressing.advance(self.progress, message.event, time.monotonic())
        if isinstance(message.event, RoundOpened | RoundClosed):
            self.history_version += 1
            self.chosen = message.event.round.number

    @on(WorkEnded)
    def _work_ended(self, message: WorkEnded) -> None:
        if self.progress is None:
            return
        self.progress = progressing.finish(self.progress, message.problem, time.monotonic())
        if self.auto is not None:
            self.auto = auto_view.ended(self.auto, message.problem)
        self.history_version += 1
        self.runner.look_now()
        # The boot log of a round just ended may calibrate the next plan.
        self._gather()
        if self.auto is not None:
            self._say_auto(self.auto)
            return
        if self.progress.work is Work.ROUND and self.progress.round is not None and not self.progress.good:
            self._look_back(self.progress.round)
        # The end of the work may come while the app is being left.
        if self.screen_stack and not isinstance(self.screen, WorkingScreen):
            ended = self.progress
            words = "." if ended.good else f": {ended.problem or 'p shows how, 5 what to do'}"
            self.say(f"{ended.title}{words}", severity="information" if ended.good else "warning")

    @work(exclusive=True, group="dialog")
    async def action_find(self) -> None:
        """Looks around this machine, asks what is missing, and puts the recipe on the bench."""
        from tuner.ui.screens.first_run import FirstRunScreen

        begun = await self.push_screen_wait(FirstRunScreen(self.session.finder))
        try:
            if begun is not None and begun.demo:
                name = "demo"
                self.load(await asyncio.to_thread(packaged_demo, self.session.home), name)
                if not self.running_name:
                    self._begin_round()
            elif begun is not None and begun.recipe is not None:
                path = await asyncio.to_thread(keep_preset, self.session.home, begun.recipe)
                self.bench = self.bench.loaded(begun.recipe)
                self.say(f"{begun.words} Kept as preset {path.stem} in {path.parent}. R starts it.")
                self.go("tune")
        except (HomeError, RecipeError) as error:
            self.say(str(error), severity="error")
        except OSError as error:
            self.say(f"The preset cannot be written: {error.strerror or error}.", severity="error")

    # the bench

    def change(self, flags: dict[str, Any]) -> None:
        """Changes flags of the draft; None removes one."""
        self.bench = self.bench.changed(flags)

    def use(self, round_: Round) -> None:
        """Another round's flags onto the bench."""
        self.bench = self.bench.replaced(round_.recipe)
        self.say(f"The flags of {round_.name} are on the Tune screen. R starts them, Ctrl+Z takes them back.")
        self.go("tune")

    def apply(self, flags: dict[str, Any]) -> None:
        """A remedy's flags onto the bench."""
        before = self.bench
        self.bench = self.bench.applied(flags)
        words = changes_line(flag_changes(before.draft.flags, self.bench.draft.flags))
        self.say(f"On the Tune screen: {words}. R starts it, Ctrl+Z takes it back.")

    def load(self, recipe: Recipe, name: str) -> None:
        """A whole recipe onto the bench."""
        self.bench = self.bench.loaded(recipe)
        self.say(f"{name} is on the Tune screen. R starts it, Ctrl+Z takes it back.")
        self.go("tune")

    def action_undo(self) -> None:
        """One change back."""
        self.bench = self.bench.undone()

    def action_redo(self) -> None:
        """One change forward."""
        self.bench = self.bench.redone()

    def action_reset(self) -> None:
        """All knobs as running."""
        self.bench = self.bench.reset()

    # work

    @work(exclusive=True, group="dialog")
    async def action_restart(self) -> None:
        """Asks once, then starts."""
        if self._only_looks() or self._occupied() or self._taken():
            return
        facts = await self._restart_facts()
        if facts is not None and await self.push_screen_wait(restart_screen(facts)):
            self._begin_round(force=facts.refused)

    @work(exclusive=True, group="dialog")
    async def force(self) -> None:
        """Asks, then starts what was refused."""
        refused = self.progress.round if self.progress is not None else None
        if refused is None or self._occupied() or self._taken():
            return
        if await self.push_screen_wait(force_screen(refused, self.running_name)):
            self.bench = self.bench.replaced(refused.recipe)
            self._begin_round(force=True)

    @work(thread=True, exclusive=True, group="back")
    def _look_back(self, round_: Round) -> None:
        """What there is to go back to after a round that did not come out well."""
        try:
            good = self.session.way_back(round_)
        except HistoryError:
            # The work itself has told what is wrong with the history.
            return
        self.call_from_thread(self._offer, round_, good)

    def _offer(self, round_: Round, good: Round | None) -> None:
        if self.progress is not None and self.progress.ended and self.progress.round == round_:
            self.progress = progressing.offering(self.progress, good)

    @work(exclusive=True, group="dialog")
    async def fall_back(self) -> None:
        """Asks, then starts the last good round again."""
        ended = self.progress
        if ended is None or ended.round is None or ended.back is None or self._occupied() or self._taken():
            return
        if await self.push_screen_wait(back_screen(ended.back, ended.round, self.running_name)):
            self.bench = self.bench.replaced(ended.back.recipe)
            if self.runner.fall_back(ended.round):
                self._watch_round(times_of(ended.back), simulated=ended.back.simulated)
            else:
                self._say_busy()

    def _only_looks(self) -> bool:
        """Whether the server is only looked at; says so."""
        if self.session.attached:
            from tuner.session.attached import read_only_words  # only there anything is attached

            self.say(read_only_words(self.session.attached), severity="warning")
        return bool(self.session.attached)

    def _taken(self) -> bool:
        """Whether another tuner is in the middle of a round on this server; says so."""
        if self.starter is not None:
            words = f"Another tuner (process {self.starter}) is in the middle of {self.running_name}: wait for it."
            self.say(words, severity="warning")
        return self.starter is not None

    async def _restart_facts(self) -> RestartFacts | None:
        recipe = self.bench.draft
        try:
            before = await asyncio.to_thread(last_like, self.session.history, recipe)
        except HistoryError as error:
            self.say(str(error), severity="error")
            return None
        shown = preview(self.inputs, recipe) if self.inputs is not None else None
        readings = self.look.readings if self.look is not None else None
        counted = (readings.running, readings.queued) if readings is not None else (None, None)
        known = [n for n in counted if n is not None]
        return RestartFacts(
            changes=self.bench.changes(),
            before=self.baseline,
            plan=shown.plan if shown else None,
            problem=shown.problem if shown else self.inputs_problem,
            took_s=before.ready_seconds if before else None,
            took_name=before.name if before else "",
            in_flight=sum(known) if known else None,
            simulated=recipe.simulated,
            known=self.known,
        )

    @work(exclusive=True, group="begin")
    async def _begin_round(self, *, force: bool = False) -> None:
        recipe = self.bench.draft
        try:
            before = await asyncio.to_thread(last_like, self.session.history, recipe)
        except HistoryError as error:
            self.say(str(error), severity="error")
            return
        if not self.runner.start_round(recipe, force=force):
            self._say_busy()
            return
        self._watch_round(times_of(before), simulated=recipe.simulated)

    def _watch_round(self, before: Mapping[str, float], *, simulated: bool) -> None:
        """Shows a round that has been begun; ``before``: the times of an earlier start."""
        self.auto = None
        self.progress = self._begun_round(before, simulated=simulated)
        self._ended = self.running_name
        self.push_screen(WorkingScreen())

    def _begun_round(self, before: Mapping[str, float], *, simulated: bool) -> Progress:
        return progressing.begin(
            Work.ROUND,
            stops_first=bool(self.running_name),
            before=before,
            simulated=simulated,
            now=time.monotonic(),
        )

    @work(exclusive=True, group="dialog")
    async def action_auto(self) -> None:
        """Asks for the need and begins; while it is under way, shows it."""
        from tuner.ui.screens.auto import AutoScreen, NeedScreen  # not opened, it costs nothing at the first paint

        if self.auto is not None and not self.auto.ended:
            self.push_screen(AutoScreen())
            return
        if self._only_looks() or self._occupied() or self._taken():
            return
        recipe = self.bench.draft
        agents = recipe.flags.get("max_running_requests")
        line = recipe.tuner.headroom_gib
        goal = await self.push_screen_wait(
            NeedScreen(
                agents=agents if isinstance(agents, int) else 1,
                headroom_gib=line if line is not None else HEADROOM_GIB,
                running=self.running_name,
            )
        )
        if goal is None:
            return
        if not self.runner.start_auto(recipe, goal):
            self._say_busy()
            return
        self.auto = auto_view.AutoView()
        self.progress = self._begun_round({}, simulated=recipe.simulated)
        self._ended = self.running_name
        self.push_screen(AutoScreen())

    def show_phases(self) -> None:
        """The steps of the start under way."""
        self.push_screen(WorkingScreen())

    def _say_auto(self, view: auto_view.AutoView) -> None:
        met = view.outcome is not None and view.outcome.met
        words = view.outcome.reason if view.outcome is not None else view.problem
        self.say(f"Auto: {words}", severity="information" if met else "warning")

    def _say_busy(self) -> None:
        doing = self.progress.title if self.progress is not None and not self.progress.ended else "Other work"
        self.say(f"Not begun: {doing[:1].lower()}{doing[1:]} is still under way. p shows it.", severity="warning")

    def action_verify(self) -> None:
        """The checks again."""
        if self._only_looks() or self._occupied() or self._nothing_runs():
            return
        if self.runner.verify():
            self._begin(Work.VERIFY)

    @work(exclusive=True, group="dialog")
    async def action_stop(self) -> None:
        """Asks, then stops the server."""
        if self._only_looks() or self._occupied() or self._nothing_runs():
            return
        readings = self.look.readings if self.look is not None else None
        flying = (readings.running or 0) + (readings.queued or 0) if readings is not None else 0
        text = in_flight_words(flying) if flying else "No request is known to be in flight."
        if await self.push_screen_wait(
            ConfirmScreen(f"Stop {self.running_name}", Content(text), yes="Stop", careful=flying > 0)
        ):
            if not self.runner.stop():
                self._say_busy()
                return
            self._ended = self.running_name
            self._begin(Work.STOP)

    def _begin(self, work: Work) -> None:
        self.auto = None
        self.progress = progressing.begin(
            work, stops_first=work is Work.STOP, before={}, simulated=self.simulated, now=time.monotonic()
        )
        self.push_screen(WorkingScreen())

    def abort(self) -> None:
        """Asks the work under way to end."""
        if self.progress is not None and not self.progress.ended:
            self.runner.abort()
            self.progress = progressing.aborting(self.progress)
            if self.auto is not None:
                self.auto = msgspec.structs.replace(self.auto, aborting=True)

    def action_progress(self) -> None:
        """The work under way, or the last."""
        if self.progress is None:
            self.say("Nothing has been started yet. R starts the server.")
        elif not isinstance(self.screen, WorkingScreen):
            self.push_screen(WorkingScreen())

    def _occupied(self) -> bool:
        if self.runner.busy:
            self.action_progress()
        return self.runner.busy

    def _nothing_runs(self) -> bool:
        if not self.running_name:
            self.say("No server runs. R starts one.", severity="warning")
        return not self.running_name

    # rounds

    @work(exclusive=True, group="dialog")
    async def action_note(self) -> None:
        """Edits the note of the round meant."""
        from tuner.ui.screens.note import NoteScreen

        round_ = await self._meant()
        if round_ is None:
            return
        note = await self.push_screen_wait(NoteScreen(round_.name, round_.note))
        if note is not None and await self._kept(partial(self.session.history.set_note, round_.number, note)):
            self.say(f"Note on {round_.name} saved.")

    @work(exclusive=True, group="dialog")
    async def action_export(self) -> None:
        """Writes the round meant to a file."""
        from tuner.ui.screens.export import ExportScreen

        round_ = await self._meant()
        if round_ is None:
            return
        written = await self.push_screen_wait(ExportScreen(round_.name, partial(self.session.export, round_.number)))
        if written is not None:
            mark = " It is marked as simulated." if round_.simulated else ""
            self.say(f"{round_.name} is written to {written.path}.{mark}")

    @work(exclusive=True, group="dialog")
    async def action_judge(self, verdict: Literal["keep", "reject"]) -> None:
        """Marks the round meant; the same key again takes the mark away."""
        round_ = await self._meant()
        if round_ is None:
            return
        wanted = "" if round_.verdict == verdict else verdict
        if await self._kept(partial(self.session.history.set_verdict, round_.number, wanted)):
            self.say(f"{round_.name} is marked: {wanted}." if wanted else f"The mark of {round_.name} is gone.")

    async def _meant(self) -> Round | None:
        """The round chosen in the list; elsewhere the running one, else the newest."""
        number = self.chosen if self.current_mode in ("rounds", "compare") else None
        if number is None and self.running_round is not None:
            number = self.running_round.number
        history = self.session.history
        try:
            round_ = await asyncio.to_thread(history.last if number is None else partial(history.get, number))
        except HistoryError as error:
            self.say(str(error), severity="error")
            return None
        if round_ is None:
            self.say("There is no round yet. R starts one.", severity="warning")
        return round_

    async def _kept(self, write: partial[None]) -> bool:
        try:
            await asyncio.to_thread(write)
        except HistoryError as error:
            self.say(str(error), severity="error")
            return False
        self.history_version += 1
        return True

    def log_of(self) -> tuple[str, int | None, str]:
        """Which log to show: name, round number and path, as far as known."""
        progress = self.progress
        if progress is not None and not progress.ended and progress.round is not None:
            return progress.round.name, progress.round.number, ""
        if self.chosen is not None:
            return f"r{self.chosen}", self.chosen, ""
        if self.look is not None and self.look.running is not None:
            return self.running_name, None, self.look.running.handle.log_path
        return "", None, ""

    # getting around

    def go(self, mode: str) -> None:
        """To a screen."""
        self.action_go(mode)

    def action_go(self, mode: str) -> None:
        """To a screen; dialogs of the one left stay open there."""
        if mode != self.current_mode:
            self.switch_mode(mode)
            self._keep_out_of_collections()

    def action_shade(self) -> None:
        """The other of our two themes."""
        dark, light = THEMES[0].name, THEMES[1].name
        self.theme = light if self.current_theme.dark else dark

    def action_help(self) -> None:
        """Lists the keys that work here."""
        from tuner.ui.screens.help import HelpScreen, key_groups

        screen = self.screen
        title = next((t for m, _, t in PLACES if isinstance(screen, Place) and m == screen.mode), "")
        self.push_screen(HelpScreen(title, getattr(screen, "purpose", ""), key_groups(screen), FILE))

    def action_guide(self) -> None:
        """The guide at the page of the screen."""
        from tuner.ui.screens.guide import GuideScreen, page_of

        self.push_screen(GuideScreen(page_of(self.screen)))

    async def action_quit(self) -> None:
        """Leaves; asks only while a start is under way."""
        self._leave()

    @work(exclusive=True, group="dialog")
    async def _leave(self) -> None:
        if self.runner.busy:
            text = Content("The work goes on without being watched: a start ends up unchecked. Esc stays here.")
            if not await self.push_screen_wait(ConfirmScreen("Quit", text, yes="Quit", no="Stay", careful=True)):
                return
        self.exit()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Every key of the screen and of the app is a command."""
        yield from commands(self, screen)
        if screen.is_modal:
            # There the app's own keys do not work.
            yield SystemCommand("Guide", "The page of the guide on this screen", self.action_guide)

    def say(self, text: str, *, severity: Literal["information", "warning", "error"] = "information") -> None:
        """One sentence at the corner; never read as markup."""
        self.notify(text, severity=severity, markup=False)


def run_app(session: Session, recipe: Recipe, *, demo: bool, first: bool = False) -> int:
    """Opens the app and returns the exit status; says what still runs when it is left."""
    app = TunerApp(session, recipe, demo=demo, first=first)
    app.run()
    if app.return_code or app.unseen:
        return app.return_code or 1
    running = app.look.running if app.look is not None else None
    if running is not None and not session.attached:
        kind = "simulated server" if running.handle.simulated else "server"
        click.echo(f"The {kind} still runs on port {running.handle.port}: tuner opens it again, tuner stop ends it.")
    return 0
