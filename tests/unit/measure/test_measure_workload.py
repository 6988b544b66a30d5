from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.measure.model import Load
from tuner.measure.prompts import made_up, plain_ids, salted, token_ids
from tuner.measure.workload import WorkloadError, read_workload

BODY = {"model": "gpt", "messages": [{"role": "user", "content": "你好"}], "stream": False, "max_tokens": 8}


def lines(*entries: Any) -> str:
    return "\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)


def test_plain_bodies_are_replayed_in_their_order_without_times() -> None:
    read = read_workload(lines(BODY, {**BODY, "max_tokens": 9}) + "\n\n")
    assert [ask.body["max_tokens"] for ask in read.asks] == [8, 9]
    assert not read.timed
    # The model and the streaming are the replay's to say.
    assert set(read.asks[0].body) == {"messages", "max_tokens"}


@pytest.mark.parametrize(
    "entry",
    [
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
        {"request": BODY},
        {"request": {"method": "POST", "body": BODY}},
        {"request_body": json.dumps(BODY)},
    ],
)
def test_batch_files_and_proxy_logs_are_read(entry: dict[str, Any]) -> None:
    assert read_workload(lines(entry)).asks[0].body["messages"][0]["content"] == "你好"


@pytest.mark.parametrize(
    ("times", "offsets"),
    [
        (("2026-01-31T12:00:02Z", "2026-01-31T12:00:00Z"), [0.0, 2.0]),
        ((1_770_000_000.5, 1_770_000_000.0), [0.0, 0.5]),
        ((1_770_000_000_500, 1_770_000_000_000), [0.0, 0.5]),
    ],
)
def test_times_of_any_kind_count_from_the_first_request(times: tuple[Any, Any], offsets: list[float]) -> None:
    read = read_workload(
        lines(*({"timestamp": time, "body": {**BODY, "max_tokens": n}} for n, time in enumerate(times)))
    )
    assert read.timed
    assert [ask.at_s for ask in read.asks] == pytest.approx(offsets)
    assert [ask.body["max_tokens"] for ask in read.asks] == [1, 0]
    assert read.seconds == pytest.approx(offsets[-1])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no request"),
        (lines(BODY) + "\n{broken", "Line 2 of the workload is no JSON: {broken"),
        ("[1]", "is no JSON object"),
        (lines({"prompt": "x"}), "Line 1 of the workload holds no chat request"),
        (lines({"messages": []}), "holds no chat request"),
        (lines({"ts": "yesterday", "body": BODY}), "has a time that is none (ts: yesterday)"),
    ],
)
def test_a_wrong_line_is_named(text: str, sentence: str) -> None:
    with pytest.raises(WorkloadError) as error:
        read_workload(text)
    assert sentence in str(error.value)


def test_the_same_content_has_the_same_name_and_another_has_not() -> None:
    one, other = read_workload(lines(BODY)), read_workload(lines({**BODY, "max_tokens": 9}))
    assert one.digest == read_workload(lines(BODY)).digest != other.digest


def test_salting_keeps_what_requests_share_and_makes_them_new() -> None:
    shared = {"role": "system", "content": "You are a clerk."}
    asks = read_workload(lines(*({"messages": [shared, {"role": "user", "content": str(n)}]} for n in range(2)))).asks
    first, second = salted(asks, "a1"), salted(asks, "b2")
    assert first[0].body["messages"][0] == first[1].body["messages"][0]
    assert first[0].body["messages"][0] != second[0].body["messages"][0]
    assert first[0].body["messages"][1] == asks[0].body["messages"][1]
    parts = read_workload(lines({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]})).asks
    assert salted(parts, "a1")[0].body["messages"][0]["content"][0]["text"] == "[a1]"


def test_made_up_prompts_share_no_beginning_within_or_between_repeats() -> None:
    load = Load(requests=20, input_tokens=200, output_tokens=8)
    prompts = [ask.body["messages"][0]["content"] for repeat in range(3) for ask in made_up(load, "salt", repeat)]
    assert len({tuple(prompt.split()[:8]) for prompt in prompts}) == 60
    assert all(160 < len(prompt.split()) < 210 for prompt in prompts)


@settings(max_examples=40, deadline=None)
@given(st.integers(64, 300_000), st.integers(1, 500))
def test_token_ids_are_in_the_vocabulary(vocabulary: int, count: int) -> None:
    ids = token_ids("x", count, vocabulary)
    assert len(ids) == count
    assert all(0 < token < vocabulary for token in ids)
    first, many = plain_ids(vocabulary)
    assert first + many <= vocabulary
