"""Asks one server how it does, again and again, without ever waiting long for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from tuner.metrics import MetricsError, ReadingsWindow, parse_metrics
from tuner.metrics.model import Reach, Readings
from tuner.probes.http import ServerClient

#: Seconds a look may take: with one look a second, a server that hangs is told of within 3 s.
TIMEOUT_S = 1.5
#: Seconds between two questions for ``/server_info`` while it does not answer.
_ASK_AGAIN_S = 5.0

Clock = Callable[[], float]


def poll(
    client: ServerClient,
    window: ReadingsWindow,
    info: dict[str, Any] | None = None,
    *,
    clock: Clock = time.monotonic,
    wall: Clock = time.time,
) -> Readings:
    """One look at the server, taken into ``window``; ``info`` is its ``/server_info``, for what metrics lack.

    Both pages are asked for at once, so that the look takes no longer than the client's timeout. Rates are taken over
    the steady ``clock``; ``Readings.at`` is the time of day.
    """
    began = clock()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tuner-loads") as beside:
        asked = beside.submit(client.loads)
        page = client.metrics()
        loads = asked.result()
    at = clock()
    try:
        metrics = page if isinstance(page, Reach) else parse_metrics(page)
    except MetricsError:
        metrics = Reach.NONSENSE
    answered = None if metrics is Reach.UNREACHABLE and loads is Reach.UNREACHABLE else at - began
    readings = window.add(at, metrics, loads, info, answered)
    notice = (answered is None and client.problem) or readings.notice
    return msgspec.structs.replace(readings, at=wall(), notice=notice)


class Poller:
    """The connection to one server, the window of its readings, and what it says of itself."""

    def __init__(
        self,
        client: ServerClient,
        key_variable: str | None = None,
        *,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self._client = client
        self._window = ReadingsWindow(key_variable=key_variable)
        self._clock, self._wall = clock, wall
        self._info: dict[str, Any] | None = None
        self._asked_at: float | None = None

    @property
    def info(self) -> dict[str, Any] | None:
        """The server's ``/server_info``; None until it has told it."""
        return self._info

    def read(self) -> Readings:
        """Readings now. What the server says of itself is asked for again after it began anew."""
        readings = poll(self._client, self._window, self._info, clock=self._clock, wall=self._wall)
        if readings.began_anew_s == 0:
            self._info, self._asked_at = None, None
        if self._info is None and Reach.OK in (readings.metrics, readings.loads) and self._may_ask():
            answer = self._client.server_info()
            self._info = answer if isinstance(answer, dict) else None
        return readings

    def _may_ask(self) -> bool:
        now = self._clock()
        if self._asked_at is not None and now - self._asked_at < _ASK_AGAIN_S:
            return False
        self._asked_at = now
        return True

    def close(self) -> None:
        """Lets go of the server."""
        self._client.close()
