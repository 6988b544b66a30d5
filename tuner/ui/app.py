"""The terminal app: it holds what the screens share, and turns keys into calls of the session."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click
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
from tuner.planner.model import PlanInputs
from tuner.recipe.model import Recipe
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round, RoundState
from tuner.session.events import RoundClosed, RoundOpened
from tuner.text import plain
from tuner.ui import progress as progressing
from tuner.ui.ascii import AsciiFilter, only_ascii
from tuner.ui.bench import Bench, flag_changes
from tuner.ui.messages import Happened, InputsArrived, LookArrived, LookFailed, WorkEnded
from tuner.ui.preview import Baseline, baseline, preview
from tuner.ui.progress import Progress, Work
from tuner.ui.runner import EVERY_S, Runner
from tuner.ui.screens.base import Place
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.screens.restart import RestartFacts, restart_screen
from tuner.ui.screens.tune import TuneScreen
from tuner.ui.screens.working import WorkingScreen
from tuner.ui.settings import FILE, AppSettings, SettingsError, read_settings
from tuner.ui.terminal import TerminalDriver
from tuner.ui.themes import THEMES
from tuner.ui.timing import last_like, times_of
from tuner.ui.widgets.chrome import PLACES
from tuner.ui.wording import Known, changes_line, in_flight_words

if TYPE_CHECKING:
    from tuner.session.session import Session
    from tuner.session.watching import Look

_ENDED_EARLY = (RoundState.FAILED, RoundState.ABORTED, RoundState.REFUSED)


def _machine(recipe: Recipe) -> object:
    """Of a recipe, what the inputs of its plans depend on; the other flags only go into the plan itself."""
    parallel = tuple(recipe.flags.get(name) for name in ("tp_size", "pp_size", "dp_size"))
    return recipe.model_path, recipe.port, parallel, recipe.python, recipe.environment, recipe.tuner


def _rounds() -> Screen[Any]:
    from tuner.ui.screens.rounds import RoundsScreen  # screens not opened cost nothing at the first paint

    return RoundsScreen()


def _compare() -> Screen[Any]:
    from tuner.ui.screens.compare import CompareScreen

    return CompareScreen()


def _log() -> Screen[Any]:
    from tuner.ui.screens.log import LogScreen

    return LogScreen()


def _doctor() -> Screen[Any]:
    from tuner.ui.screens.doctor import DoctorScreen

    return DoctorScreen()


def _presets() -> Screen[Any]:
    from tuner.ui.screens.presets import PresetsScreen

    return PresetsScreen()


class TunerApp(App[None]):
    """Screens read its reactives; only its methods change them."""

    TITLE = "tuner"
    CSS_PATH = "tuner.tcss"
    MODES = {  # noqa: RUF012
        "tune": TuneScreen,
        "rounds": _rounds,
        "compare": _compare,
        "log": _log,
        "doctor": _doctor,
        "presets": _presets,
    }
    DEFAULT_MODE = "tune"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide"), (176, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "Help", show=False, id="help",
                tooltip="The keys of this screen"),
        Binding("1", "go('tune')", "Tune", show=False, id="go.tune", tooltip="Knobs and the plan of the next start"),
        Binding("2", "go('rounds')", "Rounds", show=False, id="go.rounds", tooltip="The history of rounds"),
        Binding("3", "go('compare')", "Compare", show=False, id="go.compare", tooltip="Two rounds side by side"),
        Binding("4", "go('log')", "Log", show=False, id="go.log", tooltip="What the server prints"),
        Binding("5", "go('doctor')", "Doctor", show=False, id="go.doctor", tooltip="What was found, and what to do"),
        Binding("6", "go('presets')", "Presets", show=False, id="go.presets", tooltip="Recipes to start from"),
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
        Binding("T", "shade", "Light or dark", show=False, id="shade", tooltip="Light colours or dark ones"),
        Binding("q", "quit", "Quit", id="quit", tooltip="Leave; the server stays up"),
    ]  # fmt: skip

    # Vars, not reactives: a reactive of the app would repaint the whole screen at every look.
    look: var[Look | None] = var(None)
    #: Why the last poll failed; then ``look`` is old.
    look_problem: var[str] = var("")
    bench: var[Bench] = var(Bench.opened(Recipe()))
    inputs: var[PlanInputs | None] = var(None)
    inputs_problem: var[str] = var("")
    baseline: var[Baseline] = var(Baseline())
    #: How far the plans of the last rounds were off, newest first.
    known: var[Known] = var(())
    #: The process of another tuner that is in the middle of the running server's round.
    starter: var[int | None] = var(None)
    progress: var[Progress | None] = var(None)
    #: Name of the running round ("r3"), "server" for one without a round, "" while nothing runs.
    running_name: var[str] = var("")
    #: Counts changes of the history, for screens that show it.
    history_version: var[int] = var(0)
    #: Rounds marked to compare, in the order marked.
    marked: var[tuple[int, ...]] = var(())
    #: The round under the cursor of the rounds list.
    chosen: var[int | None] = var(None)

    def __init__(self, session: Session, recipe: Recipe, *, demo: bool = False, every_s: float = EVERY_S) -> None:
        super().__init__()
        self.session = session
        self._demo = demo
        self._looked = False
        #: What the inputs were gathered for and in which turn.
        self._gathered_for: object = None
        self._gathered_turn = 0
        #: The server whose end is no surprise, and the running round as last seen.
        self._ended = ""
        self._seen: object = None
        self._ascii = False
        self.runner = Runner(session, self.post_message, every_s=every_s)
        self.set_reactive(TunerApp.bench, Bench.opened(recipe))
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name
        self.settings_problem = ""
        self._settle()

    def _settle(self) -> None:
        """Takes the operator's settings; what cannot be used is told once the screen is up."""
        settings = AppSettings()
        try:
            settings = read_settings(self.session.home.config)
        except (SettingsError, HomeError) as error:
            self.settings_problem = str(error)
        self._ascii = settings.ascii if settings.ascii is not None else only_ascii()
        if settings.theme in self.available_themes:
            self.theme = settings.theme
        elif settings.theme:
            self.settings_problem = f"There is no theme {settings.theme!r}: {', '.join(sorted(self.available_themes))}."
        if settings.keys:
            self._take_keys(settings.keys)

    def _take_keys(self, keys: dict[str, str]) -> None:
        from tuner.ui.keys import key_names  # imports every screen

        unknown = sorted(keys.keys() - key_names(type(self)))
        if unknown:
            self.settings_problem = f"{FILE}: no key is called {', '.join(unknown)}; ? lists the names."
        self.set_keymap({name: key for name, key in keys.items() if name not in unknown})

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
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.exit)
        self._gather()
        self.runner.watch()
        if self.settings_problem:
            self.say(self.settings_problem, severity="warning")

    def on_unmount(self) -> None:
        """Lets the threads go; the server stays up."""
        self.runner.close()

    # what threads tell

    @on(LookArrived)
    def _looked_at(self, message: LookArrived) -> None:
        if self.progress is not None:
            self.progress = progressing.ticked(self.progress, time.monotonic())
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
        self.history_version += 1
        self.runner.look_now()
        # The boot log of a round just ended may calibrate the next plan.
        self._gather()
        if not isinstance(self.screen, WorkingScreen):
            ended = self.progress
            words = "." if ended.good else f": {ended.problem or 'p shows how, 5 what to do'}"
            self.say(f"{ended.title}{words}", severity="information" if ended.good else "warning")

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
        if self._occupied() or self._taken():
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
        stops = f"{self.running_name} is stopped first. " if self.running_name else ""
        question = f"{stops}The start is as good as sure to fail. Start the flags of {refused.name} all the same?"
        text = Content(f"{plain(refused.reason)}\n\n{question}")
        title = f"Start anyway what was refused as {refused.name}"
        if await self.push_screen_wait(ConfirmScreen(title, text, yes="Start anyway", careful=True)):
            self.bench = self.bench.replaced(refused.recipe)
            self._begin_round(force=True)

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
        self.progress = progressing.begin(
            Work.ROUND,
            stops_first=bool(self.running_name),
            before=times_of(before),
            simulated=recipe.simulated,
            now=time.monotonic(),
        )
        self._ended = self.running_name
        self.push_screen(WorkingScreen())

    def _say_busy(self) -> None:
        doing = self.progress.title if self.progress is not None and not self.progress.ended else "Other work"
        self.say(f"Not begun: {doing[:1].lower()}{doing[1:]} is still under way. p shows it.", severity="warning")

    def action_verify(self) -> None:
        """The checks again."""
        if self._occupied() or self._nothing_runs():
            return
        if self.runner.verify():
            self._begin(Work.VERIFY)

    @work(exclusive=True, group="dialog")
    async def action_stop(self) -> None:
        """Asks, then stops the server."""
        if self._occupied() or self._nothing_runs():
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
        self.progress = progressing.begin(
            work, stops_first=work is Work.STOP, before={}, simulated=self.simulated, now=time.monotonic()
        )
        self.push_screen(WorkingScreen())

    def abort(self) -> None:
        """Asks the work under way to end."""
        if self.progress is not None and not self.progress.ended:
            self.runner.abort()
            self.progress = progressing.aborting(self.progress)

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
        """Every key of the screen and of the app is a command; those that move inside a widget are not."""
        seen: set[str] = set()
        for active in screen.active_bindings.values():
            binding = active.binding
            if not binding.tooltip or not binding.description or binding.action in seen or not active.enabled:
                continue
            if active.node is not self and active.node is not screen:
                continue
            seen.add(binding.action)
            key = binding.key_display or self.get_key_display(binding)
            run = partial(self.run_action, binding.action, active.node)
            yield SystemCommand(binding.description, f"{binding.tooltip} · key {key}", run)
        yield SystemCommand("Theme", "Choose the colours among all themes", self.action_change_theme)

    def say(self, text: str, *, severity: Literal["information", "warning", "error"] = "information") -> None:
        """One sentence at the corner; never read as markup."""
        self.notify(text, severity=severity, markup=False)


def run_app(session: Session, recipe: Recipe, *, demo: bool) -> int:
    """Opens the app and returns the exit status; says what still runs when it is left."""
    app = TunerApp(session, recipe, demo=demo)
    app.run()
    if app.return_code:
        return app.return_code
    running = app.look.running if app.look is not None else None
    if running is not None:
        kind = "simulated server" if running.handle.simulated else "server"
        click.echo(f"The {kind} still runs on port {running.handle.port}: tuner opens it again, tuner stop ends it.")
    return 0
