"""What both front ends talk to: one operator, one machine, its servers and its history.

What starts, checks, solves, advises and exports is imported when it is asked for: an app that watches a server for
hours would hold some megabytes for nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tuner.checks.model import CheckResult
from tuner.doctor import diagnose_plan
from tuner.metrics.model import GpuReading
from tuner.paths import Home
from tuner.planner import plan as make_plan
from tuner.planner.accuracy import Accuracy
from tuner.planner.model import Plan, PlanInputs
from tuner.planner.need import Need
from tuner.probes.gpu import GpuProbe, probe_for
from tuner.recipe.model import Recipe
from tuner.rounds.errors import DamagedRound
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.server import Supervisor, installed_version
from tuner.server.cards import Foreign
from tuner.server.model import StopOutcome
from tuner.session.auto.model import AutoOutcome, Goal
from tuner.session.bench import Bench
from tuner.session.cards import cards_of
from tuner.session.deaths import last_good, with_secrets
from tuner.session.earlier import accuracies, calibrations, earlier, phase_estimates
from tuner.session.events import Publish
from tuner.session.planning import Given, Here, plan_inputs
from tuner.session.runners import number_of
from tuner.session.settle import seen, settle
from tuner.session.watching import Look, Running, Watch

if TYPE_CHECKING:
    from tuner.advice import Advice
    from tuner.planner.solve import Solution
    from tuner.session.finding_here import Finder


class Session:
    """Plans, runs and records rounds. Methods block; call them from a thread where a screen must stay alive."""

    #: Address of the server that is only looked at (``tuner attach``); empty where servers are ours.
    attached = ""

    def __init__(self, home: Home, environ: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.environ = dict(os.environ if environ is None else environ)
        self.history = History(home.database)
        self._probes: dict[tuple[bool, int], GpuProbe] = {}
        self._probes_lock = threading.Lock()
        self._watch = Watch(home, self.history, self.environ)

    def close(self) -> None:
        """Lets go of connections and files; servers stay up."""
        self._watch.close()
        with self._probes_lock:
            for probe in self._probes.values():
                probe.close()
        self.history.close()

    def settle(self) -> list[Round]:
        """Closes rounds whose tuner went away in the middle; returns them. Readers see them closed without it."""
        return settle(self.history, self._supervisor(simulated=False, port=0))

    def running(self, port: int | None = None) -> Running | None:
        """The living server that a tuner started (on ``port``), newest first; None when there is none."""
        supervisor = self._supervisor(simulated=False, port=0)
        handles = supervisor.running(port)
        if not handles:
            return None
        handle = max(handles, key=lambda h: h.started_at)
        number = number_of(handle.round_name)
        try:
            round_ = self.history.find(number) if number is not None else None
        except DamagedRound:
            # The server runs all the same, and must be stoppable.
            round_ = None
        return Running(handle, seen(round_, supervisor) if round_ is not None else None)

    def planning_inputs(self, recipe: Recipe, given: Given | None = None) -> PlanInputs:
        """Gathers a plan's inputs. Raises ModelError or CannotPlan, one sentence each."""
        probe = self._probe(recipe)
        gpus = cards_of(recipe, self.environ, probe.read())
        held = self._held_gib(recipe, gpus[0]) if gpus else 0.0
        version = (
            None
            if recipe.simulated or not recipe.python
            else installed_version(recipe.python, self.home, {**self.environ, **recipe.environment})
        )
        here = Here(
            installed_version=version,
            gpus=tuple(gpus),
            server_holds_gib=held,
            driver_version=probe.driver_version(),
            environ=self.environ,
        )
        return plan_inputs(recipe, given=given, here=here, history=calibrations(self.history, recipe))

    def _held_gib(self, recipe: Recipe, gpu: GpuReading) -> float:
        """What the running server will give back of a card."""
        handles = self._supervisor(simulated=recipe.simulated, port=recipe.port).running(recipe.port)
        before = handles[0].vram_before_mib.get(str(gpu.index)) if handles else None
        return max(0.0, (gpu.used_mib - before) / 1024) if before is not None and gpu.used_mib is not None else 0.0

    def plan(self, recipe: Recipe, given: Given | None = None) -> Plan:
        """The plan of a start of ``recipe``, with its findings."""
        inputs = self.planning_inputs(recipe, given)
        plan = make_plan(inputs)
        return msgspec.structs.replace(plan, findings=diagnose_plan(inputs, plan))

    def solve(self, recipe: Recipe, need: Need, given: Given | None = None) -> Solution:
        """The fewest changes to the flags of ``recipe`` that meet ``need``; its plan has its findings."""
        from tuner.session.solving import solved

        return solved(self.planning_inputs(recipe, given), need)

    def advise(self, round_: Round, need: Need | None = None) -> Advice:
        """What to try after ``round_``, ranked. Raises ModelError, CannotPlan or HistoryError, one sentence each."""
        from tuner.advice import advise
        from tuner.session.advising import question

        return advise(question(self.history, round_, self.planning_inputs(round_.recipe), need))

    def accuracy(self, *, simulated: bool, limit: int = 3) -> tuple[tuple[str, Accuracy], ...]:
        """How far the plans of the last rounds were off, newest first: (round, actual less planned)."""
        return accuracies(self.history, simulated=simulated, limit=limit)

    def run_round(
        self,
        recipe: Recipe,
        *,
        note: str = "",
        publish: Publish,
        cancel: threading.Event,
        stop_after: bool = False,
        force: bool = False,
        drain: bool = True,
    ) -> Round:
        """One whole round; see ``loop.run_round``."""
        from tuner.session.loop import run_round

        self.settle()
        return run_round(
            self._bench(recipe),
            recipe,
            inputs=lambda: self.planning_inputs(recipe),
            note=note,
            publish=publish,
            cancel=cancel,
            estimates=phase_estimates(self.history, recipe),
            stop_after=stop_after,
            force=force,
            drain=drain,
        )

    def last_good(self, recipe: Recipe) -> Round | None:
        """The newest round on the port of ``recipe`` that was verified, not rejected, and is another recipe's."""
        return last_good(earlier(self.history, recipe), recipe)

    def fall_back(self, failed: Round, *, publish: Publish, cancel: threading.Event) -> Round | None:
        """Starts the last good round again after ``failed``; None when there is none, or its server still runs."""
        good = self.way_back(failed)
        if good is None:
            return None
        note = f"The last good round {good.name} again, after {failed.name}."
        recipe = with_secrets(good.recipe, failed.recipe)
        return self.run_round(recipe, note=note, publish=publish, cancel=cancel, drain=False)

    def way_back(self, failed: Round) -> Round | None:
        """The round that ``fall_back`` would start; None when there is none, or a good server runs."""
        good = self.last_good(failed.recipe)
        running = self.running(failed.recipe.port) if good is not None else None
        if running is not None and running.round is not None and running.round.state is RoundState.VERIFIED:
            return None
        return good

    def auto(
        self, recipe: Recipe, goal: Goal, *, publish: Publish, cancel: threading.Event, leave: threading.Event
    ) -> AutoOutcome:
        """Rounds from ``recipe`` until ``goal`` was seen to be met, cannot be, or its rounds are used up.

        Where it is not met, what ran before is started again; so it is after ``cancel``. ``leave`` ends that too.
        Raises CannotPlan or ModelError, and ``StartRefused`` while another tuner is at work on the port.
        """
        from tuner.session.auto.loop import run_auto

        return run_auto(self, self._bench(recipe), recipe, goal, publish=publish, cancel=cancel, leave=leave)

    def foreign(self, port: int | None = None) -> list[Foreign]:
        """SGLang servers (on ``port``) that were started by hand or by something else: looked at, never touched."""
        found = self._supervisor(simulated=False, port=0).foreign()
        return [server for server in found if port is None or server.port == port]

    def finder(self) -> Finder:
        """A look around this machine for a first recipe."""
        from tuner.session.finding_here import Finder

        return Finder(home=Path.home(), environ=self.environ, cards=self._probe_by(False, 0).read)

    def verify(self, *, publish: Publish, cancel: threading.Event) -> list[CheckResult] | None:
        """Checks the running server again and records the results in its round; None when nothing runs."""
        from tuner.session.verifying import verify

        self.settle()
        running = self.running()
        if running is None:
            return None
        bench = self._bench(running.handle.recipe)
        return verify(bench, running, publish=publish, cancel=cancel)

    def stop(
        self, *, publish: Publish, port: int | None = None, drain: bool = True, force: bool = False
    ) -> StopOutcome | None:
        """Stops the running server and makes sure that nothing is left; None when nothing runs.

        ``drain``: running requests may finish. Takes ``stop_bound_s`` at the most. Raises ``InUse`` while another
        living tuner is in the middle of a round on it, unless ``force``.
        """
        running = self.running(port)
        if running is None:
            return None
        if not force:
            from tuner.session.swap import leave_to_others

            leave_to_others(self.history, running.handle)
        supervisor = self._supervisor(simulated=running.handle.simulated, port=running.handle.port)
        return supervisor.stop(running.handle, publish, drain)

    def stop_bound_s(self, *, drain: bool) -> float:
        """The longest a stop can take, seconds, whatever the server does."""
        return self._supervisor(simulated=False, port=0).stop_bound_s(drain=drain)

    def look(self, *, keep: bool = False) -> Look:
        """One poll of the server and its cards, a few milliseconds on a healthy server.

        ``keep``: the look may go into the round's readings (see ``Watch.read``).
        """
        running = self.running()
        readings = self._watch.read(running, keep=keep)
        probe = self._probe_by(False, 0) if running is None else self._probe(running.handle.recipe)
        gpus = probe.read()
        if running is not None:
            gpus = cards_of(running.handle.recipe, self.environ, gpus)
        changed = self._watch.changed(running)
        no_gpus = "" if gpus else probe.reason
        return Look(time.time(), running, readings, tuple(gpus), running is not None, changed, no_gpus=no_gpus)

    def export(self, number: int, fmt: str) -> str:
        """A round as text in one of ``export.FORMATS``. Raises KeyError for no such round."""
        from tuner.session.export import export

        return export(self.history.get(number), fmt, self.history.samples(number))

    def _bench(self, recipe: Recipe) -> Bench:
        return Bench(
            home=self.home,
            history=self.history,
            supervisor=self._supervisor(simulated=recipe.simulated, port=recipe.port),
            gpu=self._probe(recipe),
            environ=self.environ,
        )

    def _supervisor(self, *, simulated: bool, port: int) -> Supervisor:
        return Supervisor(self.home, self._probe_by(simulated, port))

    def _probe(self, recipe: Recipe) -> GpuProbe:
        return self._probe_by(recipe.simulated, recipe.port)

    def _probe_by(self, simulated: bool, port: int) -> GpuProbe:
        key = (simulated, port if simulated else 0)
        with self._probes_lock:
            if key not in self._probes:
                self._probes[key] = probe_for(simulated, self.home, port)
            return self._probes[key]
