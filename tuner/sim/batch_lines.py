"""The lines of batches, in the spelling of SGLang 0.5.17, and what is counted between two of them."""

from __future__ import annotations

import time

from tuner.sim.cache import CacheShape
from tuner.sim.stats import Gauges

#: Decode steps between two "Decode batch" lines.
DECODE_LOG_INTERVAL = 40


def prefill_line(
    gauges: Gauges,
    shape: CacheShape,
    *,
    requests: int,
    new: int,
    cached: int,
    seconds: float,
    running: int,
    queued: int,
    pending: int,
    graph: bool,
) -> str:
    """One "Prefill batch" line; ``seconds`` the batch took on the card."""
    return (
        f"Prefill batch, #new-seq: {requests}, #new-token: {new}, #cached-token: {cached}, {_usage(gauges, shape)}"
        f"#running-req: {running}, #queue-req: {queued}, #pending-token: {pending}, cuda graph: {graph}, "
        f"input throughput (token/s): {new / seconds if seconds else 0.0:.2f}"
    )


def _usage(gauges: Gauges, shape: CacheShape) -> str:
    kv = gauges.kv_used / shape.kv_tokens
    if not shape.slots:
        return f"token usage: {kv:.2f}, "
    return f"full token usage: {kv:.2f}, mamba usage: {gauges.slots_used / shape.slots:.2f}, "


def decode_line(gauges: Gauges, shape: CacheShape, *, drafts: int, running: int, queued: int, graph: bool) -> str:
    """One "Decode batch" line; ``drafts``: proposed in each step, 0 without speculation."""
    kv = gauges.kv_used / shape.kv_tokens
    if shape.slots:
        used = (
            f"#full token: {gauges.kv_used}, full token usage: {kv:.2f}, mamba num: {gauges.slots_used}, "
            f"mamba usage: {gauges.slots_used / shape.slots:.2f}"
        )
    else:
        used = f"#token: {gauges.kv_used}, token usage: {kv:.2f}"
    speculative = f"accept len: {gauges.accept_length:.2f}, accept rate: {gauges.accept_rate:.2f}, " if drafts else ""
    return (
        f"Decode batch, #running-req: {running}, {used}, {speculative}"
        f"cuda graph: {graph}, gen throughput (token/s): {gauges.throughput:.2f}, "
        f"#queue-req: {queued}"
    )


class DecodeCount:
    """Steps, tokens and accepted drafts since the last "Decode batch" line."""

    def __init__(self) -> None:
        self._steps = 0
        self._tokens = self._accepted = self._rows = 0
        self._since = time.monotonic()

    def row(self, tokens: int, accepted: int) -> None:
        """One request in one step."""
        self._rows += 1
        self._accepted += accepted
        self._tokens += tokens

    def step(self) -> bool:
        """One step; whether a line is due."""
        self._steps += 1
        return self._steps % DECODE_LOG_INTERVAL == 0

    def told(self, gauges: Gauges, drafts: int) -> None:
        """Brings speed and acceptance up to date for a line, and begins anew."""
        now, rows = time.monotonic(), max(1, self._rows)
        gauges.accept_length = 1 + self._accepted / rows if drafts else 0.0
        gauges.accept_rate = self._accepted / (rows * drafts) if drafts else 0.0
        gauges.throughput = self._tokens / max(1e-6, now - self._since)
        gauges.last_throughput = gauges.throughput
        gauges.decoded = True
        self._tokens = self._accepted = self._rows = 0
        self._since = now
