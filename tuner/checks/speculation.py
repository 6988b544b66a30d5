"""Speculation: what is accepted over real decoding, against what it costs in KV."""

from __future__ import annotations

import secrets

import msgspec

from tuner.checks.answers import GenerateAnswer, failure
from tuner.checks.bench import Bench, Stopwatch, not_done
from tuner.checks.model import CheckResult, Verdict
from tuner.units import format_gib, format_tokens

SPECULATION = "speculation"

_GIB = 1 << 30
_NEW_TOKENS = 192
#: Prose, code and a list: acceptance differs with what is written.
_PROMPTS = (
    "The history of the printing press begins in the fifteenth century. In the decades that followed,",
    "def merge_sort(values):\n    if len(values) <= 1:\n        return values\n",
    "Ten European capitals with their countries:\n1. Paris, France\n2. Madrid, Spain\n3.",
)
#: Tokens for each verification: with fewer the drafts are as good as never accepted.
_NONE_ACCEPTED = 1.05


class Drafted(msgspec.Struct, frozen=True, kw_only=True):
    """What answers tell of their drafts: verifications, draft tokens proposed and accepted, tokens made."""

    steps: int = 0
    proposed: int | None = None
    accepted: int | None = None
    tokens: int = 0

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that one verification brings: 1 and the accepted drafts."""
        if not self.steps:
            return None
        return 1 + self.accepted / self.steps if self.accepted is not None else self.tokens / self.steps

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the proposed draft tokens that were accepted."""
        return self.accepted / self.proposed if self.accepted is not None and self.proposed else None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation takes of the card, GiB, and what that is in KV tokens; None: not known."""

    gib: float | None = None
    kv_tokens: int | None = None


def check_speculation(bench: Bench) -> CheckResult:
    """Decodes a few hundred tokens of different kinds and adds up what the answers tell of drafts."""
    clock = Stopwatch()
    if bench.held.stop.is_set():
        return not_done(SPECULATION, "", bench.held, 0.0)
    if not bench.flags.get("speculative_algorithm"):
        return CheckResult(
            name=SPECULATION, verdict=Verdict.PASS, reason="off: the server does not speculate, as asked."
        )
    drafted = Drafted()
    sent = f"{len(_PROMPTS)} texts to go on with, {_NEW_TOKENS} tokens each"
    for prompt in _PROMPTS:
        body = {
            "text": f"[{secrets.token_hex(4)}] {prompt}",
            "sampling_params": {"max_new_tokens": _NEW_TOKENS, "temperature": 0, "ignore_eos": True},
            "stream": False,
        }
        answer = bench.client.generate(body, cancel=bench.held.stop)
        if bench.held.stop.is_set():
            return not_done(SPECULATION, sent, bench.held, clock.seconds)
        if answer.error or answer.status is None:
            return CheckResult(
                name=SPECULATION,
                verdict=Verdict.FAIL,
                reason=failure(answer.status, answer.error or ""),
                sent=sent,
                seconds=clock.seconds,
            )
        drafted = with_answer(drafted, answer)
    cost = cost_of(bench)
    verdict, reason = judge_speculation(drafted, cost)
    return CheckResult(
        name=SPECULATION,
        verdict=verdict,
        reason=reason,
        sent=sent,
        came=f"{drafted.tokens} tokens in {drafted.steps} verifications",
        seconds=clock.seconds,
        details={
            "acceptance_length": _rounded(drafted.acceptance_length),
            "acceptance_rate": _rounded(drafted.acceptance_rate),
            "cost_gib": _rounded(cost.gib),
            "cost_kv_tokens": cost.kv_tokens,
        },
    )


def with_answer(drafted: Drafted, answer: GenerateAnswer) -> Drafted:
    """The sum with one more answer: ``meta_info`` of SGLang 0.5.9 to 0.5.23 under its old and new names. Pure."""
    meta = answer.meta
    proposed = _count(meta.get("spec_num_proposed_drafts", meta.get("spec_proposed_drafts")))
    accepted = _count(meta.get("spec_num_correct_drafts", meta.get("spec_accepted_drafts")))
    return Drafted(
        steps=drafted.steps + (_count(meta.get("spec_verify_ct")) or 0),
        proposed=_sum(drafted.proposed, proposed),
        accepted=_sum(drafted.accepted, accepted),
        tokens=drafted.tokens + (_count(meta.get("completion_tokens")) or 0),
    )


def cost_of(bench: Bench) -> Cost:
    """Speculative states and the draft's KV pool, from the log or else the plan."""
    facts, plan = bench.facts, bench.plan
    parts: list[float | None] = []
    if facts is not None:
        parts = [facts.spec_state_gib, facts.spec_conv_gib, facts.draft.kv_gib if facts.draft else None]
    known = [part for part in parts if part is not None]
    gib = sum(known) if known else plan.spec_buffer_gib if plan is not None else None
    if gib is None:
        return Cost()
    per_token = float(plan.bytes_per_token) if plan is not None else None
    if facts is not None and facts.kv_gib and facts.kv_tokens:
        per_token = facts.kv_gib * _GIB / facts.kv_tokens
    return Cost(gib=gib, kv_tokens=int(gib * _GIB / per_token) if per_token else None)


def judge_speculation(drafted: Drafted, cost: Cost) -> tuple[Verdict, str]:
    """The verdict on what was accepted, against its cost. Pure."""
    length, rate = drafted.acceptance_length, drafted.acceptance_rate
    if length is None:
        return Verdict.CANNOT_TELL, "The answers tell nothing of drafts (no spec_verify_ct in meta_info)."
    price = ""
    if cost.gib is not None:
        in_kv = f", room for {format_tokens(cost.kv_tokens)} KV tokens" if cost.kv_tokens else ""
        price = f"; it takes {format_gib(cost.gib)}{in_kv}"
    share = f", {rate:.0%} of the drafts" if rate is not None else ""
    told = f"Acceptance length {length:.2f}{share}{price}."
    if length < _NONE_ACCEPTED:
        return Verdict.FAIL, f"No draft is accepted, so speculation costs and brings nothing. {told}"
    return Verdict.PASS, told


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
