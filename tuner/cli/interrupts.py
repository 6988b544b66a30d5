"""Ctrl-C while a command starts and stops servers: the first breaks off in good order, the second leaves at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from tuner.cli.output import FAILED, fail, say
from tuner.rounds.errors import HistoryError
from tuner.session.bootlog import read_log
from tuner.session.deaths import same_recipe
from tuner.session.session import Session
from tuner.session.watching import Running

T = TypeVar("T")

#: A signal is heard between two waits.
_JOIN_S = 0.2


class Interrupts:
    """Hears Ctrl-C from now on. ``cancel`` is set by the first one."""

    def __init__(self, words: str) -> None:
        """``words`` say what the first one does."""
        self.cancel = threading.Event()
        self._words = words
        self._at_work = False
        # No events: a signal that comes while one is set would wait for that for ever.
        self._once = self._twice = False
        signal.signal(signal.SIGINT, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._once:
            if self._at_work and self._twice:
                # Raised again, it would come in the middle of the leaving itself.
                return
            self._twice = True
            raise KeyboardInterrupt
        self._once = True
        self.cancel.set()
        with suppress(OSError):
            # Whoever listened may have gone; the command goes on to its end.
            say(f"{self._words} Once more leaves at once.", err=True)

    def run(self, works: Sequence[Callable[[], T]], left: Callable[[], NoReturn]) -> list[T]:
        """Runs each in a thread of its own and returns what they return; at a second Ctrl-C it ends by ``left``.

        Raises what the first of them raised that failed.
        """
        self._at_work = True
        pool = ThreadPoolExecutor(max_workers=len(works), thread_name_prefix="work")
        try:
            futures = [pool.submit(work) for work in works]
            pending = set(futures)
            while pending:
                _, pending = wait(pending, timeout=_JOIN_S)
            pool.shutdown()
        except KeyboardInterrupt:
            left()
        self._at_work = False
        return [future.result() for future in futures]


def leave_at_once(session: Session, former: Mapping[int, Running | None], *, as_json: bool) -> NoReturn:
    """Says what is on each port and how to go on, and ends the process as it stands.

    What was at work stops where it is, as after a kill: a server stays in its own session, and its round is settled by
    the next command.
    """
    try:
        words = " ".join(port_words(session, port, before) for port, before in former.items())
    except HistoryError as error:
        words = f"What is on the port is not known: {error}"
    fail(words, as_json=as_json)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(FAILED)


def port_words(session: Session, port: int, before: Running | None) -> str:
    """What runs on a port now, and the commands that go on from there; ``before`` ran when the command began."""
    now = session.running(port)
    former = before.handle.round_name if before is not None else None
    name = now.handle.round_name or "A server" if now is not None else ""
    if now is None:
        said = f"No server of the tuner is on port {port}."
    elif _asked_to_stop(now):
        said = f"{name} on port {port} was asked to stop, and may take a while: tuner stop --port {port} makes sure."
    elif before is not None and now.handle.pid == before.handle.pid:
        return f"{name} runs on port {port} as before."
    else:
        back = former is not None and before is not None and same_recipe(now.handle.recipe, before.handle.recipe)
        said = (
            f"{name}{f', which is {former} again,' if back else ''} is on port {port} and goes on by itself: "
            f"tuner status follows it, tuner verify checks it, tuner stop --port {port} ends it."
        )
        if back:
            return said
    return f"{said} Before, {former} ran: tuner run {former} starts it again." if former else said


def _asked_to_stop(running: Running) -> bool:
    facts, _ = read_log(Path(running.handle.log_path))
    return facts is not None and facts.stop_asked
