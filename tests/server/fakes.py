"""A small stand-in for an SGLang process: its log lines, its port at the end, its children, and ways to misbehave.

Run as a script by the tests of ``tuner.server``. It waits for files instead of for time, so that tests need no sleep.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STAMP = "[2026-11-29 15:52:22] "
LOADING = ["Init torch distributed begin.", "Load weight begin. avail mem=46.83 GB"]
SIZING = [
    "Load weight end. elapsed=0.47 s, type=Qwen3_5ForCausalLM, avail mem=19.29 GB, mem usage=27.54 GB.",
    "Mamba Cache is allocated. max_mamba_cache_size: 57, conv_state size: 0.16GB, ssm_state size: 4.08GB ",
    "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 262294, K size: 4.00 GB, V size: 4.00 GB",
    "Memory pool end. avail mem=5.07 GB",
    "max_total_num_tokens=262294, chunked_prefill_size=4096, max_prefill_tokens=8192, max_running_requests=3, "
    "context_len=262144, available_gpu_mem=3.12 GB",
]
BINDING = ["INFO:     Started server process [1]", "INFO:     Waiting for application startup."]
READY = "The server is fired up and ready to roll!"
REFUSED = [
    "Scheduler hit an exception: Traceback (most recent call last):",
    "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. "
    "Computed max_mamba_cache_size=-13 (total_rest_memory=-1.81 GB, bytes per slot).",
    "",
    "Received sigquit from a child process. It usually means the child failed.",
]
DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def say(lines: list[str]) -> None:
    for line in lines:
        print(f"{STAMP}{line}" if line else line, flush=True)


def await_file(path: str | None) -> None:
    while path and not Path(path).exists():
        time.sleep(0.01)


def child(options: argparse.Namespace) -> None:
    """A scheduler: ends with its parent, unless told to hear nothing or to leave the session."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(reader)
        return
    os.close(writer)
    if options.orphan:
        os.setsid()
    if options.deaf or options.orphan:
        for number in DEAF:
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(60)
    os.read(reader, 1)
    os._exit(0)


def zombie() -> None:
    if os.fork() == 0:
        os._exit(0)


class Handler(BaseHTTPRequestHandler):
    warm: str | None = None

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send_response(200 if not self.warm or Path(self.warm).exists() else 503)
        else:
            self.send_response(200 if self.path == "/model_info" else 404)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--load-until", help="file that ends the loading")
    parser.add_argument("--bind-when", help="file to wait for between the ready line and the port")
    parser.add_argument("--warm-when", help="file that turns /health from 503 to 200")
    parser.add_argument("--no-warm-up", action="store_true", help="ready line before the port, as SGLang then does")
    parser.add_argument("--refuse", action="store_true", help="die at sizing")
    parser.add_argument("--refuse-and-stay", action="store_true", help="say that and live on")
    parser.add_argument("--die-when", help="file whose coming ends the main process with status 1")
    parser.add_argument("--deaf", action="store_true", help="main process and child ignore all polite signals")
    parser.add_argument("--orphan", action="store_true", help="the child leaves the session and outlives all")
    parser.add_argument("--zombie", action="store_true")
    parser.add_argument("--flood", type=int, default=0, help="MiB of log after ready")
    parser.add_argument("--long-line", type=int, default=0, help="MiB of one line before loading ends")
    parser.add_argument("--mute", action="store_true", help="print nothing at all")
    parser.add_argument("--escape", action="store_true", help="escape sequences and wide characters in the log")
    options = parser.parse_args()
    tell = (lambda lines: None) if options.mute else say

    if options.deaf:
        for number in DEAF:
            signal.signal(number, signal.SIG_IGN)
    tell(LOADING)
    child(options)
    if options.zombie:
        zombie()
    if options.escape:
        print("\x1b[31m模型加载中\x1b]0;owned\x07 --api-key sk-geheim", flush=True)
    for _ in range(options.long_line):
        sys.stdout.write("x" * (1 << 20))
    if options.long_line:
        print(flush=True)
    await_file(options.load_until)
    if options.refuse or options.refuse_and_stay:
        tell(SIZING[:1] + REFUSED)
        while options.refuse_and_stay:
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)
    tell(SIZING + BINDING)
    if options.no_warm_up:
        tell([READY])
    await_file(options.bind_when)
    Handler.warm = options.warm_when
    try:
        server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    except OSError:
        tell([f"ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', {options.port})"])
        sys.exit(3)
    tell(["INFO:     Application startup complete."])
    tell([f"INFO:     Uvicorn running on http://127.0.0.1:{options.port} (Press CTRL+C to quit)"])
    if not options.no_warm_up:
        tell([READY])
    for number in range(options.flood * 1024):
        sys.stdout.write(f"{STAMP}flood {number} ".ljust(1023, ".") + "\n")
    sys.stdout.flush()
    server.timeout = 0.05
    while not (options.die_when and Path(options.die_when).exists()):
        server.handle_request()
    os._exit(1)


if __name__ == "__main__":
    main()
