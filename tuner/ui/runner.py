"""Runs the session's blocking methods in threads of their own and posts what they tell.

Textual's thread workers are joined when the app ends, which would hold up a quit for the length of a start;
these are daemon threads, so the app can go at any time and the server stays up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.message import Message

from tuner.modelcard import ModelError
from tuner.paths import HomeError
from tuner.planner.model import CannotPlan
from tuner.recipe.model import Recipe, RecipeError
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round
from tuner.server.model import StartRefused
from tuner.session.auto.model import Goal
from tuner.session.events import Event, Publish
from tuner.session.runners import run_by_another
from tuner.ui.messages import Happened, InputsArrived, LookArrived, LookFailed, WorkEnded

if TYPE_CHECKING:
    from tuner.session.session import Session
    from tuner.session.watching import Look

#: Seconds between two polls.
EVERY_S = 1.0
#: What the session tells in one sentence.
_TOLD = (StartRefused, RecipeError, CannotPlan, ModelError, HistoryError, HomeError)
_BROKE_OFF = "The work broke off in the middle; the rounds list tells how far it came."
#: Work in a thread: told whom to tell and what ends it, it answers why it could not be done.
_Job = Callable[[Publish, threading.Event], str | None]


class Runner:
    """One poll thread, and at most one piece of work at a time."""

    def __init__(self, session: Session, post: Callable[[Message], object], *, every_s: float = EVERY_S) -> None:
        self._session = session
        self._post = post
        self._every_s = every_s
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._cancel = threading.Event()
        self._poller: threading.Thread | None = None
        self._worker: threading.Thread | None = None
        self._turn = 0

    @property
    def busy(self) -> bool:
        """Whether work is under way."""
        return self._worker is not None and self._worker.is_alive()

    def watch(self) -> None:
        """Starts polling."""
        self._poller = threading.Thread(target=self._poll, name="tuner-poll", daemon=True)
        self._poller.start()

    def look_now(self) -> None:
        """Polls at once: something has changed."""
        self._wake.set()

    def close(self) -> None:
        """Ends polling; work under way is left to itself."""
        self._closing.set()
        self._wake.set()
        if self._poller is not None:
            self._poller.join(timeout=3)

    def abort(self) -> None:
        """Asks the work under way to end."""
        self._cancel.set()

    def start_round(self, recipe: Recipe, *, force: bool = False) -> bool:
        """One round of ``recipe``; ``force`` starts what the plan would refuse. False: other work is under way."""

        def ran(publish: Publish, cancel: threading.Event) -> None:
            self._session.run_round(recipe, publish=publish, cancel=cancel, force=force)

        return self._work(ran)

    def start_auto(self, recipe: Recipe, goal: Goal) -> bool:
        """Rounds from ``recipe`` until ``goal`` is met or cannot be. False: other work is under way."""

        def ran(publish: Publish, cancel: threading.Event) -> str | None:
            outcome = self._session.auto(recipe, goal, publish=publish, cancel=cancel, leave=threading.Event())
            return None if outcome.met else outcome.reason

        return self._work(ran)

    def fall_back(self, failed: Round) -> bool:
        """The last good round again, after ``failed``. False: other work is under way."""

        def ran(publish: Publish, cancel: threading.Event) -> str | None:
            again = self._session.fall_back(failed, publish=publish, cancel=cancel)
            return None if again is not None else "There is no good round to go back to any more, or it runs already."

        return self._work(ran)

    def verify(self) -> bool:
        """The checks again. False: other work is under way."""

        def checked(publish: Publish, cancel: threading.Event) -> str | None:
            results = self._session.verify(publish=publish, cancel=cancel)
            return None if results is not None else "No server runs: there is nothing to check."

        return self._work(checked)

    def stop(self) -> bool:
        """Stops the running server. False: other work is under way."""

        def stopped(publish: Publish, cancel: threading.Event) -> str | None:
            del cancel
            outcome = self._session.stop(publish=publish)
            if outcome is None:
                return "No server runs: there is nothing to stop."
            return None if outcome.stopped else (outcome.reason or "The server did not stop.")

        return self._work(stopped)

    def gather(self, recipe: Recipe) -> None:
        """What plans of ``recipe`` need."""
        self._turn += 1
        threading.Thread(target=self._gather, args=(recipe, self._turn), name="tuner-inputs", daemon=True).start()

    def _gather(self, recipe: Recipe, turn: int) -> None:
        try:
            known = self._session.accuracy(simulated=recipe.simulated)
            self._post(InputsArrived(recipe, self._session.planning_inputs(recipe), accuracy=known, turn=turn))
        except _TOLD as error:
            self._post(InputsArrived(recipe, None, str(error), turn=turn))
        except OSError as error:
            self._post(InputsArrived(recipe, None, f"What a plan needs cannot be read: {_reason(error)}", turn=turn))

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            try:
                look = self._session.look(keep=True)
                self._post(LookArrived(look, _starter(look)))
            except (HistoryError, HomeError) as error:
                self._post(LookFailed(f"What runs cannot be looked at: {error}"))
            except OSError as error:
                self._post(LookFailed(f"What runs cannot be looked at: {_reason(error)}"))
            self._wake.wait(self._every_s)

    def _publish(self, event: Event) -> None:
        self._post(Happened(event))

    def _work(self, work: _Job) -> bool:
        if self.busy:
            # What is under way would lose its cancel event, and could not be aborted any more.
            return False
        self._cancel = threading.Event()
        self._worker = threading.Thread(target=self._guarded, args=(work, self._cancel), name="tuner-work", daemon=True)
        self._worker.start()
        return True

    def _guarded(self, work: _Job, cancel: threading.Event) -> None:
        # Stays when an error passes that nothing here knows: the screen must not wait for ever.
        problem: str | None = _BROKE_OFF
        try:
            problem = work(self._publish, cancel)
        except _TOLD as error:
            problem = str(error)
        except OSError as error:
            problem = f"It could not be done: {_reason(error)}"
        finally:
            self._post(WorkEnded(problem or ""))


def _reason(error: OSError) -> str:
    """What the system says, with the file that it is about."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}."


def _starter(look: Look) -> int | None:
    """The process of another tuner that is in the middle of the running server's round."""
    round_ = look.running.round if look.running is not None else None
    return round_.runner_pid if round_ is not None and run_by_another(round_) else None
