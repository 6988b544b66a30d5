"""Charts as text: bars that fit a terminal, a log and a Markdown file. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.metrics.model import Readings
from tuner.rounds.measures import Measure, terms
from tuner.rounds.memory import free_at_ready_gib
from tuner.rounds.model import Round
from tuner.text import clip, width
from tuner.units import format_gib

_EIGHTHS = " ▏▎▍▌▋▊▉"
_STEPS = "▁▂▃▄▅▆▇█"
_FULL = "█"
_LONGEST_LABEL = 28
_NARROWEST_BAR = 8


def bars(rows: Sequence[tuple[str, float | None, str]], cells: int = 100) -> list[str]:
    """A bar for each (label, value, the value as text), the largest as long as there is room; None has no bar."""
    if not rows:
        return []
    labels = [clip(label, _LONGEST_LABEL) for label, _, _ in rows]
    left = max(width(label) for label in labels)
    right = max(width(text) for _, _, text in rows)
    room = max(_NARROWEST_BAR, cells - left - right - 2)
    top = max((value for _, value, _ in rows if value is not None), default=0.0)
    lines = []
    for label, (_, value, text) in zip(labels, rows, strict=True):
        bar = _bar(value / top * room) if value is not None and top > 0 else ""
        lines.append(f"{label}{' ' * (left - width(label))} {bar}{' ' * (room - width(bar))} {text:>{right}}".rstrip())
    return lines


def spark(values: Sequence[float | None], cells: int = 60) -> str:
    """A line of steps from 0 to the largest value, thinned to ``cells``; a gap where a value is missing."""
    if len(values) > cells:
        values = [values[at * len(values) // cells] for at in range(cells)]
    top = max((value for value in values if value is not None), default=0.0)
    if top <= 0:
        return "".join(" " if value is None else _STEPS[0] for value in values)
    return "".join(
        " " if value is None else _STEPS[min(len(_STEPS) - 1, int(value / top * len(_STEPS)))] for value in values
    )


def measure_chart(measure: Measure, rounds: Sequence[Round], cells: int = 100) -> list[str]:
    """One measure over rounds, in the order given; a round without it says how it ended."""
    rows: list[tuple[str, float | None, str]] = []
    for round_ in rounds:
        value = measure.read(round_)
        name = f"{round_.name} (sim)" if round_.simulated else round_.name
        rows.append((name, value, str(round_.state) if value is None else measure.show(value)))
    return bars(rows, cells)


def memory_chart(round_: Round, cells: int = 100) -> list[str]:
    """Where the card's memory went, by the terms of the log and what was free at ready."""
    found = terms(round_.boot)
    free = free_at_ready_gib(round_)
    if free is not None and found:
        found["free at ready"] = free
    return bars([(name, gib, format_gib(gib)) for name, gib in found.items()], cells)


def samples_chart(samples: Sequence[Readings], cells: int = 60) -> list[str]:
    """How a round did while it was watched: KV use, running and waiting requests, over its samples."""
    lines = []
    for label, field in (
        ("KV tokens used", "kv_used_tokens"),
        ("slots used", "slots_used"),
        ("running", "running"),
        ("queued", "queued"),
    ):
        values = [getattr(sample, field, None) for sample in samples]
        known = [value for value in values if value is not None]
        if known:
            lines.append(f"{label:<16} {spark(values, cells)} up to {max(known):,.0f}")
    return lines


def _bar(eighths_of: float) -> str:
    whole = int(eighths_of)
    rest = int((eighths_of - whole) * 8)
    bar = _FULL * whole + (_EIGHTHS[rest] if rest else "")
    return bar or (_EIGHTHS[1] if eighths_of > 0 else "")
