"""Longest input: the last prompt that should be accepted is, and the first that should not is refused."""

from __future__ import annotations

import re
import secrets

import msgspec

from tuner.checks.answers import GenerateAnswer, failure, shown
from tuner.checks.bench import Bench, Stopwatch, not_done
from tuner.checks.leash import leash
from tuner.checks.model import CheckResult, Verdict
from tuner.measure.prompts import token_ids
from tuner.units import format_seconds, format_tokens

LONGEST_INPUT = "longest input"

#: A refusal comes within a second (recorded: 4,090 tokens on a pool of 4,096). What is not refused by then is being
#: computed; a prompt of 262,144 tokens would take minutes for an answer that nobody reads.
_PATIENCE_S = 30.0
#: The server's own number in its refusal: "exceeds the maximum allowed length (4090 tokens)" names the first length
#: that is refused, "context length (262144 tokens)" too.
_LIMIT = re.compile(r"(?:allowed length|context length)\D{1,20}(\d[\d,]*)")


class LengthSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a prompt of ``tokens`` tokens. ``said`` is the server's sentence when it did not take it."""

    tokens: int
    accepted: bool
    refused: bool
    #: It was not refused, and broken off while the prompt was computed.
    broken_off: bool = False
    said: str = ""
    seconds: float = 0.0


def check_longest_input(bench: Bench) -> CheckResult:
    """Sends a prompt of the predicted limit, and one a token longer."""
    clock = Stopwatch()
    limit = predicted_limit(bench)
    if bench.held.stop.is_set():
        return not_done(LONGEST_INPUT, "", bench.held, 0.0)
    if limit is None:
        return CheckResult(
            name=LONGEST_INPUT,
            verdict=Verdict.CANNOT_TELL,
            reason="Neither a plan nor the server tells how long an input may be.",
        )
    sent = f"prompts of {format_tokens(limit)} and {format_tokens(limit + 1)} token ids"
    # The longer one first: it costs nothing when it is refused as it should be.
    outside = _sent(bench, limit + 1)
    inside = _sent(bench, limit)
    if bench.held.stop.is_set():
        return not_done(LONGEST_INPUT, sent, bench.held, clock.seconds)
    verdict, reason = judge_longest_input(inside, outside)
    return CheckResult(
        name=LONGEST_INPUT,
        verdict=verdict,
        reason=reason,
        sent=sent,
        came=outside.said or inside.said,
        seconds=clock.seconds,
        details={
            "predicted_tokens": limit,
            "accepted_tokens": max((s.tokens for s in (inside, outside) if s.accepted), default=None),
            "refused_tokens": min((s.tokens for s in (inside, outside) if s.refused), default=None),
            "server_limit_tokens": stated_limit(outside.said) or stated_limit(inside.said),
        },
    )


def predicted_limit(bench: Bench) -> int | None:
    """Tokens of the longest prompt that should be accepted: the planner's, else by the server's own limit."""
    plan, facts = bench.plan, bench.facts
    told = bench.flags.get("max_req_input_len")
    # /server_info's max_req_input_len is the shortest prompt that is refused.
    server = told - 1 if isinstance(told, int) and not isinstance(told, bool) else None
    pools_as_planned = plan is not None and (facts is None or facts.kv_tokens in (None, plan.kv_tokens))
    if plan is not None and (pools_as_planned or server is None):
        return plan.longest_input_tokens
    # Of a pool that came out otherwise than planned, the plan's limit is no prediction.
    return server


def judge_longest_input(inside: LengthSeen, outside: LengthSeen) -> tuple[Verdict, str]:
    """The verdict on the last length that should be accepted and the first that should not. Pure."""
    for seen in (inside, outside):
        if not seen.accepted and not seen.refused:
            return Verdict.FAIL, f"A prompt of {format_tokens(seen.tokens)} tokens got no answer: {seen.said}"
    took, refused = format_tokens(inside.tokens), format_tokens(outside.tokens)
    if inside.refused:
        limit = stated_limit(inside.said)
        told = f" (its own limit: {format_tokens(limit)})" if limit is not None else ""
        return Verdict.FAIL, f"{took} tokens should be accepted and are refused{told}: {inside.said}"
    if outside.accepted:
        return Verdict.FAIL, f"{refused} tokens should be refused and are accepted: the predicted limit is too low."
    how = f"taken (broken off after {format_seconds(inside.seconds)} of prefill)" if inside.broken_off else "answered"
    return Verdict.PASS, f"{took} tokens are {how}, {refused} are refused: {outside.said}"


def stated_limit(said: str) -> int | None:
    """The limit that a server's refusal names, tokens. Pure."""
    found = _LIMIT.search(said)
    return int(found[1].replace(",", "")) if found else None


def length_seen(tokens: int, answer: GenerateAnswer, *, broken_off: bool) -> LengthSeen:
    """What an answer says of a prompt's length. Pure."""
    said = shown(answer.error or "", 300)
    refused = not broken_off and (answer.status == 400 or stated_limit(said) is not None)
    accepted = broken_off or (answer.status == 200 and not said)
    if not accepted and not said:
        said = failure(answer.status, "")
    return LengthSeen(
        tokens=tokens,
        accepted=accepted,
        refused=refused,
        broken_off=broken_off,
        said="" if broken_off else said,
        seconds=round(answer.total_s, 4),
    )


def _sent(bench: Bench, tokens: int) -> LengthSeen:
    body = {
        "input_ids": token_ids(secrets.token_hex(8), tokens, bench.vocab_size),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        # Streamed, a refusal would come as an event of an answer with status 200.
        "stream": False,
    }
    with leash(bench.held.stop, _PATIENCE_S) as patience:
        answer = bench.client.generate(body, cancel=patience.stop)
        out_of_patience = patience.stop.is_set() and not bench.held.stop.is_set()
    return length_seen(tokens, answer, broken_off=out_of_patience and answer.status is None)
