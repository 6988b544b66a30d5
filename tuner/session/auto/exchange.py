"""What one streamed ``/generate`` answer and the server's log say of requests in flight together. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tuner.measure.events import Exchange, NotGenerated, answer_of, error_words, generated, read_exchange
from tuner.serverlog.batch import batch_line

_NEW_SEQUENCES = re.compile(r"#new-seq: (\d{1,6})")
_GIVEN_UP = "The server gave the request up."
_RETRACTED = re.compile(r"#retracted_reqs: (\d{1,6})")


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One request: seconds from the start of the burst to its first and last token; ``error`` when it was not served.

    ``ttft_s`` counts from its own sending; ``itl_s`` is the mean between its tokens.
    """

    first_s: float = 0.0
    last_s: float = 0.0
    ttft_s: float = 0.0
    itl_s: float | None = None
    error: str = ""


def answered(exchange: Exchange, output_tokens: int) -> Answered:
    """What a streamed answer of ``output_tokens`` came to."""
    answer = answer_of(exchange)
    if exchange.failure or answer.status != 200:
        return Answered(error=read_exchange(exchange, 0).error)
    times: list[float] = []
    made = 0
    try:
        for at, meta in generated(answer.pieces):
            if meta.completion_tokens > made:
                made = meta.completion_tokens
                times.append(at)
            if (reason := _aborted(meta.finish_reason)) is not None:
                return Answered(error=reason)
    except NotGenerated as fault:
        return Answered(error=str(fault) or _GIVEN_UP)
    if not times or made < output_tokens:
        return Answered(error=f"An answer ended after {made} of {output_tokens} tokens.")
    gap = (times[-1] - times[0]) / (made - 1) if made > 1 else None
    sent = exchange.sent_at_s
    return Answered(first_s=sent + times[0], last_s=sent + times[-1], ttft_s=times[0], itl_s=gap)


def overlap(answers: Sequence[Answered]) -> int:
    """How many requests had their first token and not yet their last at the same moment, at the most."""
    served = [answer for answer in answers if not answer.error]
    return max((sum(a.first_s <= b.first_s <= a.last_s for a in served) for b in served), default=0)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a piece of the server's log says. ``together``: most requests that ran or were prefilled in one batch.

    ``batches``: how many lines tell of one; ``waited``: most requests that waited while one was made.
    """

    together: int = 0
    retracted: int = 0
    batches: int = 0
    waited: int = 0


def told(lines: Iterable[str]) -> Told:
    """Reads the log lines that were printed while the requests were served."""
    together = retracted = batches = waited = 0
    for line in lines:
        if (seen := _RETRACTED.search(line)) is not None:
            retracted += int(seen[1])
        batch = batch_line(line)
        if batch is None:
            continue
        batches, waited = batches + 1, max(waited, batch.queued)
        new = _NEW_SEQUENCES.search(line)
        together = max(together, batch.running + (int(new[1]) if new is not None else 0))
    return Told(together=together, retracted=retracted, batches=batches, waited=waited)


def _aborted(reason: Any) -> str | None:
    if not isinstance(reason, dict) or reason.get("type") != "abort":
        return None
    return error_words(reason.get("message")) or _GIVEN_UP
