from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tuner.measure.events import Exchange, answer_of, read_exchange
from tuner.measure.watch import Budget
from tuner.measure.wire import Target, Wire, wire_to
from tuner.session.auto.exchange import answered

BODY = {"messages": [{"role": "user", "content": "你好"}]}
EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n',
    b"data: [DONE]\n\n",
)
OK = b"HTTP/1.1 200 OK\r\n"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[Target]:
    async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handled, "127.0.0.1", 0)
    async with listening:
        yield Target(url=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/base/", model="m", api_key="sk-k")


async def request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-len"))
    return head + await reader.readexactly(length)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def asked(wire: Wire) -> Exchange:
    return await wire.chat(BODY, time.perf_counter())


async def test_a_request_goes_to_the_base_url_with_the_key_and_the_model() -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await request(reader))
            writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*EVENTS))

    async with server(handler) as target, wire_to(target) as wire:
        for _ in range(2):
            assert read_exchange(await asked(wire), 0).sample.ok
    assert seen[0].startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer sk-k\r\n" in seen[0]
    assert b'"model":"m"' in seen[1]
    assert b'"stream":true' in seen[1]


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*EVENTS),
        OK + b"Content-Length: %d\r\n\r\n" % sum(map(len, EVENTS)) + b"".join(EVENTS),
        OK + b"Connection: close\r\n\r\n" + b"".join(EVENTS),
    ],
    ids=["chunked", "with a length", "up to the end of the connection"],
)
@pytest.mark.parametrize("step", [1, 7, 4096])
async def test_every_way_to_end_an_answer_is_seen_however_it_is_cut(answer: bytes, step: int) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            for at in range(0, len(answer), step):
                writer.write(answer[at : at + step])
                await writer.drain()
            if b"close" in answer:
                return

    async with server(handler) as target, wire_to(target) as wire:
        for _ in range(2):
            exchange = await asked(wire)
            assert (exchange.failure, answer_of(exchange).whole) == ("", True)
            assert read_exchange(exchange, 0).sample.output_tokens == 2


async def test_a_kept_connection_that_was_closed_is_opened_again() -> None:
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*EVENTS))
        if connections == 1:
            # The second request finds it open, and is closed on without an answer.
            await request(reader)

    async with server(handler) as target, wire_to(target) as wire:
        for _ in range(2):
            assert read_exchange(await asked(wire), 0).sample.ok
    assert connections == 2


async def test_an_answer_that_breaks_off_is_no_answer() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*EVENTS)[:-9])

    async with server(handler) as target, wire_to(target) as wire:
        read = read_exchange(await asked(wire), 0)
    assert (read.sample.ok, read.error) == (False, "The connection broke in the middle of an answer.")


async def test_the_server_sees_when_nobody_waits_any_more() -> None:
    gone = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        await reader.read()
        gone.set()

    async with server(handler) as target, wire_to(target) as wire:
        assert await Budget(0.1).run(asked(wire)) is None
        await asyncio.wait_for(gone.wait(), 10)


def told(tokens: int, text: str = "") -> bytes:
    """An event of ``/generate``, which repeats everything so far."""
    ids = ",".join(["248045"] * tokens)
    return b'data: {"text":"%b","output_ids":[%b],"meta_info":{"completion_tokens":%d,"finish_reason":%b}}\n\n' % (
        text.encode() or b" four" * tokens, ids.encode(), tokens, b"null",
    )  # fmt: skip


def body(tokens: int) -> dict[str, object]:
    return {"input_ids": [1], "sampling_params": {"max_new_tokens": tokens}}


async def test_an_answer_of_4000_tokens_comes_whole_and_is_kept_small() -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        for made in range(1, 4001):
            event = told(made)
            sent += len(event)
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
        writer.write(chunked(b"data: [DONE]\n\n"))

    async with server(handler) as target, wire_to(target) as wire:
        exchange = await wire.generate(body(4000), time.perf_counter())
    assert sent > 64 << 20
    assert (exchange.failure, answered(exchange, 4000).error) == ("", "")
    assert sum(len(piece) for _, piece in exchange.pieces) < 64 << 10


@pytest.mark.parametrize(
    "more",
    [told(16), b": wait\n\n" * 1000, b"data: " + b"x" * 50_000, b'data: {"meta_info":{"completion_tokens":99}}\n\n'],
    ids=["no new token", "no event", "no end of the event", "more tokens than asked for"],
)
async def test_a_server_that_never_ends_its_answer_is_left(more: bytes) -> None:
    left = asyncio.Event()
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request(reader)
        writer.write(OK + b"Connection: close\r\n\r\n" + told(16))
        try:
            while True:
                writer.write(more)
                sent += len(more)
                await writer.drain()
        except ConnectionError:
            left.set()

    async with server(handler) as target, wire_to(target) as wire:
        exchange = await wire.generate(body(16), time.perf_counter())
        await asyncio.wait_for(left.wait(), 10)
    assert answered(exchange, 16).error == "The server's answer does not end."
    # What lies in the buffers of the sockets is sent, and not kept.
    assert sent < 32 << 20
    assert sum(len(piece) for _, piece in exchange.pieces) < 64 << 10


async def test_a_refused_request_keeps_the_servers_own_words() -> None:
    words = b'{"error":{"message":"The input is longer than the context length."}}'

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(words) + words)

    async with server(handler) as target, wire_to(target) as wire:
        exchange = await wire.generate(body(16), time.perf_counter())
    assert answered(exchange, 16).error == "The server answered 400: The input is longer than the context length."


async def test_what_speaks_no_http_is_called_so() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"220 mail.example ESMTP\r\n")

    async with server(handler) as target, wire_to(target) as wire:
        exchange = await wire.generate(body(16), time.perf_counter())
    assert answered(exchange, 16).error == "What answers there does not speak HTTP."
