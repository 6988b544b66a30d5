"""The events of a streamed answer, read after it has ended. Pure.

While answers stream, only the clock is read for each piece: parsing 64 streams in between would show up in the
measured times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import h11
import msgspec

from tuner.measure.model import Sample
from tuner.redact import redact_text
from tuner.text import clip, plain

#: What came, and when: seconds from the sending of the request.
Piece = tuple[float, bytes]

_ERROR_CELLS = 200


class _Function(msgspec.Struct):
    arguments: str | None = None
    name: str | None = None


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None

    @property
    def holds_tokens(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class Meta(msgspec.Struct):
    """What an event of ``/generate`` says of its answer."""

    completion_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: Any = None


class _Generated(msgspec.Struct):
    meta_info: Meta = msgspec.field(default_factory=Meta)
    error: Any = None


class NotGenerated(Exception):
    """An event that is no part of an answer; the message says so in one sentence, empty where the server gave none."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the wire showed it. ``sent_at_s`` counts from the start of the repeat.

    ``pieces`` are the bytes of the whole HTTP answer as they came, from the first of its head on; of a streamed
    ``/generate`` answer what ``gist`` keeps of it.
    """

    sent_at_s: float
    seconds: float
    pieces: tuple[Piece, ...] = ()
    #: One sentence when no answer came.
    failure: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP answer taken apart. ``whole``: it came to its end; ``status`` None: it is no HTTP."""

    status: int | None = None
    pieces: tuple[Piece, ...] = ()
    whole: bool = False


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange understood: the scored sample, the times between its tokens, and what the server complained of."""

    sample: Sample
    gaps_s: tuple[float, ...] = ()
    error: str = ""


def answer_of(exchange: Exchange) -> Answer:
    """The body of an answer, each piece with the time at which its bytes came."""
    reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    reader.send(h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "0")]))
    reader.send(h11.EndOfMessage())
    status: int | None = None
    body: list[Piece] = []
    try:
        # The empty piece at the end is the end of the connection, which ends an answer without a length.
        for at, piece in (*exchange.pieces, (exchange.seconds, b"")):
            reader.receive_data(piece)
            while (event := reader.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                match event:
                    case h11.Response():
                        status = event.status_code
                    case h11.Data():
                        body.append((at, bytes(event.data)))
                    case h11.EndOfMessage():
                        return Answer(status=status, pieces=tuple(body), whole=True)
                    case h11.ConnectionClosed():
                        return Answer(status=status, pieces=tuple(body))
    except h11.RemoteProtocolError:
        return Answer(status=status, pieces=tuple(body))
    return Answer(status=status, pieces=tuple(body))


def data_lines(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The ``data:`` lines of an event stream, each with the time at which its end came.

    Network pieces cut events anywhere; an event counts when it is whole.
    """
    rest = b""
    for at, piece in pieces:
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                yield at, line[5:].strip()


def generated(pieces: Sequence[Piece]) -> Iterator[tuple[float, Meta]]:
    """The events of a streamed ``/generate`` answer, up to its end. Raises NotGenerated."""
    for at, data in data_lines(pieces):
        if data == b"[DONE]":
            return
        try:
            event = msgspec.json.decode(data, type=_Generated)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise NotGenerated("An event of the answer is no answer of SGLang.") from error
        if event.error is not None:
            raise NotGenerated(error_words(event.error))
        yield at, event.meta_info


def read_exchange(exchange: Exchange, repeat: int) -> Read:
    """What a streamed chat answer came to."""
    answer = answer_of(exchange)
    if exchange.failure or answer.status != 200:
        return Read(sample=_sample(exchange, repeat, ok=False), error=_complaint(exchange, answer))
    times: list[float] = []
    usage = _Usage()
    ended = False
    for at, data in data_lines(answer.pieces):
        if data == b"[DONE]":
            ended = True
            break
        try:
            chunk = msgspec.json.decode(data, type=_Chunk)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return Read(sample=_sample(exchange, repeat, ok=False), error="An event of the answer is no chat chunk.")
        if chunk.error is not None:
            return Read(sample=_sample(exchange, repeat, ok=False), error=error_words(chunk.error))
        usage = chunk.usage or usage
        if any(choice.delta is not None and choice.delta.holds_tokens for choice in chunk.choices):
            times.append(at)
    if not times or not ended:
        return Read(
            sample=_sample(exchange, repeat, ok=False),
            error="An answer ended without a token." if not times else "An answer ended in the middle.",
        )
    gaps = _gaps(times, usage.completion_tokens)
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    sample = Sample(
        repeat=repeat,
        sent_at_s=round(exchange.sent_at_s, 6),
        ttft_s=round(times[0], 6),
        total_s=round(exchange.seconds, 6),
        itl_s=round(sum(gaps) / len(gaps), 6) if gaps else None,
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens if usage.completion_tokens is not None else len(times),
        cached_tokens=cached,
        ok=True,
    )
    return Read(sample=sample, gaps_s=tuple(gaps))


def _gaps(times: Sequence[float], tokens: int | None) -> list[float]:
    """Times between tokens: one for each event, shared out where events bring several tokens (speculation)."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    if not gaps or tokens is None or tokens <= len(times):
        return gaps
    share = len(gaps) / (tokens - 1)
    return [gap * share for gap in gaps]


def _sample(exchange: Exchange, repeat: int, *, ok: bool) -> Sample:
    return Sample(
        repeat=repeat,
        sent_at_s=round(exchange.sent_at_s, 6),
        ttft_s=None,
        total_s=round(exchange.seconds, 6),
        itl_s=None,
        input_tokens=None,
        output_tokens=None,
        cached_tokens=None,
        ok=ok,
    )


def _complaint(exchange: Exchange, answer: Answer) -> str:
    if exchange.failure:
        return exchange.failure
    if answer.status is None:
        return "What answers there does not speak HTTP."
    body = b"".join(piece for _, piece in answer.pieces)
    try:
        words = error_words(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        words = ""
    if answer.status in (401, 403):
        return f"The server wants an API key, or another one (status {answer.status})."
    return f"The server answered {answer.status}: {words or 'without a reason'}"


def error_words(error: object) -> str:
    """The server's own words in an error, fit for a terminal."""
    while isinstance(error, dict):
        error = error.get("error") or error.get("message") or error.get("detail")
    return clip(redact_text(plain(error if isinstance(error, str) else "")).strip(), _ERROR_CELLS)
