"""A request on its way through the stand-in."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from enum import StrEnum

from tuner.planner.admission import CLIP_NEW_TOKENS
from tuner.sim.answers import Piece
from tuner.sim.cache import Match, pack

#: Makes the tokens of an answer once it is known how many prompt tokens were cached.
Compose = Callable[[int], Sequence[Piece]]


class RequestKind(StrEnum):
    """Who asks: health checks and the warm-up are counted apart."""

    CLIENT = "client"
    HEALTH = "health"
    WARMUP = "warm-up"


class Request:
    """Prompt, place in the cache, tokens made so far, and the times that ``meta_info`` reports (s since the epoch)."""

    def __init__(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        compose: Compose,
        *,
        streaming: bool = False,
        kind: RequestKind = RequestKind.CLIENT,
        rid: str | None = None,
    ) -> None:
        self.rid = rid or uuid.uuid4().hex
        self.prompt = list(tokens)
        self.prompt_tokens = len(self.prompt)
        self.max_new_tokens = max_new_tokens
        self.streaming = streaming
        self.kind = kind
        self._compose = compose
        self._planned: Sequence[Piece] | None = None
        self.output: list[Piece] = []
        self.output_ids: list[int] = []
        self.cached_tokens = 0
        self.retractions = 0
        self.verify_steps = 0
        self.accepted_drafts = 0
        self.proposed_drafts = 0
        self.finish_reason: str | None = None
        self.abort_message = ""
        self.received_at = time.time()
        self.forward_at: float | None = None
        self.prefilled_at: float | None = None
        self.finished_at: float | None = None
        self._last_token_at: float | None = None
        self.changed = asyncio.Event()
        # place in the pools, kept by the scheduler
        self.match: Match | None = None
        self.packed = pack(self.prompt)
        self.computed = 0
        self.in_tree = 0
        self.held = 0
        self.kept_at = 0
        #: How much longer than usual this one takes.
        self.factor = 1.0

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens that are still to be computed."""
        return len(self.prompt) - self.computed

    @property
    def to_come(self) -> int:
        """Tokens of the answer that are reserved."""
        return min(max(0, self.max_new_tokens - len(self.output)), CLIP_NEW_TOKENS)

    @property
    def sequence_tokens(self) -> int:
        """Tokens of prompt and answer so far."""
        return self.prompt_tokens + len(self.output)

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None

    def planned(self) -> Sequence[Piece]:
        """All tokens this request would make without a limit."""
        if self._planned is None:
            self._planned = self._compose(self.cached_tokens)
        return self._planned

    def emit(self, count: int, token_of: Callable[[str], int]) -> int:
        """Makes up to ``count`` more tokens, and finishes at the end of the answer or at the limit.

        Returns how many were made.
        """
        planned = self.planned()
        limit = min(len(planned), self.max_new_tokens)
        start = len(self.output)
        new = planned[start : min(limit, start + count)]
        self.output.extend(new)
        self.output_ids.extend(token_of(piece.text) for piece in new)
        if len(self.output) >= limit:
            self.finish("length" if len(planned) >= self.max_new_tokens else "stop")
        self.changed.set()
        return len(new)

    def gap(self, now: float) -> float | None:
        """Seconds since the last tokens; None at the first."""
        before, self._last_token_at = self._last_token_at, now
        return None if before is None else now - before

    def finish(self, reason: str, message: str = "") -> None:
        """Ends the request: "stop", "length" or "abort"."""
        if self.finish_reason is None:
            self.finish_reason = reason
            self.abort_message = message
            self.finished_at = time.time()
            self.changed.set()

    def prefix(self, tokens: int) -> bytes:
        """The first ``tokens`` of prompt and answer, packed."""
        if tokens <= self.prompt_tokens:
            return self.packed[: tokens * 4]
        return self.packed[: self.prompt_tokens * 4] + pack(self.output_ids[: tokens - self.prompt_tokens])

    def restart(self) -> None:
        """Back to the queue after a retraction: prompt and answer so far will be computed again."""
        self.prompt = [*self.prompt[: self.prompt_tokens], *self.output_ids]
        self.packed = pack(self.prompt)
        self.match = None
        self.computed = self.in_tree = self.held = self.kept_at = 0
        self.retractions += 1
