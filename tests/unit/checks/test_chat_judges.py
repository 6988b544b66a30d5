from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.checks.answers import Call, ChatSeen, chat_seen
from tuner.checks.content import ChatContext, template_tokens
from tuner.checks.judge import judge_chat
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.thinking import NON_THINKING, THINKING, non_thinking_request, thinking_request
from tuner.checks.tool_call import TOOL_CALL, argument_fault, tool_call_request
from tuner.probes.answers import ChatAnswer

MEASURED = Path(__file__).parents[2] / "data" / "measured"
WITH_PARSERS = ChatContext(reasoning_parser="qwen3", tool_call_parser="qwen3_coder", max_tokens=512)
WITHOUT_PARSERS = ChatContext(max_tokens=512)


def judged(name: str, context: ChatContext = WITH_PARSERS, **seen: Any) -> CheckResult:
    return judge_chat(name, ChatSeen(status=200, **seen), context)


def recorded(round_name: str, which: str, max_tokens: int) -> ChatSeen:
    """One of the three chat answers that a real server with random weights gave."""
    record = json.loads((MEASURED / f"{round_name}.json").read_text())["three"][which]
    body = json.loads(record["body"])
    choice = body["choices"][0]
    answer = ChatAnswer(
        status=record["status"],
        total_s=record["s"],
        text=choice["message"]["content"] or "",
        reasoning=choice["message"]["reasoning_content"] or "",
        tool_calls=tuple(choice["message"]["tool_calls"] or ()),
        finish_reason=choice["finish_reason"],
        usage=body["usage"],
    )
    return chat_seen(answer, max_tokens)


def test_random_weights_that_think_for_ever_are_not_called_well_or_broken() -> None:
    for name in ("27b-48g-r15-full", "tiny-auto-strategy-never-hits", "tiny-second-server-same-port"):
        result = judge_chat(THINKING, recorded(name, "think", 48), ChatContext(reasoning_parser="qwen3", max_tokens=48))
        assert result.verdict is Verdict.CANNOT_TELL
        assert result.reason == "It was still thinking at the limit of 48 tokens."


def test_random_weights_that_answer_nonsense_fail() -> None:
    result = judge_chat(NON_THINKING, recorded("tiny-auto-strategy-never-hits", "nothink", 48), WITH_PARSERS)
    assert result.verdict is Verdict.FAIL
    assert "does not hold 492" in result.reason
    assert "namedtuple" in result.came


def test_random_weights_that_answer_only_a_line_feed_fail() -> None:
    result = judge_chat(NON_THINKING, recorded("27b-48g-r15-full", "nothink", 48), WITH_PARSERS)
    assert (result.verdict, result.reason) == (Verdict.FAIL, "48 tokens came, but no answer is to be seen.")


@pytest.mark.parametrize("name", ["27b-48g-r15-full", "tiny-auto-strategy-never-hits", "tiny-second-server-same-port"])
def test_random_weights_that_write_template_tokens_fail_the_tool_call(name: str) -> None:
    result = judge_chat(TOOL_CALL, recorded(name, "tool", 64), WITH_PARSERS)
    assert result.verdict is Verdict.FAIL
    assert result.reason == "Template tokens are left in the reasoning: <|endoftext|>."


def test_thinking_passes_when_the_reasoning_comes_apart_from_the_right_answer() -> None:
    result = judged(THINKING, reasoning="17 * 24 = 340 + 68", text="17 * 24 = **408**", tokens=30, seconds=1.52)
    assert (result.verdict, result.name, result.seconds) == (Verdict.PASS, "thinking", 1.52)
    assert result.came == "reasoning: 17 * 24 = 340 + 68 | answer: 17 * 24 = **408**"


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"text": "Let me see\n</think>\n\n408"}, "Template tokens are left in the answer: </think>."),
        ({"text": "408"}, "No reasoning came apart from the answer, although --reasoning-parser qwen3 is set."),
        ({"text": "", "reasoning": "408, I think", "tokens": 9}, "9 tokens came, but no answer is to be seen."),
        ({"text": " \n", "reasoning": ""}, "No reasoning came apart"),
        ({"text": "1408", "reasoning": "hm"}, "The answer to 17 * 24 does not hold 408: wrong weights"),
        ({"text": "408", "reasoning": "<|im_start|>hm"}, "Template tokens are left in the reasoning: <|im_start|>."),
    ],
)
def test_thinking_fails_with_its_reason(seen: dict[str, Any], reason: str) -> None:
    result = judged(THINKING, **seen)
    assert result.verdict is Verdict.FAIL
    assert result.reason.startswith(reason)


def test_without_a_reasoning_parser_thoughts_in_the_answer_are_not_the_servers_fault() -> None:
    result = judged(THINKING, WITHOUT_PARSERS, text="<think>17 * 24</think>408")
    assert (result.verdict, result.reason) == (
        Verdict.CANNOT_TELL,
        "The thinking is part of the answer (<think>): set --reasoning-parser to have it apart.",
    )
    assert judged(THINKING, WITHOUT_PARSERS, text="408").verdict is Verdict.PASS
    assert judged(THINKING, WITHOUT_PARSERS, text="so 408 or", at_limit=True).verdict is Verdict.CANNOT_TELL
    assert judged(THINKING, WITHOUT_PARSERS, text="408<|im_end|>").verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("seen", "verdict", "reason"),
    [
        ({"text": "125 + 367 = 492."}, Verdict.PASS, "The right answer came without thinking."),
        ({"text": "492", "reasoning": "hm"}, Verdict.FAIL, "It thought although thinking was turned off"),
        ({"reasoning": "The sum is 492."}, Verdict.FAIL, "All of the answer came as reasoning"),
        ({"text": "492<|im_end|>\n<|im_start|>assistant"}, Verdict.FAIL, "Template tokens are left in the answer"),
        ({"text": ""}, Verdict.FAIL, "The answer is empty."),
        ({"text": "the pool holds states"}, Verdict.FAIL, "The answer to 125 + 367 does not hold 492"),
    ],
)
def test_non_thinking_wants_the_answer_alone(seen: dict[str, Any], verdict: Verdict, reason: str) -> None:
    result = judged(NON_THINKING, **seen)
    assert result.verdict is verdict
    assert result.reason.startswith(reason)


def call(arguments: Any, name: str = "get_weather") -> tuple[Call, ...]:
    return (Call(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)),)


@pytest.mark.parametrize("city", ["Beijing", "beijing, China", "北京", "Peking"])
def test_a_proper_tool_call_passes(city: str) -> None:
    result = judged(TOOL_CALL, reasoning="I need the tool.", calls=call({"city": city}))
    assert result.verdict is Verdict.PASS
    assert city in result.came


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"calls": call('{"city": "Beijing", }')}, "The arguments are no JSON"),
        ({"calls": call("")}, "The arguments are no JSON: nothing."),
        ({"calls": call(["Beijing"])}, "The arguments are no JSON object"),
        ({"calls": call({"town": "Beijing"})}, 'The argument "city" is missing.'),
        ({"calls": call({"city": 7})}, 'The argument "city" is no string: 7.'),
        ({"calls": call({"city": "Beijing", "unit": "kelvin"})}, 'The argument "unit" is none of celsius, fahrenheit'),
        ({"calls": call({"city": "Rome"})}, "It was asked for Beijing and called for Rome."),
        ({"calls": call({"city": "Beijing"}, "search")}, "It called search, which it was not offered."),
        ({"calls": call({"city": "Beijing"}) + call({})}, 'The argument "city" is missing.'),
        ({"text": "It is sunny."}, "It answered in words instead of calling the tool."),
        ({"text": ""}, "Neither a call nor an answer came."),
        ({"text": '<tool_call>\n{"name": "get_weather"}'}, "Template tokens are left in the answer (<tool_call>): "),
        ({"text": "<function=get_weather>"}, "Template tokens are left in the answer (<function=get_weather>)"),
        ({"text": "</tool_call>", "calls": call({"city": "Beijing"})}, "Template tokens are left beside the call"),
    ],
)
def test_a_tool_call_fails_with_its_reason(seen: dict[str, Any], reason: str) -> None:
    result = judged(TOOL_CALL, **seen)
    assert result.verdict is Verdict.FAIL
    assert result.reason.startswith(reason)


def test_thoughts_that_leak_beside_a_proper_call_are_left_to_the_thinking_check() -> None:
    assert judged(TOOL_CALL, text="Hm.\n</think>\n\n", calls=call({"city": "Beijing"})).verdict is Verdict.PASS
    leaked = judged(TOOL_CALL, text="Hm.\n</think>\n\nIt is sunny.")
    assert leaked.reason == "It answered in words instead of calling the tool."


def test_a_tool_call_cannot_be_told_without_a_parser_or_while_it_still_thinks() -> None:
    raw = judged(TOOL_CALL, WITHOUT_PARSERS, text="<tool_call>{}</tool_call>")
    assert (raw.verdict, raw.reason) == (
        Verdict.CANNOT_TELL,
        "The call stayed text (<tool_call>): set --tool-call-parser.",
    )
    assert judged(TOOL_CALL, WITHOUT_PARSERS, text="sunny").verdict is Verdict.CANNOT_TELL
    thinking = judged(TOOL_CALL, reasoning="hm " * 500, at_limit=True)
    assert (thinking.verdict, thinking.reason) == (
        Verdict.CANNOT_TELL,
        "It was still thinking at the limit of 512 tokens.",
    )


@pytest.mark.parametrize("name", [THINKING, NON_THINKING, TOOL_CALL])
def test_a_server_that_does_not_answer_fails_with_its_sentence(name: str) -> None:
    dead = judge_chat(name, ChatSeen(status=None, error="Nothing answers at http://127.0.0.1:30000."), WITH_PARSERS)
    assert (dead.verdict, dead.reason) == (Verdict.FAIL, "Nothing answers at http://127.0.0.1:30000.")
    refused = judge_chat(name, ChatSeen(status=500, error="The server answered 500: out of memory"), WITH_PARSERS)
    assert (refused.verdict, refused.reason) == (Verdict.FAIL, "The server answered 500: out of memory")


def test_what_came_is_plain_and_clipped_and_holds_no_secret() -> None:
    result = judged(NON_THINKING, text="\x1b[31m[rank0]: 492\x1b[0m\n" + "很长 " * 500 + " sk-abcdefgh123456")
    assert "\x1b" not in result.came
    assert result.came.startswith("answer: [rank0]: 492 很长")
    assert len(result.came) < 420
    assert "sk-abcdefgh" not in judged(NON_THINKING, text="492 sk-abcdefgh123456").came


@pytest.mark.parametrize(
    "text", ["a < b and |x| > 1", "f(x) = <y>", "if (a<|b|>c) then", "[INSTALL]", "<thinker>", "你好 think"]
)
def test_ordinary_text_is_not_taken_for_template_tokens(text: str) -> None:
    assert template_tokens(text) == ()


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "<think>", "</think>", "<tool_call>", "<|eot_id|>", "[TOOL_CALLS]", "<\uff5cend\uff5c>"]
)
def test_template_tokens_of_every_family_are_seen(text: str) -> None:
    assert template_tokens(f"well {text} then") == (text,)


def test_requests_differ_from_run_to_run_and_ask_what_they_check() -> None:
    for request in (thinking_request, non_thinking_request, tool_call_request):
        first, second = request("aa", 512), request("bb", 512)
        assert first["messages"] != second["messages"]
        assert first["max_tokens"] == 512
    assert thinking_request("a", 1)["chat_template_kwargs"] == {"enable_thinking": True}
    assert non_thinking_request("a", 1)["chat_template_kwargs"] == {"enable_thinking": False}
    assert argument_fault('{"city": "Beijing"}', tool_call_request("a", 1)["tools"][0]["function"]["parameters"]) == ""


@settings(max_examples=150)
@given(
    name=st.sampled_from([THINKING, NON_THINKING, TOOL_CALL]),
    text=st.text(),
    reasoning=st.text(),
    calls=st.lists(st.builds(Call, st.text(), st.text()), max_size=3),
    status=st.sampled_from([None, 200, 400, 500]),
    at_limit=st.booleans(),
    context=st.sampled_from([WITH_PARSERS, WITHOUT_PARSERS]),
)
def test_any_answer_gets_a_verdict_with_one_sentence(
    name: str, text: str, reasoning: str, calls: list[Call], status: int | None, at_limit: bool, context: ChatContext
) -> None:
    seen = ChatSeen(status=status, text=text, reasoning=reasoning, calls=tuple(calls), at_limit=at_limit)
    result = judge_chat(name, seen, context)
    assert result.name == name
    assert result.reason
    assert "\n" not in result.reason + result.came
    assert "\x1b" not in result.reason + result.came
    if status != 200:
        assert result.verdict is Verdict.FAIL
