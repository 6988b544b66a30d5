"""Plays a start: prints its lines in time, publishes the memory it holds, and lets its faults happen."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from tuner.serverlog.model import Phase
from tuner.sim import bootlog, captures, tracebacks
from tuner.sim.answers import Parsers
from tuner.sim.card import CardSlot
from tuner.sim.children import DETOKENIZER, SCHEDULER, spawn
from tuner.sim.faults import Fault, Faults
from tuner.sim.flags import CommandLine
from tuner.sim.hardware import BACKEND_GIB
from tuner.sim.journal import write
from tuner.sim.model import Model
from tuner.sim.pace import Pace
from tuner.sim.service import Built
from tuner.sim.sizing import (
    Refused,
    Setup,
    plan_graphs,
    size,
)
from tuner.sim.values import server_args

_HANG_PHASES = {
    "launching": Phase.LAUNCHING,
    "loading": Phase.LOADING,
    "sizing": Phase.SIZING,
    "capturing": Phase.CAPTURING,
    "binding": Phase.BINDING,
    "warming": Phase.WARMING,
}
#: An orphan ends by itself after this long, so that no test leaves one for ever.
ORPHAN_LIFE_S = 300.0
#: Recorded seconds before the scheduler process begins its work.
_BEFORE_SCHEDULER_S = 18.6


class Processes:
    """The helper processes of this server, by what happens to them at its end."""

    def __init__(self, faults: Faults) -> None:
        deaf = faults.has(Fault.IGNORE_SIGNALS)
        linger = faults.number(Fault.HOLD_VRAM) or 0.0
        self.scheduler = spawn(SCHEDULER, linger_s=linger, deaf=deaf)
        self.detokenizer = spawn(DETOKENIZER, deaf=deaf)
        self._kept: list[subprocess.Popen[bytes]] = [self.scheduler] if linger else []
        if faults.has(Fault.ORPHAN_CHILD):
            own = faults.text(Fault.ORPHAN_CHILD) == "session"
            self._kept.append(spawn("sglang::worker", linger_s=ORPHAN_LIFE_S, deaf=deaf, own_session=own))

    def kill(self) -> None:
        """Ends the helpers, but for those a fault leaves behind."""
        for child in (self.scheduler, self.detokenizer):
            if child not in self._kept:
                child.kill()
                child.wait()

    def dead(self) -> subprocess.Popen[bytes] | None:
        """A helper that ended on its own, or None."""
        return next((c for c in (self.scheduler, self.detokenizer) if c.poll() is not None), None)


def name_of(processes: Processes, child: subprocess.Popen[bytes]) -> str:
    """How SGLang's watchdog names a helper."""
    return "scheduler_0" if child is processes.scheduler else "detokenizer"


def kill_self() -> None:
    """How 0.5.17 ends after a stop, a crash or a refusal: exit status -9."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class Player:
    """Plays steps."""

    def __init__(self, pace: Pace, faults: Faults, card: CardSlot) -> None:
        self._pace = pace
        self._faults = faults
        self._card = card
        self.recorded_s = 0.0
        self.held_gib = 0.0

    def play(self, steps: Iterable[bootlog.Step]) -> float:
        """Plays steps and returns their recorded seconds."""
        before = self.recorded_s
        for step in steps:
            self.maybe_hang(step.phase)
            self._pace.sleep_start(step.seconds)
            self.recorded_s += step.seconds
            if step.used_gib is not None:
                self.held_gib = step.used_gib
                self._card.publish(step.used_gib)
            write(*step.out)
        return self.recorded_s - before

    def maybe_hang(self, phase: Phase) -> None:
        """Stands still for good when a fault says so for this phase."""
        where = self._faults.text(Fault.HANG)
        if where is not None and _HANG_PHASES[where] is phase:
            threading.Event().wait()

    def bind_late(self) -> None:
        """Waits before the port is opened when a fault says so."""
        seconds = self._faults.number(Fault.BIND_LATE)
        if seconds:
            time.sleep(seconds)


class Start:
    """One start, from the command line to what serves."""

    def __init__(self, command: CommandLine, model: Model, setup: Setup, card: CardSlot) -> None:
        self._flags = command.flags
        self._options = command.options
        self._model = model
        self._setup = setup
        self._card = card
        self.player = Player(Pace(command.options.speed), command.options.faults, card)
        self.others_gib = card.others_gib()
        self._values = server_args(command.flags, model, setup, command.options)

    def run(self, scheduler_pid: int) -> Built:
        """Plays the whole start up to the port. Raises Died with the error of the log."""
        model, setup, faults, others = self._model, self._setup, self._options.faults, self.others_gib
        memory, play = setup.memory, self.player.play
        play(bootlog.before_weights(self._values, memory))
        load_s = play(bootlog.load_weights(model, setup, faults, others))
        self.player.maybe_hang(Phase.SIZING)
        try:
            pools = size(setup, self._options)
        except Refused as refused:
            raise bootlog.Died(tracebacks.refused_at_sizing(str(refused), refused.where)) from None
        pools_s = play(bootlog.allocate_pools(model, setup, pools, others))
        graphs = plan_graphs(model, setup, self._options, pools, BACKEND_GIB)
        play(captures.capture_graphs(model, setup, graphs, faults, others))
        free = graphs.free_before - graphs.total_gib
        timings = bootlog.Timings(
            load_weight=load_s,
            kv_cache_allocation=pools_s,
            scheduler_e2e=max(0.0, self.player.recorded_s - _BEFORE_SCHEDULER_S),
            cuda_graph=captures.graph_seconds(model, setup, graphs),
            tokenizer_e2e=self.player.recorded_s,
        )
        play(bootlog.summary(setup, pools, timings, free))
        self.player.maybe_hang(Phase.BINDING)
        self.player.bind_late()
        return Built(
            values=self._values,
            model=model,
            setup=setup,
            pools=pools,
            card_name=self._card.card.name,
            weight_gib=memory.before_weights - memory.after_weights,
            graphs_gib=captures.graph_gib(setup, graphs),
            available_gib=free,
            timings=timings,
            parsers=Parsers(
                reasoning=bool(self._flags.get("reasoning_parser")), tools=bool(self._flags.get("tool_call_parser"))
            ),
            default_template=_template(self._flags.get("default_chat_template_kwargs")),
            scheduler_pid=scheduler_pid,
        )


def _template(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        given = msgspec.json.decode(given)
    return given if isinstance(given, dict) else {}


def die_while_starting(error: bootlog.Died, processes: Processes, card: CardSlot) -> None:
    """The scheduler's error, then the end of the whole tree with exit status -9."""
    write(error.out)
    write(*tracebacks.died_while_starting(os.getpid()))
    end(processes, card)


def end(processes: Processes, card: CardSlot, *, keep_entry: bool = False) -> None:
    """Ends helpers and this process."""
    processes.kill()
    if not keep_entry:
        card.remove()
    kill_self()
