"""Answers are sensible, fit the tools, stay whole through parsers, and break as the faults say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.sim.answers import Answer, Parsers, PieceKind, chat_answer, cut, spoil, tool_call
from tuner.sim.chat import BadRequest, ChatStream, ChatTurn, completion, read_chat, usage
from tuner.sim.faults import Faults, parse_faults
from tuner.sim.native import planned
from tuner.sim.requests import Request
from tuner.sim.tokens import chat_prompt, pieces, token_ids

BOTH = Parsers(reasoning=True, tools=True)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1},
                "place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city", "unit", "days", "place", "tags"],
        },
    },
}


def turn(text: str, parsers: Parsers = BOTH, **more: Any) -> ChatTurn:
    body = {"messages": [{"role": "user", "content": text}], **more}
    return read_chat(json.dumps(body).encode(), parsers, {})


def answered(asked: ChatTurn, faults: Faults | None = None, cached: int = 0, limit: int = 1000) -> Request:
    request = Request([1], limit, lambda _: asked.compose(cached, faults or Faults()))
    while not request.finished:
        request.emit(3, lambda text: len(text))
    return request


def message(request: Request, asked: ChatTurn) -> dict[str, Any]:
    choice: dict[str, Any] = completion(request, asked, "m", cache_report=True)["choices"][0]
    return choice["message"] | {"finish_reason": choice["finish_reason"]}


def test_sums_are_right_and_in_the_language_of_the_question() -> None:
    assert "408" in chat_answer("What is 17 * 24?", [], thinking=True).content
    assert "492" in chat_answer("[check 3f] What is 125 + 367? Answer shortly.", [], thinking=False).content
    chinese = chat_answer("请问 17 * 24 等于多少?用一句话回答", [], thinking=True)
    assert chinese.content == "答案是 408。"
    assert "用户" in chinese.reasoning


def test_thinking_comes_apart_from_the_answer_when_a_parser_is_set() -> None:
    asked = turn("What is 2 + 2?")
    seen = message(answered(asked), asked)
    assert seen["content"] == "The answer is 4."
    assert seen["reasoning_content"].startswith("The user asks")
    assert seen["finish_reason"] == "stop"


def test_without_a_reasoning_parser_the_marks_come_as_content() -> None:
    asked = turn("What is 2 + 2?", Parsers(reasoning=False, tools=True))
    seen = message(answered(asked), asked)
    assert "</think>" in seen["content"]
    assert seen["reasoning_content"] is None


def test_thinking_can_be_turned_off_by_request_and_by_server() -> None:
    asked = turn("What is 2 + 2?", chat_template_kwargs={"enable_thinking": False})
    assert message(answered(asked), asked)["reasoning_content"] is None
    by_server = read_chat(b'{"messages": [{"role": "user", "content": "Hi"}]}', BOTH, {"enable_thinking": False})
    assert by_server.thinking is False


def test_a_tool_call_fits_its_schema() -> None:
    asked = turn("What is the weather in Beijing for 3 days?", tools=[WEATHER])
    seen = message(answered(asked), asked)
    (call,) = seen["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "get_weather"
    assert arguments["city"] == "Beijing"
    assert arguments["unit"] == "celsius"
    assert arguments["days"] == 3
    assert isinstance(arguments["place"]["lat"], int | float)
    assert seen["finish_reason"] == "tool_calls"


def test_the_result_of_a_tool_is_answered_with_text() -> None:
    body = {
        "messages": [
            {"role": "user", "content": "Weather in Berlin?"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "content": "21 degrees"},
        ],
        "tools": [WEATHER],
    }
    asked = read_chat(json.dumps(body).encode(), BOTH, {})
    assert message(answered(asked), asked)["tool_calls"] is None


def test_streamed_deltas_give_the_same_answer() -> None:
    asked = turn("What is the weather in Beijing?", tools=[WEATHER])
    request = Request([1], 1000, lambda _: asked.compose(0, Faults()))
    stream = ChatStream(request, "m")
    deltas = [stream.first()["choices"][0]["delta"]]
    while not request.finished:
        request.emit(2, len)
        deltas += [chunk["choices"][0]["delta"] for chunk in stream.news()]
    whole = message(request, asked)
    calls = [delta["tool_calls"][0]["function"] for delta in deltas if delta.get("tool_calls")]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == whole["reasoning_content"]
    assert "".join(c["arguments"] for c in calls) == whole["tool_calls"][0]["function"]["arguments"]
    assert [c["name"] for c in calls if c["name"]] == ["get_weather"]
    assert stream.last()["choices"][0]["finish_reason"] == "tool_calls"


def test_an_answer_is_cut_at_the_limit() -> None:
    asked = turn("What is 2 + 2?")
    request = answered(asked, limit=4)
    assert request.finish_reason == "length"
    assert usage(request, cache_report=False)["completion_tokens"] == 4
    assert usage(request, cache_report=False)["prompt_tokens_details"] is None
    assert usage(request, cache_report=True)["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b'{"messages": "hi"}', b'{"messages": []}', b"\xff\xfe", b'{"messages": [3]}']
)
def test_a_body_that_is_no_chat_is_refused_in_one_sentence(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        read_chat(raw, BOTH, {})


def test_leaking_reasoning_is_seen_in_the_content() -> None:
    asked = turn("What is 2 + 2?")
    seen = message(answered(asked, parse_faults(["reasoning-leaks"])), asked)
    assert "The user asks" in seen["content"]
    assert not seen["reasoning_content"]


def test_broken_tool_arguments_are_no_json() -> None:
    asked = turn("Weather in Berlin?", tools=[WEATHER])
    seen = message(answered(asked, parse_faults(["broken-tool-args"])), asked)
    with pytest.raises(json.JSONDecodeError):
        json.loads(seen["tool_calls"][0]["function"]["arguments"])


def test_faults_of_a_hit_leave_cold_answers_alone() -> None:
    faults = parse_faults(["hot-answer-differs", "cache-wrong"])
    answer = chat_answer("Weather in Berlin?", [WEATHER], thinking=False)
    assert spoil(answer, faults, cached_tokens=0) == answer
    assert spoil(answer, faults, cached_tokens=64).calls == ()
    text = Answer(content="Paris.")
    assert spoil(text, parse_faults(["hot-answer-differs"]), cached_tokens=64).content != "Paris."


def test_generated_text_is_the_same_hot_and_cold_unless_a_fault_says_otherwise() -> None:
    cold, hot = (planned(b"abcd", 20, Faults(), cached) for cached in (0, 64))
    assert cold == hot
    assert planned(b"abcd", 20, parse_faults(["hot-answer-differs"]), 64) != cold


def test_template_marks_and_empty_answers() -> None:
    asked = turn("What is 2 + 2?")
    assert "<|im_end|>" in message(answered(asked, parse_faults(["template-leaks"])), asked)["content"]
    assert message(answered(asked, parse_faults(["empty-answer"])), asked)["content"] == ""


def test_a_tool_without_parameters_is_called_with_none() -> None:
    call = tool_call([{"type": "function", "function": {"name": "ping"}}], "ping?")
    assert call is not None
    assert call.arguments == "{}"


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=200))
def test_tokens_joined_give_the_text_back(text: str) -> None:
    cut_up = pieces(text)
    assert "".join(cut_up) == text
    assert all(0 <= token < 1000 for token in token_ids(cut_up, 1000))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_prompts_with_the_same_beginning_share_their_first_tokens(shared: str, one: str, other: str) -> None:
    def ids(end: str) -> list[str]:
        return pieces(
            chat_prompt([{"role": "system", "content": shared}, {"role": "user", "content": end}], [], thinking=True)
        )

    beginning = pieces(f"<|im_start|>system\n{shared}<|im_end|>\n")
    assert ids(one)[: len(beginning) - 1] == ids(other)[: len(beginning) - 1]


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60), st.booleans(), st.booleans(), st.booleans())
def test_every_part_of_an_answer_survives_the_cut(text: str, reasoning: bool, tools: bool, thinking: bool) -> None:
    answer = Answer(reasoning="thinking about it", content=text)
    parts = cut(answer, Parsers(reasoning=reasoning, tools=tools), thinking=thinking)
    content = "".join(p.text for p in parts if p.kind is PieceKind.CONTENT)
    assert content.endswith(text)
