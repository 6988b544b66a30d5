"""Ctrl-C many times, as one who leans on the keys: the command leaves once, by its last words, and hangs in nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from tuner.cli import interrupts
from tuner.cli.interrupts import Interrupts

pytestmark = pytest.mark.timeout(60)


class Left(Exception):
    """In place of the end of the process."""


def left() -> NoReturn:
    for _ in range(100):
        signal.raise_signal(signal.SIGINT)
    raise Left


@pytest.fixture
def hears(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Interrupts]]:
    monkeypatch.setattr(interrupts, "say", lambda *_, **__: None)
    before = signal.getsignal(signal.SIGINT)
    yield lambda: Interrupts("Breaking off.")
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_without_end_leaves_once_and_in_order(hears: Callable[[], Interrupts]) -> None:
    over = threading.Event()

    def lean() -> None:
        while not over.wait(0.0001):
            os.kill(os.getpid(), signal.SIGINT)

    found = hears()
    keys = threading.Thread(target=lean)
    with pytest.raises(Left):
        try:
            found.run([keys.start, over.wait], left)
        finally:
            over.set()
            keys.join()


def test_ctrl_c_while_the_first_one_is_taken_in_is_the_second(hears: Callable[[], Interrupts]) -> None:
    over = threading.Event()

    class Slow(threading.Event):
        """Another Ctrl-C comes while it is set."""

        def set(self) -> None:
            with self._cond:  # type: ignore[attr-defined]
                signal.raise_signal(signal.SIGINT)
                self._flag = True

    found = hears()
    found.cancel = Slow()
    with pytest.raises(Left):
        try:
            found.run([lambda: os.kill(os.getpid(), signal.SIGINT), over.wait], left)
        finally:
            over.set()


def test_what_is_done_before_anyone_can_leave_is_done(hears: Callable[[], Interrupts]) -> None:
    found = hears()
    assert found.run([lambda: 1, lambda: 2], left) == [1, 2]
    assert not found.cancel.is_set()
