"""Breadth: how many conversations stay warm, against the slots that the planner counts."""

from __future__ import annotations

import secrets

import msgspec

from tuner.checks.answers import failure
from tuner.checks.bench import Bench, Stopwatch, not_done
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.prefix import PREFIX_REUSE
from tuner.measure.prompts import token_ids
from tuner.units import format_tokens

BREADTH = "breadth"

#: Longest row of conversations: a request each, 60 to 100 ms on a 27B.
_MOST = 128
#: Warm at this share of the slots is as good as planned: a running request and its tail take some.
_INSIDE, _OUTSIDE = 0.85, 1.15
#: Slots that a running request holds where the plan does not say.
_WORKING_SLOTS = 4
_POOL_SHARE = 2
_TAIL = 3
#: Halvings when fewer stay warm than planned.
_HALVINGS = 5


class Row(msgspec.Struct, frozen=True):
    """So many distinct conversations, then the first again: the tokens it still found. None: nobody tells."""

    conversations: int
    cached_tokens: int | None
    error: str = ""


def check_breadth(bench: Bench) -> CheckResult:
    """Runs rows of conversations just inside and just outside of what the slots hold."""
    clock = Stopwatch()
    slots = _slots(bench)
    if bench.held.stop.is_set():
        return not_done(BREADTH, "", bench.held, 0.0)
    if not bench.probe.cache_on:
        return _said(Verdict.PASS, "off: the prefix cache is turned off, as asked; nothing stays warm.", clock)
    if slots is None:
        return _said(Verdict.CANNOT_TELL, "Neither a plan nor the log tells how many state slots there are.", clock)
    holds = max(0, slots - _working(bench)) if slots else None
    inside, outside = rows_for(holds, _room(bench))
    if inside < 2:
        return _said(Verdict.CANNOT_TELL, f"The pools hold too few conversations ({inside}) to tell.", clock)
    rows = [_row(bench, 1)]
    if rows[0].cached_tokens and not rows[0].error:
        rows.append(_row(bench, inside))
        if rows[-1].cached_tokens and outside is not None:
            rows.append(_row(bench, outside))
        elif not rows[-1].error and rows[-1].cached_tokens == 0:
            rows += _halved(bench, inside)
    sent = f"rows of {', '.join(str(row.conversations) for row in rows)} distinct prefixes, then the first again"
    if bench.held.stop.is_set():
        return not_done(BREADTH, sent, bench.held, clock.seconds)
    verdict, reason = judge_breadth(rows, holds, inside)
    return CheckResult(
        name=BREADTH,
        verdict=verdict,
        reason=reason,
        sent=sent,
        came="tokens found again: " + ", ".join("?" if r.cached_tokens is None else str(r.cached_tokens) for r in rows),
        seconds=clock.seconds,
        details={
            "slots": slots,
            "expected": holds,
            "warm": {str(row.conversations): bool(row.cached_tokens) for row in rows},
        },
    )


def rows_for(holds: int | None, room: int) -> tuple[int, int | None]:
    """Lengths of a row that should stay warm, and of one that should not (None: too long to try). Pure.

    ``holds`` is how many states fit beside a running request; None on a model without states, which only the KV pool
    bounds. ``room`` is how many such prefixes fit in that pool.
    """
    if holds is None:
        return min(room, _MOST), None
    inside = min(int(holds * _INSIDE), room, _MOST)
    outside = int((holds + _WORKING_SLOTS) * _OUTSIDE) + 1
    return inside, outside if outside <= min(room, _MOST) else None


def judge_breadth(rows: list[Row], holds: int | None, inside: int) -> tuple[Verdict, str]:
    """The verdict on rows of conversations; the first row is of one. Pure."""
    failed = next((row for row in rows if row.error), None)
    if failed is not None:
        return Verdict.FAIL, failed.error
    if any(row.cached_tokens is None for row in rows):
        return Verdict.CANNOT_TELL, "The answers do not tell cached tokens."
    if not rows[0].cached_tokens:
        return Verdict.CANNOT_TELL, f'Not even a single conversation stays warm: see "{PREFIX_REUSE}".'
    planned = f"state slots for about {format_tokens(holds)}" if holds is not None else "no states to run out of"
    warm = max(row.conversations for row in rows if row.cached_tokens)
    cold = min((row.conversations for row in rows if not row.cached_tokens), default=None)
    if warm < inside:
        between = f"{warm}, not {cold}," if cold is not None else str(warm)
        return Verdict.FAIL, (
            f"Only {between} conversations stay warm where there are {planned}: slots are held elsewhere or lost."
        )
    if cold is None:
        return Verdict.PASS, f"At least {warm} conversations stay warm, with {planned}."
    return Verdict.PASS, f"{warm} conversations stay warm and {cold} do not, with {planned}."


def _halved(bench: Bench, known_cold: int) -> list[Row]:
    """Rows that close in on how many do stay warm."""
    rows: list[Row] = []
    warm, cold = 1, known_cold
    while len(rows) < _HALVINGS and cold - warm > max(1, known_cold // 10) and not bench.held.stop.is_set():
        row = _row(bench, (warm + cold) // 2)
        rows.append(row)
        if row.error or row.cached_tokens is None:
            break
        warm, cold = (row.conversations, cold) if row.cached_tokens else (warm, row.conversations)
    return rows


def _row(bench: Bench, conversations: int) -> Row:
    """Asks so many fresh prompts, then goes on with the first."""
    salt = secrets.token_hex(8)
    prompts = [token_ids(f"{salt} {number}", _length(bench), bench.vocab_size) for number in range(conversations)]
    cached: int | None = None
    for prompt in (*prompts, prompts[0] + token_ids(salt, _TAIL, bench.vocab_size)):
        body = {
            "input_ids": prompt,
            # One token: an answer would keep a state of its own at its end.
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        }
        answer = bench.client.generate(body, cancel=bench.held.stop)
        if answer.error or answer.status is None or answer.status >= 400:
            return Row(conversations, None, failure(answer.status, answer.error or ""))
        cached = answer.cached_tokens
    return Row(conversations, cached)


def _length(bench: Bench) -> int:
    """Short, with a place where a state is kept shortly before its end; without a buffer that is its end."""
    return 3 * bench.probe.grid + 1


def _slots(bench: Bench) -> int | None:
    """State slots; 0 on a model without states; None: not known."""
    if bench.probe.hybrid is False:
        return 0
    if bench.facts is not None and bench.facts.mamba_slots is not None:
        return bench.facts.mamba_slots
    return bench.plan.mamba_slots if bench.plan is not None else None


def _working(bench: Bench) -> int:
    per_request = bench.plan.slots_per_request if bench.plan is not None else 0
    return max(per_request, _WORKING_SLOTS)


def _room(bench: Bench) -> int:
    pools = [bench.facts.kv_tokens if bench.facts else None, bench.plan.kv_tokens if bench.plan else None]
    tokens = next((pool for pool in pools if pool is not None), None)
    return _MOST if tokens is None else tokens // _POOL_SHARE // (_length(bench) + _TAIL)


def _said(verdict: Verdict, reason: str, clock: Stopwatch) -> CheckResult:
    return CheckResult(name=BREADTH, verdict=verdict, reason=reason, seconds=clock.seconds)
