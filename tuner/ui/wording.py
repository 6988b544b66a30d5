"""How the screens say things: short, with units, the same words everywhere. Pure."""

from __future__ import annotations

from typing import Any

from tuner.checks.model import Verdict
from tuner.metrics.model import Reach, Readings, Spread
from tuner.metrics.words import P50_NEEDS, P95_NEEDS
from tuner.planner.accuracy import Accuracy
from tuner.planner.model import Plan
from tuner.rounds.model import Round, RoundState
from tuner.server.stopping import StopTimes
from tuner.text import clip, plain, width
from tuner.ui.bench import FlagChange
from tuner.units import format_seconds

NONE = "–"

#: How far the plans of the last rounds were off: (round, actual less planned), newest first.
Known = tuple[tuple[str, Accuracy], ...]

#: Short names of the flags that tuning changes most; others go by their own name.
SHORT = {
    "mem_fraction_static": "fraction",
    "mamba_full_memory_ratio": "ratio",
    "max_mamba_cache_size": "slots",
    "max_running_requests": "requests",
    "chunked_prefill_size": "chunk",
    "max_prefill_tokens": "prefill",
    "mamba_ssm_dtype": "states",
    "kv_cache_dtype": "KV",
    "mamba_radix_cache_strategy": "strategy",
    "schedule_policy": "policy",
    "speculative_algorithm": "spec",
    "speculative_num_steps": "steps",
    "speculative_num_draft_tokens": "drafts",
    "speculative_eagle_topk": "topk",
    "disable_radix_cache": "no prefix cache",
    "context_length": "context",
}

#: Flags whose numbers count nothing.
_NAMES = frozenset({"port", "nccl_port", "dist_init_addr", "random_seed"})

STATE_WORDS = {
    RoundState.STARTING: "starting",
    RoundState.CHECKING: "checking",
    RoundState.VERIFIED: "verified",
    RoundState.UNVERIFIED: "unverified",
    RoundState.FAILED: "failed",
    RoundState.ABORTED: "aborted",
    RoundState.REFUSED: "refused",
}

VERDICT_MARKS = {Verdict.PASS: "✓", Verdict.FAIL: "✗", Verdict.CANNOT_TELL: "?"}

BINDS = {
    "kv": "KV tokens run out first",
    "mamba": "state slots cap requests",
    "requests": "the requests asked",
}


def value(what: Any) -> str:
    """A flag's value as an operator writes it; an unset one is "auto"."""
    if what is None:
        return "auto"
    if isinstance(what, bool):
        return "on" if what else "off"
    if isinstance(what, int):
        return f"{what:,}" if what >= 10_000 else str(what)
    if isinstance(what, float):
        return f"{what:g}"
    return plain(str(what)).replace("\n", " ")


def flag_value(name: str, what: Any) -> str:
    """A value of a named flag: what only looks like a count gets no separators."""
    return str(what) if name in _NAMES and what is not None else value(what)


def short_name(flag: str) -> str:
    """The short name of a flag."""
    return SHORT.get(flag, flag)


def changes_line(changes: tuple[FlagChange, ...]) -> str:
    """Changes on one line: ``ratio 0.9→0.3, states float32→bfloat16``."""
    return ", ".join(f"{short_name(c.name)} {flag_value(c.name, c.old)}→{flag_value(c.name, c.new)}" for c in changes)


def signed(new: float | None, old: float | None, digits: int = 0) -> str:
    """A change of what is shown, with its sign, "=" for none, "" when there is nothing to compare."""
    if new is None or old is None:
        return ""
    difference = round(round(new, digits) - round(old, digits), digits)
    if difference == 0:
        return "="
    return f"{difference:+,.{digits}f}".replace("-", "−")


def tokens(count: int | None) -> str:
    """A count with separators, or a dash."""
    return NONE if count is None else f"{count:,}"


def answers(readings: Readings | None) -> bool:
    """Whether the server answered a poll in any way: also "off" and "locked" are answers."""
    return readings is not None and any(r is not Reach.UNREACHABLE for r in (readings.metrics, readings.loads))


def percent(part: float | None, whole: float | None) -> str:
    """A share in whole percent, or nothing when it is not known."""
    if part is None or not whole:
        return ""
    return f"{100 * part / whole:.0f} %"


def spread(what: Spread | None, *, milliseconds: bool) -> str:
    """p50 / p95 with the unit: ``0.83 / 1.20 s``, ``11 / 14 ms``; of few ``0.83 / – s``, of fewer ``≈25.0 / – s``."""
    if what is None:
        return NONE
    shown = [what.p50, what.p95] if what.count >= P95_NEEDS else [what.p50]
    unit, factor = ("ms", 1000) if milliseconds else ("s", 1)
    digits = 0 if milliseconds else 2 if shown[-1] < 10 else 1
    about = "≈" if what.count < P50_NEEDS else ""
    told = [f"{seconds * factor:.{digits}f}" for seconds in shown] + [NONE] * (2 - len(shown))
    return f"{about}{' / '.join(told)} {unit}"


def pools_of(round_: Round) -> tuple[int | None, int | None, int | None]:
    """KV tokens, state slots and requests at once of a round: as started, else as planned."""
    boot = round_.boot
    if boot is not None and boot.kv_tokens is not None:
        return boot.kv_tokens, boot.mamba_slots, boot.max_running_requests
    if round_.plan is not None and round_.state is RoundState.STARTING:
        return round_.plan.kv_tokens, round_.plan.mamba_slots, round_.plan.max_running_requests
    return None, None, None


def failure(round_: Round) -> str:
    """Where and why a round ended early; empty for one that did not."""
    if round_.state not in (RoundState.FAILED, RoundState.ABORTED, RoundState.REFUSED):
        return ""
    reason = plain(round_.reason).replace("\n", " ")
    where = f" in {round_.phase}" if round_.phase else ""
    return f"{STATE_WORDS[round_.state]}{where}: {reason}" if reason else f"{STATE_WORDS[round_.state]}{where}"


def basis(plan: Plan, cells: int, known: Known = ()) -> str:
    """Where a plan's numbers come from and how far the last ones were off, in as many words as there is room for."""
    log = plan.calibrated_by or "a boot log"
    by = f"calibrated by {log}" if plan.basis == "calibrated" else "formula"
    off = worst_error(known)
    choices = [f"{by} · SGLang {plan.sglang_version}", by]
    if off:
        short = f"by {log}" if plan.basis == "calibrated" else "formula"
        choices = [
            f"{by} · last plans {off} ({names_of(known)})",
            f"{by} · last plans {off}",
            f"{by} · {off}",
            f"{short} · {off}",
            *choices,
        ]
    return next((words for words in choices if width(words) <= cells), clip(by, cells))


def worst_error(known: Known) -> str:
    """The largest error of the plans of the last rounds: ``off 0.02 %, 1 slot``; empty when none is known."""
    shares = [abs(a.tokens_percent) for _, a in known if a.tokens_percent is not None]
    if not shares:
        return ""
    slots = max((abs(a.slots_actual - a.slots_predicted) for _, a in known
                 if a.slots_actual is not None and a.slots_predicted is not None), default=0)  # fmt: skip
    if not slots and max(shares) < 0.0005:
        return "exact"
    return f"off {max(shares):.2f} %" + (f", {slots} slot{'s' if slots > 1 else ''}" if slots else "")


def names_of(known: Known) -> str:
    """``r5, r4, r2``."""
    return ", ".join(name for name, _ in known)


def between(low: int | None, high: int | None) -> str:
    """The range that two printed decimals allow, ``220,650 to 221,004``; empty when the number is exact."""
    return f"{low:,} to {high:,}" if low is not None and high is not None and low != high else ""


def in_flight_words(count: int) -> str:
    """What a stop does to the requests that run: SGLang drains, the tuner bounds that."""
    bound = f"{StopTimes().drain_s:.0f} s"
    if count == 1:
        return f"1 request is in flight: it gets up to {bound} to finish, then it is broken off."
    return f"{count} requests are in flight: they get up to {bound} to finish, then they are broken off."


def took(seconds: float) -> str:
    """A time of a step; what is too short to mean anything is not told in fractions of a millisecond."""
    return "< 0.1 s" if seconds < 0.1 else format_seconds(seconds)
