"""One entry to judge a chat answer by the name of its check."""

from __future__ import annotations

from collections.abc import Callable

from tuner.checks.answers import ChatSeen
from tuner.checks.content import ChatContext
from tuner.checks.model import CheckResult
from tuner.checks.thinking import NON_THINKING, THINKING, judge_non_thinking, judge_thinking
from tuner.checks.tool_call import STREAMED_TOOL_CALL, TOOL_CALL, judge_streamed_tool_call, judge_tool_call

_JUDGES: dict[str, Callable[[ChatSeen, ChatContext], CheckResult]] = {
    THINKING: judge_thinking,
    NON_THINKING: judge_non_thinking,
    TOOL_CALL: judge_tool_call,
    STREAMED_TOOL_CALL: judge_streamed_tool_call,
}


def judge_chat(name: str, seen: ChatSeen, context: ChatContext) -> CheckResult:
    """The verdict of the check ``name`` on an answer. Raises KeyError for a name that is no chat check."""
    return _JUDGES[name](seen, context)
