"""Measurements as text. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tuner.measure.model import Load, Measurement, Physics, Stat, Timing
from tuner.text import plain
from tuner.units import format_seconds, format_tokens


def load_text(load: Load) -> str:
    """A load in a few words: "4x1,024+64", or the recorded workload's name."""
    if load.workload:
        how = f"{load.concurrency} streams" if load.timing is Timing.CLOSED_LOOP else f"at {load.timing}"
        fast = f", {load.speedup:g} times as fast" if load.speedup != 1.0 else ""
        return f"{load.workload} ({how}{fast})"
    return f"{load.concurrency}x{format_tokens(load.input_tokens)}+{format_tokens(load.output_tokens)}"


def stat_text(stat: Stat) -> str:
    """ "p50 0.41 s, p90 0.52 s, 0.38 s to 0.90 s of 192", with the percentiles that the samples allow."""
    told = [f"p50 {format_seconds(stat.p50)}"]
    for name in ("p90", "p95", "p99"):
        value = getattr(stat, name)
        if value is not None:
            told.append(f"{name} {format_seconds(value)}")
    spread = f"{format_seconds(stat.low)} to {format_seconds(stat.high)} of {format_tokens(stat.count)}"
    return ", ".join([*told, spread])


def measurement_text(measured: Measurement) -> str:
    """A measurement in full."""
    load = measured.load
    lines = [
        f"load {load_text(load)}: {measured.repeats_done} of {load.repeats} repeats of {load.requests} requests, "
        f"{format_seconds(measured.seconds)} after {format_seconds(measured.warm_up_s)} of warm-up"
    ]
    for label, stat in (
        ("TTFT", measured.ttft_s),
        ("ITL of a request", measured.itl_s),
        ("between tokens", measured.gaps_s),
        ("whole request", measured.total_s),
    ):
        if stat is not None:
            lines.append(f"  {label:<18}{stat_text(stat)}")
    for label, rates, unit in (
        ("output", measured.output_tokens_per_s, "tokens/s"),
        ("requests", measured.requests_per_s, "a second"),
        ("good requests", measured.good_per_s, "a second"),
    ):
        if rates:
            lines.append(f"  {label:<18}{rates_text(rates)} {unit}")
    if measured.good_share is not None:
        lines.append(f"  {'SLO kept':<18}{measured.good_share:.0%} of requests ({_slo(measured)})")
    if load.timing is Timing.RECORDED:
        lines.append(f"  {'sent late by':<18}at most {format_seconds(measured.late_s)}")
    if measured.failed:
        lines.append(f"  {'failed':<18}{measured.failed} requests: {'; '.join(plain(e) for e in measured.errors)}")
    if measured.ended_early:
        lines.append(f"  {measured.ended_early}")
    return "\n".join(lines)


def rates_text(rates: Sequence[float]) -> str:
    """The median of the repeats, and their spread."""
    return f"{statistics.median(rates):,.4g} ({min(rates):,.4g} to {max(rates):,.4g})"


def physics_text(measured: Physics) -> str:
    """Speeds by length, one line each."""
    lines = ["one request alone:   prompt      TTFT      prefill      decode"]
    for point in measured.points:
        prefill = f"{point.prefill_tokens_per_s:,.0f} t/s" if point.prefill_tokens_per_s is not None else "not cold"
        decode = f"{point.decode_tokens_per_s:,.1f} t/s" if point.decode_tokens_per_s is not None else "-"
        lines.append(f"{format_tokens(point.tokens):>27}{format_seconds(point.ttft_s):>10}{prefill:>13}{decode:>12}")
    if not measured.points:
        lines = ["one request alone: nothing was measured"]
    if measured.ended_early:
        lines.append(f"  {measured.ended_early}")
    return "\n".join(lines)


def _slo(measured: Measurement) -> str:
    slo = measured.slo
    wanted = []
    if slo.ttft_s is not None:
        wanted.append(f"TTFT {format_seconds(slo.ttft_s)}")
    if slo.itl_s is not None:
        wanted.append(f"ITL {format_seconds(slo.itl_s)}")
    return ", ".join(wanted)
