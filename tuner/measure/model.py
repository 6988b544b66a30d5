"""What is measured and what comes of it. Pure data; seconds and tokens throughout."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Timing(StrEnum):
    """When a request of a load is sent."""

    #: As soon as one of the streams is free: as many run as ``Load.concurrency`` says.
    CLOSED_LOOP = "closed loop"
    #: When the recorded workload sent it, whatever the server does.
    RECORDED = "recorded times"


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer must keep to count as good: time to first token, and mean time between its tokens."""

    ttft_s: float | None = None
    itl_s: float | None = None

    @property
    def stated(self) -> bool:
        """Whether anything is asked for."""
        return self.ttft_s is not None or self.itl_s is not None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A load: ``requests`` prompts in each of ``repeats``, ``concurrency`` at a time.

    ``input_tokens`` and ``output_tokens`` are what is asked for of prompts made up here; 0 for a recorded workload,
    whose ``workload`` names its content. Only measurements of the same load can be compared.
    """

    concurrency: int = 4
    requests: int = 64
    repeats: int = 3
    input_tokens: int = 1_024
    output_tokens: int = 64
    timing: Timing = Timing.CLOSED_LOOP
    #: How much faster than recorded the workload is sent.
    speedup: float = 1.0
    workload: str = ""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One scored request. Times are seconds from its sending; ``itl_s`` is the mean between its tokens."""

    repeat: int
    #: Seconds from the start of the repeat.
    sent_at_s: float
    ttft_s: float | None
    total_s: float
    itl_s: float | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    ok: bool


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in few numbers. A percentile is None where the samples are too few for it.

    ``repeats`` are the medians of the repeats; ``errors`` the standard errors of the percentiles, from the samples'
    own scatter (for the median also from the scatter of the repeats).
    """

    count: int
    low: float
    p50: float
    high: float
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    repeats: tuple[float, ...] = ()
    errors: dict[str, float] = {}


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a load gave. ``at`` is Unix time; rates are tokens/s or requests/s, one value for each repeat.

    ``itl_s`` counts each request once (its mean between tokens); ``gaps_s`` are all times between two tokens.
    """

    load: Load
    at: float
    seconds: float
    #: The warm-up before it, not scored.
    warm_up_s: float = 0.0
    ttft_s: Stat | None = None
    itl_s: Stat | None = None
    gaps_s: Stat | None = None
    total_s: Stat | None = None
    output_tokens_per_s: tuple[float, ...] = ()
    requests_per_s: tuple[float, ...] = ()
    slo: Slo = Slo()
    #: Share of all requests that kept the SLO, and how many such a second, for each repeat; empty without an SLO.
    good_share: float | None = None
    good_per_s: tuple[float, ...] = ()
    failed: int = 0
    #: What failed requests were told, each once.
    errors: tuple[str, ...] = ()
    #: One sentence when it ended before its last request; empty when it did not.
    ended_early: str = ""
    #: How late requests of a recorded workload were sent, the longest, seconds.
    late_s: float = 0.0
    samples: tuple[Sample, ...] = ()

    @property
    def repeats_done(self) -> int:
        """Repeats that gave at least one answer."""
        return len({sample.repeat for sample in self.samples if sample.ok})


class SpeedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One length: a cold prompt of so many tokens, alone on the server, and decoding behind it."""

    tokens: int
    ttft_s: float
    #: tokens / ttft_s; None when something of the prompt was cached.
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    cached_tokens: int | None = None
    tries: int = 1


class Physics(msgspec.Struct, frozen=True, kw_only=True):
    """What this model on this card does with one request alone, by length: no flag of a load makes it faster."""

    at: float
    points: tuple[SpeedPoint, ...] = ()
    ended_early: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a measurement is. ``stage``: "warm-up", "repeat 1 of 3", "16,384 tokens"."""

    stage: str
    done: int
    of: int
    seconds: float
    #: Seconds that are left of the budget.
    left_s: float


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request to send: a chat body, and when it was sent in a recording (seconds from its start)."""

    body: dict[str, Any]
    at_s: float = 0.0
