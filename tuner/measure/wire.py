"""Streams answers and reads the clock for each piece that comes. All that is said of them is in ``events``.

Between two tokens of 64 streams there are 0.3 ms. httpx takes 0.1 ms for each piece of a stream, so tokens that come
together would be timed up to 7 ms late. Here the live path of a chat reads the clock and keeps the bytes; h11 writes
the requests, and reads the answers after the load. Only the gist is kept of ``/generate``, whose stream repeats itself.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

import h11
import msgspec

from tuner.measure.events import Exchange, Piece
from tuner.measure.gist import Gist

#: The first answer of a new shape can take more than a minute (compilation), and a long one minutes.
_LONGEST_S = 900.0
_CONNECT_S = 10.0
#: More of a chat answer than this is no answer: 250,000 tokens.
_MOST_BYTES = 64 << 20
#: How a chunked answer ends: the line end of its last chunk, and the chunk of no bytes.
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where load goes. ``api_key`` is never kept or shown."""

    url: str
    model: str
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"Target(url={self.url!r}, model={self.model!r})"


class _Kept(Protocol):
    """Where the bytes of an answer go. ``endless``: more came than an answer has."""

    @property
    def endless(self) -> bool: ...

    @property
    def pieces(self) -> list[Piece]: ...

    def take(self, at: float, data: bytes) -> None: ...


class _All:
    """Keeps every piece as it came."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._size = 0

    @property
    def endless(self) -> bool:
        return self._size > _MOST_BYTES

    def take(self, at: float, data: bytes) -> None:
        self.pieces.append((at, data))
        self._size += len(data)


class _Connection(asyncio.Protocol):
    """One connection. Knows just enough of HTTP to see where an answer ends."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.used = False
        self._kept: _Kept = _All()
        self._done: asyncio.Future[str] | None = None
        self._head = b""
        self._tail = b""
        self._size = 0
        #: Bytes of a whole answer; None: chunked, or up to the end of the connection.
        self._whole: int | None = None
        self._chunked = False
        self._keeps = True

    @property
    def open(self) -> bool:
        """Whether another request can be sent on it."""
        return self.transport is not None and not self.transport.is_closing() and self._keeps

    async def exchange(self, request: bytes, kept: _Kept) -> str:
        """Sends a request and hands on its answer, by ``time.perf_counter()``; what went wrong if anything did."""
        assert self.transport is not None
        self._kept, self._head, self._tail, self._size = kept, b"", b"", 0
        self._whole, self._chunked = None, False
        self._done = asyncio.get_running_loop().create_future()
        try:
            self.transport.write(request)
            async with asyncio.timeout(_LONGEST_S):
                failure = await self._done
        except TimeoutError:
            failure = f"No answer within {_LONGEST_S:g} s."
        finally:
            if not self._done.done() or self._done.cancelled():
                # The server sees that nobody waits any more and ends the request.
                self.transport.abort()
            self.used = True
        if failure:
            self.transport.abort()
        return failure

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._kept.take(time.perf_counter(), data)
        self._size += len(data)
        if self._whole is None and not self._chunked:
            self._read_head(data)
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        if (self._chunked and self._tail == _LAST_CHUNK) or (self._whole is not None and self._size >= self._whole):
            self._end("")
        elif self._kept.endless:
            self._end("The server's answer does not end.")

    def connection_lost(self, error: Exception | None) -> None:
        self._keeps = False
        # An answer without a length ends with its connection; whether it was whole shows when it is read.
        whole = bool(self._size) and not self._chunked and self._whole is None and error is None
        self._end("" if whole else "The connection broke in the middle of an answer.")

    def _read_head(self, data: bytes) -> None:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return
        fields: dict[bytes, bytes] = {}
        for line in self._head[:end].split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            fields[name.strip().lower()] = value.strip().lower()
        self._chunked = fields.get(b"transfer-encoding", b"").endswith(b"chunked")
        length = fields.get(b"content-length", b"")
        if not self._chunked and length.isdigit():
            self._whole = end + 4 + int(length)
        if fields.get(b"connection") == b"close":
            self._keeps = False

    def _end(self, failure: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(failure)


class Wire:
    """Connections to one server, one for each stream, kept for the next request."""

    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._target = target
        self._netloc = parts.netloc.rpartition("@")[2]
        self._free: list[_Connection] = []

    async def chat(self, body: dict[str, Any], began: float) -> Exchange:
        """One streamed chat answer. ``began`` is ``time.perf_counter()`` at the start of the repeat."""
        asked = {**body, "model": self._target.model, "stream": True, "stream_options": {"include_usage": True}}
        return await self._post(f"{self._path}/v1/chat/completions", asked, began, _All)

    async def generate(self, body: dict[str, Any], began: float) -> Exchange:
        """One streamed answer of SGLang's ``/generate`` of at most ``max_new_tokens``: its first and last token."""
        tokens: int = body["sampling_params"]["max_new_tokens"]
        return await self._post(f"{self._path}/generate", {**body, "stream": True}, began, lambda: Gist(tokens))

    def close(self) -> None:
        """Closes the connections that are kept."""
        for connection in self._free:
            if connection.transport is not None:
                connection.transport.close()

    async def _post(self, path: str, body: dict[str, Any], began: float, keeping: Callable[[], _Kept]) -> Exchange:
        request = self._request(path, msgspec.json.encode(body))
        sent = time.perf_counter()
        kept, failure = keeping(), ""
        try:
            while True:
                connection = await self._connection()
                reused = connection.used
                sent = time.perf_counter()
                failure = await connection.exchange(request, kept)
                if not (failure and reused and not kept.pieces):
                    break
                # The server had closed a connection that was kept too long: not an answer to this request.
            if connection.open:
                self._free.append(connection)
        except (OSError, TimeoutError):
            failure = f"Nothing answers at {self._target.url}."
        return Exchange(
            sent_at_s=sent - began,
            seconds=time.perf_counter() - sent,
            pieces=tuple((at - sent, piece) for at, piece in kept.pieces),
            failure=failure,
        )

    async def _connection(self) -> _Connection:
        while self._free:
            connection = self._free.pop()
            if connection.open:
                return connection
        async with asyncio.timeout(_CONNECT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, self._host, self._port, ssl=self._tls
            )
        return connection

    def _request(self, path: str, content: bytes) -> bytes:
        headers = [
            ("Host", self._netloc),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
            ("Accept", "text/event-stream"),
            ("Accept-Encoding", "identity"),
        ]
        if self._target.api_key:
            headers.append(("Authorization", f"Bearer {self._target.api_key}"))
        writer = h11.Connection(h11.CLIENT)
        parts = (
            writer.send(h11.Request(method="POST", target=path, headers=headers)),
            writer.send(h11.Data(data=content)),
            writer.send(h11.EndOfMessage()),
        )
        return b"".join(part for part in parts if part)


@asynccontextmanager
async def wire_to(target: Target) -> AsyncIterator[Wire]:
    """Connections to ``target``; proxies of the environment are never used."""
    wire = Wire(target)
    try:
        yield wire
    finally:
        wire.close()


async def sleep_until(at: float) -> float:
    """Waits until ``time.perf_counter()`` says ``at``; returns how late it was."""
    left = at - time.perf_counter()
    if left > 0:
        await asyncio.sleep(left)
    return max(0.0, time.perf_counter() - at)
