"""The load generator's own delay: 64 streams against a server whose token times are known.

    python tests/bench/bench_load.py [--streams 64] [--requests 256] [--guidellm PATH]

Every event carries the time at which the server wrote it, by the same steady clock that the client reads, so the
delay of each token is known: kernel, event loop and this client together. With ``--guidellm`` (its program, from any
environment) the same server is measured by guidellm too, in turn, by what both report: time to first token and time
between tokens beyond what the server was told to take.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tuner.measure.events import Exchange, answer_of, data_lines, read_exchange
from tuner.measure.model import Load
from tuner.measure.prompts import made_up
from tuner.measure.stats import percentile
from tuner.measure.watch import Budget
from tuner.measure.wire import Target, Wire, wire_to

TTFT_S, ITL_S, TOKENS = 0.2, 0.02, 64
_WRITTEN = re.compile(rb'"content": " ([0-9.]+)"')


@contextmanager
def timed_server() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    script = Path(__file__).with_name("timed_server.py")
    command = [sys.executable, str(script), str(port), str(TTFT_S), str(ITL_S), str(TOKENS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


async def ours(url: str, streams: int, requests: int) -> tuple[list[Exchange], float, float]:
    """The exchanges, the clock's value they count from, and the processor seconds they took."""
    load = Load(concurrency=streams, requests=requests, input_tokens=64, output_tokens=TOKENS)
    asks = iter(made_up(load, "bench", 0))
    exchanges: list[Exchange] = []

    async def stream(wire: Wire, began: float) -> None:
        exchanges.extend([await wire.chat(ask.body, began) for ask in asks])

    async def all_streams(wire: Wire, began: float) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(stream(wire, began))

    async with wire_to(Target(url=url, model="timed")) as wire:
        warm = iter(made_up(load, "warm-up", 0)[:streams])
        await asyncio.gather(*(wire.chat(ask.body, time.perf_counter()) for ask in warm))
        began, used = time.perf_counter(), time.process_time()
        await Budget(300).run(all_streams(wire, began))
        return exchanges, began, time.process_time() - used


def delays(exchanges: Sequence[Exchange], began: float) -> list[float]:
    """Seconds from the server's write to the client's clock, for every token."""
    found = []
    for exchange in exchanges:
        for at, data in data_lines(answer_of(exchange).pieces):
            written = _WRITTEN.search(data)
            if written:
                found.append(began + exchange.sent_at_s + at - float(written[1]))
    return found


def line(name: str, seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    values = [statistics.median(ordered), percentile(ordered, 0.95), percentile(ordered, 0.99), ordered[-1]]
    p50, p95, p99, most = (f"{value * 1000:8.2f}" for value in values)
    return f"{name:<42}{p50}{p95}{p99}{most}   of {len(ordered):,}"


def guidellm(program: str, url: str, streams: int, requests: int) -> tuple[list[float], list[float], float]:
    """TTFT and mean ITL that guidellm reports for each request, seconds, and how long its whole run took."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "prompts.jsonl")
        load = Load(requests=requests, input_tokens=64, output_tokens=TOKENS)
        prompts = [ask.body["messages"][0]["content"] for ask in made_up(load, "guidellm", 0)]
        data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        out = Path(folder, "report.json")
        began = time.perf_counter()
        done = subprocess.run(
            [
                program, "run", "--disable-console",
                "--backend", f"kind=openai_http,target={url},model=timed,request_format=/v1/chat/completions",
                "--profile", f"kind=concurrent,streams={streams}",
                "--constraint", f"kind=max_requests,count={requests}",
                "--data", f"kind=json_file,path={data}",
                "--output", f"kind=json,path={out}",
            ],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        took = time.perf_counter() - began
        if done.returncode or not out.exists():
            raise SystemExit(f"guidellm did not run:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
        report = json.loads(out.read_text())
    made = [request for bench in report["benchmarks"] for request in bench["requests"]["successful"]]
    ttft = [request["time_to_first_token_ms"] / 1000 for request in made if request["time_to_first_token_ms"]]
    itl = [request["inter_token_latency_ms"] / 1000 for request in made if request["inter_token_latency_ms"]]
    return ttft, itl, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--guidellm", metavar="PATH")
    given = parser.parse_args()
    with timed_server() as url:
        exchanges, began, used = asyncio.run(ours(url, given.streams, given.requests))
        wall = max(e.sent_at_s + e.seconds for e in exchanges)
        reads = [read_exchange(exchange, 0) for exchange in exchanges]
        samples = [read.sample for read in reads if read.sample.ok]
        print(f"{'milliseconds':<42}{'p50':>8}{'p95':>8}{'p99':>8}{'max':>8}")
        print(line("own delay of each token", delays(exchanges, began)))
        print(line("TTFT reported beyond the server's", [s.ttft_s - TTFT_S for s in samples if s.ttft_s]))
        print(line("mean ITL reported beyond the server's", [s.itl_s - ITL_S for s in samples if s.itl_s]))
        print(f"{len(samples)} of {given.requests} answered, {100 * used / wall:.0f} % of a core")
        if given.guidellm:
            ttft, itl, took = guidellm(given.guidellm, url, given.streams, given.requests)
            print(line("guidellm: TTFT beyond the server's", [value - TTFT_S for value in ttft]))
            print(line("guidellm: mean ITL beyond the server's", [value - ITL_S for value in itl]))
            print(f"guidellm: {took:.0f} s for the whole run")


if __name__ == "__main__":
    main()
