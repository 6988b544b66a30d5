"""A connection that ends in time: however slowly a server trickles its answer, and as soon as it is cancelled."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

if TYPE_CHECKING:
    import ssl

_CANCEL_POLL_S = 0.05
#: Bytes that a socket which takes any will take at once.
_PIECE = 4096
#: What a piece has for which the socket has room already.
_LEAST_S = 0.01


class Cancelled(Exception):
    """Whoever asked does not want the answer any more."""


class Limits:
    """How long a connection may last: ``seconds`` from now in all (None: as long as it takes), or until ``cancel``."""

    def __init__(self, seconds: float | None = None, cancel: threading.Event | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._cancel = cancel

    def left(self, timeout: float | None) -> float | None:
        """Seconds that a step may take which would have ``timeout`` alone; 0 and less: none are left."""
        left = None if self._end is None else self._end - time.monotonic()
        return min((s for s in (timeout, left) if s is not None), default=None)

    def connect(self, timeout: float | None) -> float | None:
        """As ``left``, for a step towards a connection. Raises ConnectTimeout where none are left."""
        left = self.left(timeout)
        if left is not None and left <= 0:
            raise httpcore.ConnectTimeout
        return left

    def step(self, until: float | None) -> float | None:
        """Seconds to wait before the next look at ``cancel``, at most up to the time ``until``. Raises Cancelled."""
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled
        left = None if until is None else max(0.0, until - time.monotonic())
        return left if self._cancel is None else min(_CANCEL_POLL_S, _CANCEL_POLL_S if left is None else left)


class LimitedTransport(httpx.HTTPTransport):
    """Plain HTTP/1.1 to the server itself, under limits. Certificates are loaded for an https address alone."""

    def __init__(self, limits: Limits) -> None:
        # Not super().__init__(): it makes a TLS context, whatever the address.
        self._pool = httpcore.ConnectionPool(network_backend=_Backend(limits))


class _Backend(httpcore.NetworkBackend):
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = self._limits.connect(timeout)
        return _Line(self._sockets.connect_tcp(host, port, left, local_address, socket_options), self._limits)


class _Line(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, limits: Limits, *, secure: bool = False) -> None:
        self._stream = stream
        self._limits = limits
        self._secure = secure

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        until = self._until(timeout)
        while True:
            step = self._limits.step(until)
            if step is not None and step <= 0:
                raise httpcore.ReadTimeout
            try:
                return self._stream.read(max_bytes, step)
            except httpcore.ReadTimeout:
                continue

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        until = self._until(timeout)
        for start in range(0, len(buffer), _PIECE):
            while not self._takes(step := self._limits.step(until)):
                if step is not None and step <= 0:
                    raise httpcore.WriteTimeout
            left = None if until is None else max(_LEAST_S, until - time.monotonic())
            self._stream.write(buffer[start : start + _PIECE], left)

    def _until(self, timeout: float | None) -> float | None:
        left = self._limits.left(timeout)
        return None if left is None else time.monotonic() + left

    def _takes(self, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._stream.get_extra_info("socket"), select.POLLOUT)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._limits.connect(timeout)
        return _Line(self._stream.start_tls(ssl_context, server_hostname, left), self._limits, secure=True)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and not self._secure:
            # Asked of each connection; the stream would load OpenSSL to say no.
            return None
        return self._stream.get_extra_info(info)
