from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.measure.events import Exchange, answer_of, read_exchange
from tuner.measure.physics import timed_answer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(**fields: Any) -> bytes:
    return chunk(event({"choices": [{"index": 0, "delta": fields}]}))


def usage(tokens: int, cached: int | None = None) -> bytes:
    details = {"cached_tokens": cached} if cached is not None else None
    told = {"prompt_tokens": 100, "completion_tokens": tokens, "prompt_tokens_details": details}
    return chunk(event({"choices": [], "usage": told}))


def exchange(*pieces: tuple[float, bytes], **fields: Any) -> Exchange:
    return Exchange(sent_at_s=1.0, seconds=2.0, pieces=tuple(pieces), **fields)


DONE = chunk(event(b"[DONE]"))


def test_ttft_is_the_first_token_of_reasoning_and_not_the_chunk_that_opens_the_answer() -> None:
    read = read_exchange(
        exchange(
            (0.1, HEAD + delta(role="assistant", content="")),
            (0.3, delta(reasoning_content="Let")),
            (0.4, delta(content="It")),
            (0.5, delta(content=" is")),
            (0.6, usage(3, cached=64) + DONE + END),
        ),
        repeat=2,
    )
    assert read.error == ""
    assert (read.sample.repeat, read.sample.ttft_s, read.sample.output_tokens) == (2, 0.3, 3)
    assert read.sample.cached_tokens == 64
    assert read.gaps_s == pytest.approx((0.1, 0.1))
    assert read.sample.itl_s == pytest.approx(0.1)


def test_a_tool_call_is_a_token_too() -> None:
    calls = [{"index": 0, "function": {"name": "get_weather", "arguments": ""}}]
    read = read_exchange(exchange((0.2, HEAD + delta(tool_calls=calls)), (0.3, usage(1) + DONE + END)), 0)
    assert read.sample.ttft_s == 0.2


def test_events_of_several_tokens_share_their_time_out() -> None:
    read = read_exchange(
        exchange((0.2, HEAD + delta(content="a")), (0.5, delta(content="b c d")), (0.6, usage(4) + DONE + END)), 0
    )
    # 0.3 s for three tokens.
    assert read.sample.itl_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("pieces", "sentence"),
    [
        ([(0.1, b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}")], "wants an API key"),
        (
            [(0.1, b'HTTP/1.1 400 Bad\r\nContent-Length: 34\r\n\r\n{"error": {"message": "too long"}}')],
            "The server answered 400: too long",
        ),
        ([(0.1, HEAD + chunk(event({"error": {"message": "out of \x1b[31mmemory"}})) + END)], "out of memory"),
        ([(0.1, HEAD + delta(content="a"))], "ended in the middle"),
        ([(0.1, HEAD + DONE + END)], "without a token"),
        ([(0.1, HEAD + chunk(event(b"{nonsense")) + END)], "no chat chunk"),
        ([(0.1, HEAD + chunk(event(b'{"error": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")) + END)], "no chat chunk"),
        ([(0.1, b"220 mail.example.org ESMTP\r\n")], "does not speak HTTP"),
    ],
)
def test_what_is_no_answer_fails_with_a_sentence(pieces: list[tuple[float, bytes]], sentence: str) -> None:
    read = read_exchange(exchange(*pieces), 0)
    assert not read.sample.ok
    assert read.sample.ttft_s is None
    assert sentence in read.error


def test_a_broken_connection_is_told_as_the_wire_saw_it() -> None:
    read = read_exchange(exchange(failure="Nothing answers there."), 0)
    assert (read.sample.ok, read.error) == (False, "Nothing answers there.")


WHOLE = b"".join([HEAD, delta(content="héllo 北京"), delta(content="b"), usage(2), DONE, END])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=12))
def test_an_answer_cut_anywhere_reads_the_same(cuts: list[int]) -> None:
    places = [0, *sorted(set(cuts)), len(WHOLE)]
    pieces = [(0.1 * n, WHOLE[a:b]) for n, (a, b) in enumerate(itertools.pairwise(places))]
    read = read_exchange(exchange(*pieces), 0)
    assert (read.error, read.sample.ok, read.sample.output_tokens) == ("", True, 2)
    assert answer_of(exchange(*pieces)).whole


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail(garbage: bytes) -> None:
    for pieces in ([(0.1, garbage)], [(0.1, HEAD), (0.2, garbage)], [(0.1, HEAD + chunk(b"data: " + garbage))]):
        read = read_exchange(exchange(*pieces), 0)
        assert not read.sample.ok
        assert read.error


def test_a_generate_answer_tells_its_speed_by_counted_tokens() -> None:
    def event_of(tokens: int) -> bytes:
        return chunk(event({"text": "x" * tokens, "meta_info": {"completion_tokens": tokens, "cached_tokens": 0}}))

    timed = timed_answer(exchange((0.5, HEAD + event_of(1)), (0.6, event_of(3)), (0.9, event_of(9)), (0.9, DONE + END)))
    assert timed is not None
    assert timed.ttft_s == 0.5
    assert timed.decode_tokens_per_s == pytest.approx(20.0)
    assert timed_answer(exchange((0.1, b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\n{}"))) is None
