"""A chat server whose token times are known: every event says when it was written, by the machine's steady clock.

python tests/bench/timed_server.py PORT [TTFT_S] [ITL_S] [TOKENS]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time


class TimedServer:
    """Speaks just enough HTTP/1.1 for a load generator; one asyncio handler, nothing between it and the socket."""

    def __init__(self, ttft_s: float, itl_s: float, tokens: int) -> None:
        self._ttft_s = ttft_s
        self._itl_s = itl_s
        self._tokens = tokens

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        length = int(headers.get("content-length", 0))
        if length:
            await reader.readexactly(length)
        began = time.perf_counter()
        if not first.startswith("POST"):
            body = json.dumps({"object": "list", "data": [{"id": "timed", "object": "model"}]}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            await writer.drain()
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(self._tokens):
            due = began + self._ttft_s + number * self._itl_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            delta = {"content": f" {time.perf_counter():.6f}"}
            self._event(writer, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            await writer.drain()
        usage = {"prompt_tokens": 8, "completion_tokens": self._tokens, "total_tokens": 8 + self._tokens}
        self._event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        self._event(writer, {"choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()
        return True

    def _event(self, writer: asyncio.StreamWriter, chunk: dict[str, object]) -> None:
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "timed", **chunk}
        data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
        writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


async def serve(port: int, ttft_s: float, itl_s: float, tokens: int) -> None:
    server = await asyncio.start_server(TimedServer(ttft_s, itl_s, tokens).handle, "127.0.0.1", port, backlog=512)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    given = sys.argv[1:]
    times = [float(value) for value in given[1:3]] or [0.2, 0.02]
    asyncio.run(serve(int(given[0]), times[0], times[1], int(given[3]) if len(given) > 3 else 64))
