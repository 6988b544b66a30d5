"""From a key to work on the server and its end: what must hold, the one question, the start, how it came out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from textual.content import Content

from tuner.recipe.model import Recipe
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import FIRST_ANSWERS, Round, RoundState
from tuner.session.events import Event, RoundOpened
from tuner.ui import auto_view
from tuner.ui import progress as progressing
from tuner.ui.preview import preview
from tuner.ui.progress import Progress, Work
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.screens.restart import RestartFacts, back_screen, force_screen, restart_screen
from tuner.ui.screens.working import WorkingScreen
from tuner.ui.timing import last_like, times_of
from tuner.ui.wording import in_flight_words

if TYPE_CHECKING:
    from tuner.session.watching import Look
    from tuner.ui.app import TunerApp

_ENDED_EARLY = (RoundState.FAILED, RoundState.ABORTED, RoundState.REFUSED)


class Workflow:
    """The only writer of the app's ``progress`` and ``auto``. What asks is a coroutine for the app's dialog worker."""

    def __init__(self, app: TunerApp) -> None:
        self._app = app
        #: Name of the server whose end is no surprise.
        self._ending = ""

    # what the operator asks for

    async def restart(self) -> None:
        """Asks once, then starts the draft."""
        if not self._may_start():
            return
        facts = await self._restart_facts()
        if facts is not None and await self._app.push_screen_wait(restart_screen(facts)):
            self.begin_round(force=facts.refused)

    async def force(self) -> None:
        """Asks, then starts what was refused."""
        app = self._app
        refused = app.progress.round if app.progress is not None else None
        if refused is None or not self._may_start():
            return
        if await app.push_screen_wait(force_screen(refused, app.running_name)):
            app.bench = app.bench.replaced(refused.recipe)
            self.begin_round(force=True)

    async def fall_back(self) -> None:
        """Asks, then starts the last good round again."""
        app, ended = self._app, self._app.progress
        if ended is None or ended.round is None or ended.back is None or not self._may_start():
            return
        if await app.push_screen_wait(back_screen(ended.back, ended.round, app.running_name)):
            app.bench = app.bench.replaced(ended.back.recipe)
            if app.runner.fall_back(ended.round):
                self._watch_round(times_of(ended.back), simulated=ended.back.simulated)
            else:
                self._say_busy()

    async def auto(self) -> None:
        """Asks for the need and begins; while it is under way, shows it."""
        from tuner.session.needs import Stated  # not asked for, it costs nothing at the first paint
        from tuner.ui.screens.auto import AutoScreen, NeedScreen

        app = self._app
        if app.auto is not None and not app.auto.ended:
            app.push_screen(AutoScreen())
            return
        if not self._may_start():
            return
        recipe = app.bench.draft
        asked = recipe.flags.get("max_running_requests")
        stated = Stated(headroom_gib=recipe.tuner.headroom_gib).over(recipe.tuner)
        if stated.agents is None and isinstance(asked, int):
            stated = msgspec.structs.replace(stated, agents=asked)
        goal = await app.push_screen_wait(NeedScreen(stated, running=app.running_name))
        if goal is None:
            return
        if not app.runner.start_auto(recipe, goal):
            self._say_busy()
            return
        app.auto = auto_view.AutoView()
        app.progress = self._begun(Work.ROUND, {}, simulated=recipe.simulated)
        self._ending = app.running_name
        app.push_screen(AutoScreen())

    def verify(self) -> None:
        """The checks again."""
        if self._may_touch() and self._app.runner.verify():
            self._watch(Work.VERIFY)

    async def stop(self) -> None:
        """Asks, then stops the server."""
        if not self._may_touch():
            return
        app = self._app
        flying = _in_flight(app.look) or 0
        text = in_flight_words(flying) if flying else "No request is known to be in flight."
        if await app.push_screen_wait(
            ConfirmScreen(f"Stop {app.running_name}", Content(text), yes="Stop", careful=flying > 0)
        ):
            if not app.runner.stop():
                self._say_busy()
                return
            self._ending = app.running_name
            self._watch(Work.STOP)

    def abort(self) -> None:
        """Asks the work under way to end."""
        app = self._app
        if app.progress is not None and not app.progress.ended:
            app.runner.abort()
            app.progress = progressing.aborting(app.progress)
            if app.auto is not None:
                app.auto = msgspec.structs.replace(app.auto, aborting=True)

    def show(self) -> None:
        """The work under way, or the last."""
        app = self._app
        if app.progress is None:
            app.say("Nothing has been started yet. R starts the server.")
        elif not isinstance(app.screen, WorkingScreen):
            self.show_phases()

    def show_phases(self) -> None:
        """The steps of the start under way."""
        self._app.push_screen(WorkingScreen())

    def begin_round(self, *, force: bool = False) -> None:
        """Starts the draft, unasked; ``force`` starts what the plan would refuse."""
        begun: Callable[[], Awaitable[None]] = partial(self._begin_round, force=force)
        self._app.run_worker(begun, exclusive=True, group="begin")

    # what comes of it

    def follow(self, event: Event) -> None:
        """Moves on what is shown of the work."""
        app = self._app
        if app.auto is not None and not app.auto.ended:
            app.auto = auto_view.advance(app.auto, event)
            if isinstance(event, RoundOpened):
                # Each of its rounds has a list of steps of its own.
                app.progress = self._begun(Work.ROUND, {}, simulated=event.round.simulated)
        if app.progress is not None:
            app.progress = progressing.advance(app.progress, event, time.monotonic())

    def tick(self) -> None:
        """Moves the clock on."""
        if self._app.progress is not None:
            self._app.progress = progressing.ticked(self._app.progress, time.monotonic())

    def finish(self, problem: str) -> None:
        """Shows and says how the work ended; ``problem`` is empty when it could be done."""
        app = self._app
        if app.progress is None:
            return
        ended = app.progress = progressing.finish(app.progress, problem, time.monotonic())
        if app.auto is not None:
            app.auto = auto_view.ended(app.auto, problem)
            self._say_auto(app.auto)
            return
        if ended.work is Work.ROUND and ended.round is not None and not ended.good:
            app.run_worker(partial(self._look_back, ended.round), thread=True, exclusive=True, group="back")
        # The end of the work may come while the app is being left.
        if app.screen_stack and not isinstance(app.screen, WorkingScreen):
            words = "." if ended.good else f": {ended.problem or 'p shows how, 5 what to do'}"
            app.say(f"{ended.title}{words}", severity="information" if ended.good else "warning")

    def expected_end(self, name: str) -> bool:
        """Whether the end of the server ``name`` was asked for here, or a start has just told it."""
        progress = self._app.progress
        round_ = progress.round if progress is not None else None
        told = round_ is not None and round_.name == name and round_.state in _ENDED_EARLY
        return name == self._ending or told or self._app.runner.busy

    def _look_back(self, round_: Round) -> None:
        """What there is to go back to after a round that did not come out well. Runs in a thread."""
        try:
            good = self._app.session.way_back(round_)
        except HistoryError:
            # The work itself has told what is wrong with the history.
            return
        self._app.call_from_thread(self._offer, round_, good)

    def _offer(self, round_: Round, good: Round | None) -> None:
        progress = self._app.progress
        if progress is not None and progress.ended and progress.round == round_:
            self._app.progress = progressing.offering(progress, good)

    # what must hold; each of these says what does not

    def _may_start(self) -> bool:
        return not (self._only_looks() or self._occupied() or self._taken())

    def _may_touch(self) -> bool:
        return not (self._only_looks() or self._occupied() or self._nothing_runs())

    def _only_looks(self) -> bool:
        attached = self._app.session.attached
        if attached:
            from tuner.session.attached import read_only_words  # only there anything is attached

            self._app.say(read_only_words(attached), severity="warning")
        return bool(attached)

    def _occupied(self) -> bool:
        busy = self._app.runner.busy
        if busy:
            self.show()
        return busy

    def _taken(self) -> bool:
        app = self._app
        if app.starter is not None:
            words = f"Another tuner (process {app.starter}) is in the middle of {app.running_name}: wait for it."
            app.say(words, severity="warning")
        return app.starter is not None

    def _nothing_runs(self) -> bool:
        if not self._app.running_name:
            self._app.say("No server runs. R starts one.", severity="warning")
        return not self._app.running_name

    # starts

    async def _last_like(self, recipe: Recipe) -> tuple[bool, Round | None]:
        """The last start like ``recipe``, if any; False where the history cannot be read, which is said."""
        try:
            return True, await asyncio.to_thread(last_like, self._app.session.history, recipe)
        except HistoryError as error:
            self._app.say(str(error), severity="error")
            return False, None

    async def _restart_facts(self) -> RestartFacts | None:
        app = self._app
        recipe = app.bench.draft
        known, before = await self._last_like(recipe)
        if not known:
            return None
        shown = preview(app.inputs, recipe) if app.inputs is not None else None
        return RestartFacts(
            changes=app.bench.changes(),
            before=app.baseline,
            plan=shown.plan if shown else None,
            problem=shown.problem if shown else app.inputs_problem,
            ready_s=before.ready_seconds if before else None,
            answers_s=before.phase_seconds.get(FIRST_ANSWERS) if before else None,
            timed_by=before.name if before else "",
            in_flight=_in_flight(app.look),
            simulated=recipe.simulated,
            known=app.known,
        )

    async def _begin_round(self, *, force: bool) -> None:
        app = self._app
        recipe = app.bench.draft
        known, before = await self._last_like(recipe)
        if not known:
            return
        if not app.runner.start_round(recipe, force=force):
            self._say_busy()
            return
        self._watch_round(times_of(before), simulated=recipe.simulated)

    def _watch_round(self, before: Mapping[str, float], *, simulated: bool) -> None:
        """Shows a round that has been begun; ``before``: the times of an earlier start."""
        self._app.auto = None
        self._app.progress = self._begun(Work.ROUND, before, simulated=simulated)
        self._ending = self._app.running_name
        self.show_phases()

    def _watch(self, work: Work) -> None:
        """Shows a check or a stop that has been begun."""
        self._app.auto = None
        self._app.progress = self._begun(work, {}, simulated=self._app.simulated)
        self.show_phases()

    def _begun(self, work: Work, before: Mapping[str, float], *, simulated: bool) -> Progress:
        stops_first = work is Work.STOP or (work is Work.ROUND and bool(self._app.running_name))
        return progressing.begin(
            work, stops_first=stops_first, before=before, simulated=simulated, now=time.monotonic()
        )

    # words

    def _say_auto(self, view: auto_view.AutoView) -> None:
        met = view.outcome is not None and view.outcome.met
        words = view.outcome.reason if view.outcome is not None else view.problem
        self._app.say(f"Auto: {words}", severity="information" if met else "warning")

    def _say_busy(self) -> None:
        progress = self._app.progress
        doing = progress.title if progress is not None and not progress.ended else "Other work"
        words = f"Not begun: {doing[:1].lower()}{doing[1:]} is still under way. p shows it."
        self._app.say(words, severity="warning")


def _in_flight(look: Look | None) -> int | None:
    """Requests that run or wait, as far as they are told; None: not known."""
    readings = look.readings if look is not None else None
    counted = (readings.running, readings.queued) if readings is not None else (None, None)
    known = [count for count in counted if count is not None]
    return sum(known) if known else None
