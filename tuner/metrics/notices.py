"""What is missing from the readings, or strange about the server, in one sentence with what to do. Pure."""

from __future__ import annotations

from tuner.metrics.model import Reach
from tuner.units import format_seconds

#: An answer takes 3 to 17 ms (0.5.17, recordings); from here on whoever watches waits for it.
SLOW_S = 1.0


def notice(
    metrics: Reach,
    loads: Reach,
    key_variable: str | None,
    *,
    answered_s: float | None = None,
    began_anew_s: float | None = None,
) -> str:
    """The sentence that matters most; empty when nothing is missing and nothing is strange."""
    both = (metrics, loads)
    if all(reach is Reach.UNREACHABLE for reach in both):
        return "The server does not answer."
    if Reach.LOCKED in both:
        where = key_variable or "the variable that the recipe's api_key names"
        return f"The server wants its API key: set {where} in the environment of the tuner."
    if began_anew_s is not None:
        # Without the seconds: a sentence that changes every second is drawn every second.
        return (
            "The server's counters began anew within the last minute, by a restart or a reset: "
            "rates and percentiles count from there."
        )
    if metrics is Reach.OFF:
        return "No latencies, slots or cache hits: the server runs without --enable-metrics."
    if metrics is Reach.NONSENSE:
        return "/metrics did not answer with SGLang's metrics: check that host and port are the server's."
    if metrics is Reach.UNREACHABLE:
        return "/metrics does not answer: latencies, slots and cache hits are missing."
    if loads is Reach.UNREACHABLE:
        return "/v1/loads does not answer: running and queued may be up to 30 s old."
    if loads in (Reach.OFF, Reach.NONSENSE):
        return "/v1/loads did not answer as SGLang 0.5.9 and later do: running and queued may be up to 30 s old."
    if answered_s is not None and answered_s >= SLOW_S:
        return f"The server answers slowly: the last look took {format_seconds(answered_s)}."
    return ""
