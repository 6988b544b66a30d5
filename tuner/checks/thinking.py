"""The two plain checks: one answer with thinking, one without."""

from __future__ import annotations

from typing import Any

from tuner.checks.answers import ChatSeen
from tuner.checks.content import ChatContext, holds_number, is_thought, no_answer, result, template_tokens
from tuner.checks.model import CheckResult, Verdict

THINKING = "thinking"
NON_THINKING = "non-thinking"

#: Sums that any model can do and that broken weights or a broken state do not hit by chance.
_THINKING_SUM, _THINKING_RESULT = "17 * 24", 408
_NON_THINKING_SUM, _NON_THINKING_RESULT = "125 + 367", 492


def thinking_request(salt: str, max_tokens: int) -> dict[str, Any]:
    """A sum that is worth a thought. ``salt`` keeps an earlier run's cache from answering."""
    return {
        "messages": [{"role": "user", "content": f"[check {salt}] What is {_THINKING_SUM}?"}],
        "chat_template_kwargs": {"enable_thinking": True},
        "max_tokens": max_tokens,
    }


def non_thinking_request(salt: str, max_tokens: int) -> dict[str, Any]:
    """A sum to be answered at once."""
    return {
        "messages": [
            {"role": "user", "content": f"[check {salt}] What is {_NON_THINKING_SUM}? Answer in one short sentence."}
        ],
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def judge_thinking(seen: ChatSeen, context: ChatContext) -> CheckResult:
    """Reasoning, and apart from it the right answer."""
    if missing := no_answer(THINKING, seen):
        return missing
    verdict, reason = _judged_thinking(seen, context)
    return result(THINKING, seen, verdict, reason)


def judge_non_thinking(seen: ChatSeen, context: ChatContext) -> CheckResult:
    """The right answer and no reasoning."""
    if missing := no_answer(NON_THINKING, seen):
        return missing
    verdict, reason = _judged_non_thinking(seen, context)
    return result(NON_THINKING, seen, verdict, reason)


def _judged_thinking(seen: ChatSeen, context: ChatContext) -> tuple[Verdict, str]:
    parser = context.reasoning_parser
    if leaked := template_tokens(seen.text):
        if parser is None and is_thought(leaked):
            return Verdict.CANNOT_TELL, (
                f"The thinking is part of the answer ({leaked[0]}): set --reasoning-parser to have it apart."
            )
        return Verdict.FAIL, f"Template tokens are left in the answer: {', '.join(leaked[:4])}."
    if leaked := template_tokens(seen.reasoning):
        return Verdict.FAIL, f"Template tokens are left in the reasoning: {', '.join(leaked[:4])}."
    if parser is not None and not seen.reasoning.strip():
        return Verdict.FAIL, f"No reasoning came apart from the answer, although --reasoning-parser {parser} is set."
    if not seen.text.strip():
        if seen.at_limit and seen.reasoning.strip():
            return Verdict.CANNOT_TELL, f"It was still thinking at the limit of {context.max_tokens} tokens."
        return Verdict.FAIL, _nothing_visible(seen)
    if parser is None and seen.at_limit:
        # Without a parser an answer cut in the middle of a thought looks like any other text.
        return Verdict.CANNOT_TELL, f"The answer was cut at the limit of {context.max_tokens} tokens."
    if not holds_number(seen.text, _THINKING_RESULT):
        return Verdict.FAIL, _wrong(_THINKING_SUM, _THINKING_RESULT)
    if parser is None:
        return Verdict.PASS, "The right answer came; without --reasoning-parser no reasoning comes apart."
    return Verdict.PASS, "Reasoning came apart from the right answer."


def _judged_non_thinking(seen: ChatSeen, context: ChatContext) -> tuple[Verdict, str]:
    if leaked := template_tokens(seen.text) or template_tokens(seen.reasoning):
        return Verdict.FAIL, f"Template tokens are left in the answer: {', '.join(leaked[:4])}."
    if seen.reasoning.strip():
        if seen.text.strip():
            return Verdict.FAIL, "It thought although thinking was turned off for this request."
        return Verdict.FAIL, (
            f"All of the answer came as reasoning, although thinking was turned off: --reasoning-parser "
            f"{context.reasoning_parser or '(not set)'} does not fit the chat template."
        )
    if not seen.text.strip():
        return Verdict.FAIL, _nothing_visible(seen)
    if not holds_number(seen.text, _NON_THINKING_RESULT):
        return Verdict.FAIL, _wrong(_NON_THINKING_SUM, _NON_THINKING_RESULT)
    return Verdict.PASS, "The right answer came without thinking."


def _nothing_visible(seen: ChatSeen) -> str:
    return f"{seen.tokens} tokens came, but no answer is to be seen." if seen.tokens else "The answer is empty."


def _wrong(asked: str, expected: int) -> str:
    return f"The answer to {asked} does not hold {expected}: wrong weights, a broken state or a weak model."
