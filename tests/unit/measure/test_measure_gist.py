"""What is kept of a long answer tells the same as the whole of it, in memory that does not grow with it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.measure.events import Exchange, Piece
from tuner.measure.gist import Gist
from tuner.measure.physics import timed_answer
from tuner.session.auto.exchange import answered

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSED = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


def event(tokens: int, reason: Any = None, **more: Any) -> bytes:
    meta = {"completion_tokens": tokens, "cached_tokens": 3, "finish_reason": reason}
    told = {"text": "字" * tokens, "output_ids": [7] * tokens, "meta_info": meta, **more}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def kept(pieces: list[Piece], tokens: int) -> Exchange:
    gist = Gist(tokens)
    for at, data in pieces:
        gist.take(at, data)
    assert not gist.endless
    return whole(gist.pieces)


def whole(pieces: list[Piece]) -> Exchange:
    return Exchange(sent_at_s=1.0, seconds=99.0, pieces=tuple(pieces))


ENDS = [
    b"",
    b"data: [DONE]\n\n",
    event(8, {"type": "length"}) + b"data: [DONE]\n\n",
    event(9, {"type": "length"}) + b"data: [DONE]\n\n",
    event(3, {"type": "abort", "message": "Out of memory"}),
    b'data: {"error": {"message": "too long"}}\n\n' + event(9),
    b"data: nonsense\n\n" + event(9),
    b"data: [DONE]\n\n" + event(9),
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 8), max_size=9),
    st.sampled_from(ENDS),
    st.sampled_from([CHUNKED, CLOSED]),
    st.lists(st.integers(1, 900), max_size=12),
)
def test_an_answer_reads_the_same_from_what_is_kept_however_it_is_cut(
    counts: list[int], end: bytes, head: bytes, cuts: list[int]
) -> None:
    events = [b": wait\n\n", *(event(count) for count in sorted(counts)), end]
    body = b"".join(chunk(one) for one in events if one) + b"0\r\n\r\n" if head is CHUNKED else b"".join(events)
    left, pieces = head + body, list[Piece]()
    for number, cut in enumerate([*cuts, len(left)]):
        if left:
            pieces.append((float(number), left[:cut]))
        left = left[cut:]
    for asked in (8, 9):
        assert answered(kept(pieces, asked), asked) == answered(whole(pieces), asked)
        assert timed_answer(kept(pieces, asked)) == timed_answer(whole(pieces))


def test_memory_does_not_grow_with_an_answer_of_4000_tokens() -> None:
    gist, sent = Gist(4000), 0
    gist.take(0.0, CHUNKED)
    tracemalloc.start()
    try:
        for made in range(1, 4001, 8):
            data = b'data: {"text":"%b","meta_info":{"completion_tokens":%d}}\n\n' % (b"seven ch" * made, made)
            sent += len(data)
            gist.take(float(made), chunk(data))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent > 7_000_000 and most < 500_000
    assert [at for at, _ in gist.pieces[1:]] == [1.0, 3993.0]


@pytest.mark.parametrize("tokens", [16, 4000, 20_000])
def test_an_answer_may_be_as_long_as_was_asked_for_and_not_longer(tokens: int) -> None:
    gist, longest = Gist(tokens), (1 << 20) + 512 * tokens
    gist.take(0.0, CLOSED)
    for made in range(1, tokens + 4):
        gist.take(float(made), b'data: {"meta_info":{"completion_tokens":%d}}\n\n' % made)
    assert not gist.endless
    gist.take(9.0, b"x" * longest)
    assert gist.endless


def test_a_server_that_makes_tokens_for_ever_is_not_waited_for() -> None:
    gist = Gist(16)
    gist.take(0.0, CLOSED)
    for made in range(1, 600):
        gist.take(float(made), event(made))
    assert gist.endless


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request", b"nonsense"])
def test_whatever_the_status_an_answer_without_tokens_ends(status: bytes) -> None:
    gist = Gist(16)
    gist.take(0.0, b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n\r\n")
    sent = 0
    while not gist.endless:
        gist.take(1.0, b"y" * 9999)
        sent += 9999
    assert sent < 2 << 20


def test_an_event_nested_too_deeply_is_no_answer() -> None:
    deep = b'data: {"x":' + b"[" * 100_000 + b"\n\n"
    assert (
        answered(kept([(0.0, CLOSED), (1.0, deep)], 16), 16).error == "An event of the answer is no answer of SGLang."
    )
