"""The operator's own requests: JSONL of OpenAI chat bodies, of batch files, or of a proxy's log. Pure."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from tuner.measure.model import Ask
from tuner.text import clip, plain

#: Where a log keeps the body of a request, and when it came.
_BODIES = ("body", "request", "request_body", "payload", "input")
_TIMES = ("at", "ts", "timestamp", "time", "start_time", "request_time", "created_at", "created", "t")
#: Unix times in milliseconds are beyond this, those in seconds below it.
_MILLISECONDS = 1e11
#: Keys of a body that a replay decides itself.
_OURS = ("model", "stream", "stream_options", "n", "user", "metadata")


class WorkloadError(Exception):
    """A file that cannot be replayed; the message is one sentence for the operator."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded requests in the order of time. ``timed``: the file says when each was sent."""

    asks: tuple[Ask, ...]
    timed: bool
    #: Names the content: only measurements of the same content can be compared.
    digest: str

    @property
    def seconds(self) -> float:
        """From the first request to the last."""
        return self.asks[-1].at_s if self.asks else 0.0


def read_workload(text: str) -> Workload:
    """Reads JSONL. Raises WorkloadError naming the line that is wrong."""
    found: list[tuple[float | None, dict[str, Any]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            found.append(_entry(line, number))
    if not found:
        raise WorkloadError("The workload holds no request: it takes one JSON object in each line.")
    times = [at for at, _ in found]
    timed = all(at is not None for at in times)
    asks = [Ask(body=body, at_s=at if timed and at is not None else 0.0) for at, body in found]
    if timed:
        asks.sort(key=lambda ask: ask.at_s)
        first = asks[0].at_s
        asks = [msgspec.structs.replace(ask, at_s=round(ask.at_s - first, 6)) for ask in asks]
    digest = hashlib.sha256(msgspec.json.encode([(ask.at_s, ask.body) for ask in asks], order="sorted"))
    return Workload(asks=tuple(asks), timed=timed, digest=digest.hexdigest()[:12])


def _entry(line: str, number: int) -> tuple[float | None, dict[str, Any]]:
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError):
        raise WorkloadError(f"Line {number} of the workload is no JSON: {clip(plain(line), 60)}") from None
    if not isinstance(entry, dict):
        raise WorkloadError(f"Line {number} of the workload is no JSON object: {clip(plain(line), 60)}")
    body = _body(entry)
    if body is None:
        raise WorkloadError(
            f"Line {number} of the workload holds no chat request: it needs messages, or a body with messages."
        )
    kept = {key: value for key, value in body.items() if key not in _OURS}
    return _time(entry, number), kept


def _body(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    for candidate in (entry, *(entry.get(name) for name in _BODIES)):
        if isinstance(candidate, str):
            try:
                candidate = msgspec.json.decode(candidate)
            except (msgspec.DecodeError, UnicodeError):
                continue
        if isinstance(candidate, Mapping) and _messages(candidate.get("messages")):
            return dict(candidate)
        if isinstance(candidate, Mapping) and isinstance(candidate.get("body"), Mapping):
            inner = candidate["body"]
            if _messages(inner.get("messages")):
                return dict(inner)
    return None


def _messages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(message, Mapping) for message in value)


def _time(entry: Mapping[str, Any], number: int) -> float | None:
    for name in _TIMES:
        value = entry.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value / 1000 if abs(value) > _MILLISECONDS else float(value)
        if isinstance(value, str) and value.strip():
            try:
                return datetime.datetime.fromisoformat(value.strip()).timestamp()
            except ValueError:
                raise WorkloadError(
                    f"Line {number} of the workload has a time that is none ({name}: {clip(plain(value), 40)}): use "
                    "seconds, or a date such as 2026-01-31T12:00:00Z."
                ) from None
    return None
