from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tuner.checks.model import CheckResult, Verdict
from tuner.checks.quick import QUICK_SET, quick_set, warm_up
from tuner.probes.answers import ChatAnswer, GenerateAnswer
from tuner.recipe.checking import CHECKS, named_checks
from tuner.serverlog.model import BootFacts

FACTS = BootFacts(kv_tokens=262_294, context_len=262_144, mamba_slots=57, chunked_prefill_size=4_096)
FLAGS = {
    "reasoning_parser": "qwen3",
    "tool_call_parser": "qwen3_coder",
    "mamba_radix_cache_strategy": "extra_buffer",
}
USAGE = {"completion_tokens": 20}


class GoodServer:
    """A client of a server that does all it should; subclasses break one thing."""

    def __init__(self) -> None:
        self.chats: list[dict[str, Any]] = []
        self.prompts: list[list[int]] = []

    def chat(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> ChatAnswer:
        self.chats.append(body)
        if body.get("tools"):
            call = {"function": {"name": "get_weather", "arguments": '{"city": "Beijing"}'}}
            return ChatAnswer(status=200, tool_calls=(call,), usage=USAGE, total_s=1.23)
        if body["chat_template_kwargs"]["enable_thinking"]:
            return ChatAnswer(status=200, reasoning="Let me see.", text="It is 408.", usage=USAGE, total_s=1.52)
        return ChatAnswer(status=200, text="The sum is 492.", usage=USAGE, total_s=0.24)

    def generate(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> GenerateAnswer:
        prompt = body["input_ids"]
        shared = max((_shared(prompt, other) for other in self.prompts), default=0) // 64 * 64
        self.prompts.append(prompt)
        return GenerateAnswer(status=200, cached_tokens=shared, ttft_s=0.1 if shared else 0.8, total_s=1.0)


def _shared(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def run(client: Any, **more: Any) -> list[CheckResult]:
    return quick_set(client, model="m", facts=FACTS, flags=FLAGS, **more)


def test_a_healthy_server_passes_all_four_and_tells_the_gain() -> None:
    results = run(GoodServer())
    assert [(r.name, r.verdict) for r in results] == [(name, Verdict.PASS) for name in QUICK_SET]
    assert results[3].reason == "works: 8,000 of 8,000 tokens reused; gain: TTFT 0.80 s without, 0.10 s with."
    assert [r.seconds for r in results[:3]] == [1.52, 0.24, 1.23]
    assert results[0].sent.endswith("What is 17 * 24?")


def test_a_recipe_may_name_each_check_of_the_quick_set() -> None:
    assert CHECKS == QUICK_SET
    assert named_checks("prefix  reuse ,thinking") == ("thinking", "prefix reuse")


def test_each_check_is_announced_and_reported_in_turn() -> None:
    said: list[Any] = []
    results = run(GoodServer(), on_started=lambda *started: said.append(started), on_ended=said.append)
    assert said[::2] == [(name, number, 4) for number, name in enumerate(QUICK_SET, start=1)]
    assert said[1::2] == results


def test_two_runs_share_no_prompt() -> None:
    client = GoodServer()
    run(client)
    asked = len(client.prompts)
    results = run(client)
    assert results[3].details["cached_tokens"][0] == 0
    assert len(client.prompts) == 2 * asked
    messages = [str(body["messages"]) for body in client.chats]
    assert len(set(messages)) == len(messages)


def test_the_model_asked_for_is_the_one_that_runs() -> None:
    client = GoodServer()
    run(client)
    assert {body["model"] for body in client.chats} == {"m"}


class ReasoningLeaks(GoodServer):
    def chat(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> ChatAnswer:
        good = super().chat(body)
        leaked = ChatAnswer(status=200, text=f"{good.reasoning}\n</think>\n\n{good.text}", usage=USAGE)
        return leaked if good.reasoning else good


class NeverThinksOff(GoodServer):
    def chat(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> ChatAnswer:
        good = super().chat(body)
        return ChatAnswer(status=200, reasoning="Hm.", text="492", usage=USAGE) if "492" in good.text else good


class BrokenToolArguments(GoodServer):
    def chat(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> ChatAnswer:
        good = super().chat(body)
        call = {"function": {"name": "get_weather", "arguments": '{"city": "Beijing", }'}}
        return ChatAnswer(status=200, tool_calls=(call,), usage=USAGE) if good.tool_calls else good


class CacheOff(GoodServer):
    def generate(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> GenerateAnswer:
        self.prompts.clear()
        return super().generate(body)


@pytest.mark.parametrize(
    ("client", "failing"),
    [
        (ReasoningLeaks(), "thinking"),
        (NeverThinksOff(), "non-thinking"),
        (BrokenToolArguments(), "tool call"),
        (CacheOff(), "prefix reuse"),
    ],
)
def test_each_fault_fails_exactly_its_own_check(client: GoodServer, failing: str) -> None:
    assert [r.name for r in run(client) if r.verdict is not Verdict.PASS] == [failing]


class DiesAfter(GoodServer):
    def __init__(self, requests: int) -> None:
        super().__init__()
        self.left = requests

    def _dead(self) -> bool:
        self.left -= 1
        return self.left < 0

    def chat(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> ChatAnswer:
        return ChatAnswer(error="Nothing answers at http://x.") if self._dead() else super().chat(body)

    def generate(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> GenerateAnswer:
        return GenerateAnswer(error="Nothing answers at http://x.") if self._dead() else super().generate(body)


@pytest.mark.parametrize("requests", range(7))
def test_a_server_that_dies_in_the_middle_fails_the_checks_that_are_left(requests: int) -> None:
    results = run(DiesAfter(requests))
    good = min(requests, 3) if requests < 6 else 4
    assert [r.verdict for r in results] == [Verdict.PASS] * good + [Verdict.FAIL] * (4 - good)
    assert all(r.reason == "Nothing answers at http://x." for r in results[good:])


class Silent(GoodServer):
    """Answers nothing until it is told to stop, as the real client does."""

    def __init__(self, on_request: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.on_request = on_request

    def chat(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> ChatAnswer:
        self.on_request()
        assert cancel is not None
        assert cancel.wait(30)
        return ChatAnswer(error="The request was cancelled.")


def test_breaking_off_ends_the_request_and_skips_the_rest() -> None:
    cancel = threading.Event()
    results = run(Silent(cancel.set), cancel=cancel)
    assert [r.verdict for r in results] == [Verdict.CANNOT_TELL] * 4
    assert {r.reason for r in results} == {"It was broken off."}


def test_a_silent_server_uses_up_the_time_and_no_more() -> None:
    results = run(Silent(), budget_s=0.2)
    assert [r.verdict for r in results] == [Verdict.CANNOT_TELL] * 4
    assert {r.reason for r in results} == {"The time for the checks (0.2 s) was used up."}


def test_weights_that_never_stop_do_not_use_up_the_half_minute_on_one_short_sentence() -> None:
    client = GoodServer()
    quick_set(client, model="m", facts=FACTS, flags=FLAGS)
    assert [body["max_tokens"] for body in client.chats] == [512, 128, 512]


def test_a_cache_turned_off_is_not_asked_at_all() -> None:
    client = GoodServer()
    results = quick_set(client, model="m", facts=FACTS, flags={**FLAGS, "disable_radix_cache": True})
    assert results[3].details["outcome"] == "off"
    assert client.prompts == []


def test_the_warm_up_sends_one_short_request_of_each_kind_and_says_so() -> None:
    client, said = GoodServer(), []
    done = warm_up(client, model="m", on_progress=said.append)
    assert done.seconds == (1.52, 0.24, 1.23)
    assert done.error == ""
    assert said[0] == "First answer 1 of 3, with thinking: after a start it can take more than a minute."
    assert said[1] == "First answer 2 of 3, without thinking; the one before took 1.5 s."
    assert all(body["max_tokens"] <= 32 for body in client.chats)


def test_the_warm_up_ends_when_the_server_is_gone_or_the_operator_breaks_off() -> None:
    assert warm_up(DiesAfter(1), model="m").error == "Nothing answers at http://x."
    cancel = threading.Event()
    assert warm_up(Silent(cancel.set), model="m", cancel=cancel).error == "It was broken off."
