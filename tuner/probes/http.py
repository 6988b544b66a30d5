"""The server's endpoints. Talks to the server directly: proxies of the environment are never used."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
import msgspec
from httpx_sse import EventSource, SSEError

from tuner.metrics.model import Reach
from tuner.probes.answers import ChatAnswer, GenerateAnswer
from tuner.probes.assemble import ChatAssembly, GenerateAssembly, error_text
from tuner.probes.line import Cancelled, LimitedTransport, Limits
from tuner.redact import redact, redact_text
from tuner.text import clip, plain

#: A page longer than this is no answer of SGLang (its longest, /server_info and /metrics, are below 100 kB).
_MAX_BYTES = 16 << 20
#: The first chat after a start took 84 s on a 27B (compilation), so a generation may be silent for long.
_GENERATION_TIMEOUT_S = 900.0
_CONNECT_TIMEOUT_S = 5.0
_ERROR_CELLS = 300
#: Longest text of /server_info that is kept, characters; the longest real one is a command line.
_LONGEST_TEXT = 16_000

_REACH_OF_STATUS = {404: Reach.OFF, 405: Reach.OFF, 401: Reach.LOCKED, 403: Reach.LOCKED}
_T = TypeVar("_T")
_CANCELLED = "The request was cancelled."
_NOT_SGLANG = "The server's answer is not what SGLang sends: is another program on this port?"
#: What OpenSSL's reasons are between.
_REASON = re.compile(r"certificate verify failed: (.*?)\.?(?: \(_ssl\.c|$)")


class ServerClient:
    """A connection to one server. ``timeout`` (seconds) bounds each look; generations have their own, longer bound.

    No method raises for what a server or network does: a look gives a ``Reach``, a generation an ``error`` sentence.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout: float = 5.0,
        generation_timeout: float = _GENERATION_TIMEOUT_S,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._generation_timeout = generation_timeout
        # A few bytes of a compressed answer can stand for gigabytes, so none is asked for or taken.
        self._headers = {b"Accept-Encoding": b"identity"}
        if api_key:
            # A variable that is no UTF-8 has its bytes as surrogates.
            self._headers[b"Authorization"] = f"Bearer {api_key}".encode("utf-8", "surrogateescape")
        #: Why the last look met no server, where more is known than that nothing answers; else empty.
        self.problem = ""

    def close(self) -> None:
        """Nothing is held: each look and each generation has a connection of its own."""

    def health(self) -> int | None:
        """Status of ``/health``; None when nothing answers in time. Costs one generation and a second once up."""
        return self._get("/health", _status)

    def loads(self) -> dict[str, Any] | Reach:
        """``/v1/loads`` (0.5.9+; 3 to 17 ms)."""
        return self._object("/v1/loads")

    def server_info(self) -> dict[str, Any] | Reach:
        """``/server_info``, secrets redacted: the server shows its API keys in clear there.

        Values of it are kept with a round, so texts are plain and of bounded length, and numbers fit any file.
        """
        answer = self._object("/server_info")
        return answer if isinstance(answer, Reach) else dict(_presentable(redact(answer)))

    def model_info(self) -> dict[str, Any] | Reach:
        """``/model_info``: answers 200 as soon as the port is open."""
        return self._object("/model_info")

    def models(self) -> dict[str, Any] | Reach:
        """``/v1/models``."""
        return self._object("/v1/models")

    def metrics(self) -> str | Reach:
        """Text of ``/metrics``; OFF without ``--enable-metrics``."""
        page = self._page("/metrics")
        if isinstance(page, Reach):
            return page
        text = page.decode("utf-8", "replace")
        return Reach.NONSENSE if text.lstrip().startswith(("<", "{")) else text

    def _object(self, path: str) -> dict[str, Any] | Reach:
        page = self._page(path)
        if isinstance(page, Reach):
            return page
        try:
            answer = msgspec.json.decode(page)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Reach.NONSENSE
        return answer if isinstance(answer, dict) else Reach.NONSENSE

    def _page(self, path: str) -> bytes | Reach:
        page = self._get(path, _whole_page)
        return Reach.UNREACHABLE if page is None else page

    def _get(self, path: str, take: Callable[[httpx.Response], _T]) -> _T | None:
        """What ``take`` makes of the answer; None when none comes in time, however slowly it trickles in."""
        try:
            with (
                self._connection(self._timeout, Limits(self._timeout)) as client,
                client.stream("GET", self.url + path) as response,
            ):
                self.problem = ""
                return take(response)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            # UnicodeError: a host that cannot be written as a name of the Internet.
            self.problem = _tls_sentence(error, self.url)
            return None

    def _connection(self, timeout_s: float, limits: Limits) -> httpx.Client:
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S)
        return httpx.Client(trust_env=False, timeout=timeout, headers=self._headers, transport=LimitedTransport(limits))

    def generate(
        self,
        body: dict[str, Any],
        on_token: Callable[[str], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> GenerateAnswer:
        """One ``/generate``, streamed unless the body says otherwise. Blocks: call it from a thread."""
        streamed = bool(body.get("stream", True))
        assembly = GenerateAssembly(on_token)
        end = self._post("/generate", {**body, "stream": streamed}, assembly.event, cancel)
        return assembly.answer(end.status, end.seconds, end.error, streamed=streamed)

    def chat(
        self,
        body: dict[str, Any],
        stream: bool = False,
        on_delta: Callable[[str, str], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> ChatAnswer:
        """One chat completion. ``on_delta`` gets ("reasoning" | "content" | "tool_call", text). Blocks."""
        asked = {**body, "stream": stream}
        if stream:
            asked.setdefault("stream_options", {"include_usage": True})
        assembly = ChatAssembly(on_delta)
        end = self._post("/v1/chat/completions", asked, assembly.event, cancel)
        return assembly.answer(end.status, end.seconds, end.error, streamed=stream)

    def _post(
        self, path: str, body: dict[str, Any], take: Callable[[object, float], None], cancel: threading.Event | None
    ) -> _End:
        exchange = _Exchange(take)
        with self._connection(self._generation_timeout, Limits(cancel=cancel)) as client:
            exchange.run(client, self.url + path, body)
        return exchange.end(self.url, self._generation_timeout)


def _status(response: httpx.Response) -> int:
    return response.status_code


def _whole_page(response: httpx.Response) -> bytes | Reach:
    if response.status_code != 200:
        unknown = Reach.UNREACHABLE if response.status_code >= 500 else Reach.NONSENSE
        return _REACH_OF_STATUS.get(response.status_code, unknown)
    try:
        return _bounded(response)
    except _NotSGLang:
        return Reach.NONSENSE


class _End(msgspec.Struct, frozen=True):
    status: int | None
    seconds: float
    error: str


class _Exchange:
    """One POST and what came of it."""

    def __init__(self, take: Callable[[object, float], None]) -> None:
        self._take = take
        self._began = time.perf_counter()
        self._ended = 0.0
        self._status: int | None = None
        self._failure: Exception | None = None
        self.error = ""

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def run(self, client: httpx.Client, url: str, body: dict[str, Any]) -> None:
        try:
            with client.stream("POST", url, json=body) as response:
                self._status = response.status_code
                if response.status_code != 200:
                    self.error = _refusal(response.status_code, _bounded(response))
                elif body["stream"]:
                    self._events(response)
                else:
                    self._take(json.loads(_bounded(response)), self._now())
        except Cancelled:
            self.error = self.error or _CANCELLED
        except (SSEError, UnicodeDecodeError):
            # Before the errors that they are kinds of.
            self.error = _NOT_SGLANG
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            self._failure = error
        except (ValueError, RecursionError):
            self.error = _NOT_SGLANG
        finally:
            self._ended = self._now()

    def _events(self, response: httpx.Response) -> None:
        received = _BoundedStream(response)
        response.stream = received
        for event in EventSource(response).iter_sse():
            received.since_event = 0
            if event.data == "[DONE]":
                return
            self._take(json.loads(event.data), self._now())

    def end(self, url: str, timeout_s: float) -> _End:
        error = self.error
        if not error and self._failure is not None:
            if self._status in (None, 200):
                error = _failure_sentence(self._failure, url, timeout_s)
            else:
                error = f"The server answered {self._status} and hung up before it said why."
        return _End(self._status, self._ended or self._now(), error)


def _presentable(value: Any) -> Any:
    """A JSON value (of bounded depth) with plain texts, and None for whole numbers that do not fit into 64 bits."""
    if isinstance(value, str):
        return plain(value[:_LONGEST_TEXT])
    if isinstance(value, dict):
        return {plain(key[:_LONGEST_TEXT]): _presentable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_presentable(item) for item in value]
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return None
    return value


class _NotSGLang(ValueError):
    """An answer longer than any of SGLang's, or compressed."""


class _BoundedStream(httpx.SyncByteStream):
    """The bytes of a stream of events, as long as no event is endless: the decoder would hold all of it."""

    def __init__(self, response: httpx.Response) -> None:
        _refuse_compressed(response)
        self.since_event = 0
        self._stream = response.stream

    def __iter__(self) -> Iterator[bytes]:
        if not isinstance(self._stream, httpx.SyncByteStream):
            raise _NotSGLang("not a stream")
        for piece in self._stream:
            self.since_event += len(piece)
            if self.since_event > _MAX_BYTES:
                raise _NotSGLang("event too long")
            yield piece

    def close(self) -> None:
        if isinstance(self._stream, httpx.SyncByteStream):
            self._stream.close()


def _bounded(response: httpx.Response) -> bytes:
    _refuse_compressed(response)
    body = bytearray()
    for piece in response.iter_raw():
        body += piece
        if len(body) > _MAX_BYTES:
            raise _NotSGLang("answer too long")
    return bytes(body)


def _refuse_compressed(response: httpx.Response) -> None:
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise _NotSGLang("compressed answer")


def _refusal(status: int, body: bytes) -> str:
    try:
        words = error_text(json.loads(body))
    except (ValueError, RecursionError):
        words = ""
    if status in (401, 403):
        return f"The server wants an API key, or another one (status {status})."
    said = clip(redact_text(plain(words)).strip(), _ERROR_CELLS)
    return f"The server answered {status}: {said}" if said else f"The server answered {status} without a reason."


def _failure_sentence(error: Exception, url: str, timeout_s: float) -> str:
    if tls := _tls_sentence(error, url):
        return tls
    if isinstance(error, httpx.LocalProtocolError):
        # Its own words show the header, and the key in it.
        return (
            "The request cannot be sent: the API key holds a character that no header can have, such as a line break."
        )
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"Nothing answers at {url}."
    if isinstance(error, httpx.TimeoutException):
        return f"No answer within {timeout_s:g} s."
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
        return "The server closed the connection in the middle of its answer."
    return f"The request to {url} failed: {plain(str(error)) or type(error).__name__}."


def _tls_sentence(error: Exception, url: str) -> str:
    """What keeps a connection from being a secure one; empty for any other error. Known by OpenSSL's own words alone:
    the module that names them is not loaded for a plain address."""
    said = plain(str(error))
    if not isinstance(error, httpx.ConnectError) or "[SSL" not in said:
        return ""
    if reason := _REASON.search(said):
        return (
            f"The certificate of {url} is not trusted ({reason[1]}): name the file of the authority that signed it "
            "by the variable SSL_CERT_FILE, or take the address that it was made for."
        )
    return f"No secure connection to {url} comes about: it may be one for http://."
