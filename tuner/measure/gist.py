"""What is kept of a streamed ``/generate`` answer while it comes: its first token, its last one, and its end. No I/O.

Each event of SGLang's stream repeats the whole text and all ``output_ids``, unless the server streams incrementally:
the bytes grow with the square of the answer, to some 90 MB for 4,000 tokens.
"""

from __future__ import annotations

from typing import Any

import h11
import msgspec

from tuner.measure.events import Meta, Piece

#: Bytes of an event at the most: for ``meta_info`` or an error, and for each token (its text, escaped, and its id).
_EVENT_BYTES, _TOKEN_BYTES = 1 << 20, 512
_DATA, _DONE = b"data:", b"[DONE]"


class _Event(msgspec.Struct):
    meta_info: Meta = msgspec.field(default_factory=Meta)
    error: Any = None


class Gist:
    """Takes the bytes of one HTTP answer to a request for ``tokens`` tokens, and holds three of its events at the most.

    What may come follows from what was asked: as many tokens, and between two of them the bytes of one event.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._longest = _EVENT_BYTES + _TOKEN_BYTES * tokens
        self._reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=_EVENT_BYTES)
        self._reader.send(h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "0")]))
        self._reader.send(h11.EndOfMessage())
        self._status: int | None = None
        #: The head, and the body of an answer that is no stream of tokens.
        self._plain: list[Piece] = []
        self._line = bytearray()
        self._first: Piece | None = None
        self._last: Piece | None = None
        #: The newest event behind the last token.
        self._behind: Piece | None = None
        self._made = 0
        self._since_token = 0
        #: Whether what still comes is no part of the answer.
        self._told = False

    @property
    def endless(self) -> bool:
        """Whether more came than an answer to this request can have."""
        return self._since_token > self._longest

    @property
    def pieces(self) -> list[Piece]:
        """An HTTP answer of what was kept, up to the end of its connection however the server framed it."""
        events = (event for event in (self._first, self._last, self._behind) if event is not None)
        return [*self._plain, *((at, line + b"\n") for at, line in events)]

    def take(self, at: float, data: bytes) -> None:
        """Takes bytes that came at ``at``."""
        self._since_token += len(data)
        if self._told:
            return
        if self._status is None:
            self._plain.append((at, data))
        try:
            self._reader.receive_data(data)
            while (event := self._reader.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                match event:
                    case h11.Response():
                        self._status = event.status_code
                        self._plain = [(at, b"HTTP/1.1 %d \r\nConnection: close\r\n\r\n" % event.status_code)]
                    case h11.Data() if self._status == 200:
                        self._stream(at, bytes(event.data))
                    case h11.Data():
                        self._plain.append((at, bytes(event.data)))
        except h11.RemoteProtocolError:
            self._told = True

    def _stream(self, at: float, data: bytes) -> None:
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._line += end
            if self._line.startswith(_DATA) and not self._told:
                self._event(at, bytes(self._line))
            self._line.clear()
        self._line += rest

    def _event(self, at: float, line: bytes) -> None:
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            self._told = True
            return
        try:
            event = msgspec.json.decode(data, type=_Event)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            # An event of nothing is as little an answer, and cannot harm who reads it.
            self._told, self._behind = True, (at, _DATA)
            return
        meta = event.meta_info
        self._told = event.error is not None or meta.finish_reason is not None
        if meta.completion_tokens <= self._made:
            self._behind = (at, line)
            return
        if self._made < self._tokens:
            self._since_token = 0
        self._made, self._behind = meta.completion_tokens, None
        if self._first is None:
            self._first = (at, line)
        else:
            self._last = (at, line)
