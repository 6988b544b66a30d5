"""What is looked at to judge a running server: its readings over time, with what is known of its start. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.findings import Finding
from tuner.metrics.model import GpuReading, Readings
from tuner.planner.model import HEADROOM_GIB
from tuner.serverlog.model import BootFacts
from tuner.units import format_tokens


class Watched:
    """Looks at one server over time, oldest first, with what is known of its start.

    ``flags`` are in effect or asked, ``facts`` its log's; ``alone_prefill_tokens_per_s``: speed of a cold prompt that
    had the server to itself, where one was measured. ``computed_tokens``: prompt tokens computed, where a counter tells
    them; else they are summed from the rates.
    """

    def __init__(
        self,
        samples: Sequence[Readings],
        *,
        gpus: Sequence[GpuReading] = (),
        flags: Mapping[str, Any] | None = None,
        facts: BootFacts | None = None,
        headroom_gib: float = HEADROOM_GIB,
        alone_prefill_tokens_per_s: float | None = None,
        computed_tokens: float | None = None,
    ) -> None:
        self.samples = tuple(samples)
        self.now = self.samples[-1] if self.samples else Readings(at=0.0)
        self.gpus = tuple(gpus)
        self.flags = flags or {}
        self.facts = facts
        self.headroom_gib = headroom_gib
        self.alone_prefill_tokens_per_s = alone_prefill_tokens_per_s
        self.computed_tokens = computed_tokens

    def gained(self, counter: str) -> int | None:
        """Gain of a counter over the samples; of a single look, all since the server started. None when not told."""
        told = [value for sample in self.samples if (value := getattr(sample, counter)) is not None]
        if not told:
            return None
        return max(0, told[-1] - told[0]) if len(told) > 1 else int(told[0])

    def prompt_tokens(self) -> float:
        """Prompt tokens computed while it was watched, from the rates between looks."""
        if self.computed_tokens is not None:
            return self.computed_tokens
        pairs = itertools.pairwise(self.samples)
        return sum((b.prefill_tokens_per_s or 0.0) * max(0.0, b.at - a.at) for a, b in pairs)

    def busy(self) -> tuple[Readings, ...]:
        """Looks with running requests."""
        return tuple(sample for sample in self.samples if sample.running)


Rule = Callable[[Watched], Finding | None]


def kv_share(reading: Readings) -> float | None:
    """Share of the KV pool in use; None when not told."""
    if reading.kv_used_tokens is None or not reading.kv_total_tokens:
        return None
    return reading.kv_used_tokens / reading.kv_total_tokens


def kv_words(reading: Readings) -> tuple[str, ...]:
    """KV use as evidence; empty when not told."""
    if reading.kv_used_tokens is None or not reading.kv_total_tokens:
        return ()
    return (f"KV: {format_tokens(reading.kv_used_tokens)} of {format_tokens(reading.kv_total_tokens)} tokens in use",)


def slot_words(reading: Readings) -> tuple[str, ...]:
    """Use of the state slots as evidence; empty when not told."""
    if not reading.slots_total:
        return ()
    kept = f", {reading.slots_evictable} kept for later" if reading.slots_evictable is not None else ""
    return (f"state slots: {reading.slots_used} of {reading.slots_total} in use{kept}",)
