"""Batch lines: what SGLang prints while it serves (``scheduler_metrics_mixin.py`` and its successors)."""

from __future__ import annotations

import re

from tuner.serverlog.model import BatchLine
from tuner.serverlog.records import line_records

_HEAD = re.compile(r"(Prefill|Decode) batch(?: \[\d+\])?[.,] ")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
#: No real line is longer than a fifth of this.
_MAX = 4096


def batch_line(text: str) -> BatchLine | None:
    """A "Prefill batch" or "Decode batch" line of any version from 0.5.2 on, with or without its prefix; else None.

    Fields are read by name, so new ones between them do no harm. Usages are ratios 0..1, throughput is tokens/s.
    """
    record = next(iter(line_records(text[: 2 * _MAX])), None)
    return read_batch(record.text, record.at) if record else None


def read_batch(text: str, at: str | None) -> BatchLine | None:
    """As ``batch_line``, for the text of a record."""
    head = _HEAD.match(text)
    if not head:
        return None
    fields: dict[str, str] = {}
    for part in text[head.end() : _MAX].split(","):
        name, separator, value = part.partition(": ")
        if separator:
            fields[name.strip()] = value.strip()
    graph = next((v for k, v in fields.items() if k.endswith(" graph")), None)
    throughput = "input throughput (token/s)" if head[1] == "Prefill" else "gen throughput (token/s)"
    return BatchLine(
        kind=head[1].lower(),
        at=at,
        running=_count(fields, "#running-req") or 0,
        queued=_count(fields, "#queue-req") or 0,
        new_tokens=_count(fields, "#new-token"),
        cached_tokens=_count(fields, "#cached-token"),
        kv_tokens=_count(fields, "#full token", "#token"),
        kv_usage=_number(fields, "full token usage", "token usage"),
        mamba_slots=_count(fields, "mamba num"),
        mamba_usage=_number(fields, "mamba usage"),
        acceptance_length=_number(fields, "accept len"),
        acceptance_rate=_number(fields, "accept rate"),
        graph=None if graph not in ("True", "False") else graph == "True",
        tokens_per_s=_number(fields, throughput),
    )


def _number(fields: dict[str, str], *names: str) -> float | None:
    for name in names:
        if name in fields and (match := _NUMBER.match(fields[name])):
            return float(match[0])
    return None


def _count(fields: dict[str, str], *names: str) -> int | None:
    for name in names:
        digits = fields.get(name, "")
        if digits.isascii() and digits.isdigit() and len(digits) < 16:
            return int(digits)
    return None
