"""A server in this process that does as it is told: answers, hangs, is slow, talks nonsense, starts anew."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


class Script(msgspec.Struct):
    """How the server behaves and what it counts; a test changes it while it runs."""

    mode: str = "fine"
    decoded: int = 0
    running: int = 2
    started: float = 30.5
    max_requests: int = 9
    key: str = ""
    metrics: bool = True
    #: How often each path was asked for.
    asked: dict[str, int] = {}
    #: Set to let go of the answers that hang.
    go_on: threading.Event = msgspec.field(default_factory=threading.Event)

    def page(self) -> str:
        """``/metrics``; every page decodes ten tokens more."""
        self.decoded += 10
        scheduler = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
        bucket = 'sglang:time_to_first_token_seconds_bucket{is_streaming="true"'
        return (
            f"sglang:num_running_reqs{{{scheduler}}} {self.running}.0\n"
            f"sglang:num_queue_reqs{{{scheduler}}} 1.0\n"
            f"sglang:kv_used_tokens{{{scheduler}}} 500.0\n"
            f"sglang:kv_available_tokens{{{scheduler}}} 1500.0\n"
            f"sglang:kv_evictable_tokens{{{scheduler}}} 0.0\n"
            f'sglang:realtime_tokens_total{{{scheduler},mode="decode"}} {self.decoded}.0\n'
            f'sglang:startup_time_seconds{{model_name="m",phase="load_weight"}} {self.started}\n'
            f'{bucket},le="0.5"}} {self.decoded}.0\n{bucket},le="+Inf"}} {self.decoded}.0\n'
        )

    def answer(self, path: str) -> tuple[int, bytes]:
        """Status and body of a path."""
        if path == "/metrics":
            return (200, self.page().encode()) if self.metrics else (404, b'{"detail":"Not Found"}')
        if path == "/v1/loads":
            load = {"num_running_reqs": self.running, "num_waiting_reqs": 1, "num_used_tokens": 500}
            return 200, msgspec.json.encode({"loads": [{**load, "max_running_requests": self.max_requests}]})
        if path == "/server_info":
            info: dict[str, Any] = {
                "model_path": "/models/m", "version": "0.5.17", "max_running_requests": 32, "port": 30000,
                "internal_states": [{"effective_max_running_requests_per_dp": self.max_requests}],
            }  # fmt: skip
            return 200, msgspec.json.encode(info)
        return 404, b"{}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        script: Script = self.server.script  # type: ignore[attr-defined]
        script.asked[self.path] = script.asked.get(self.path, 0) + 1
        if script.mode == "hangs":
            script.go_on.wait(30)
            return
        if script.mode == "slow":
            time.sleep(1.1)
        status, body = script.answer(self.path)
        if script.mode == "nonsense":
            status, body = 200, b"<html>Welcome to nginx</html>"
        if script.mode == "broken":
            status, body = 500, b"Internal Server Error"
        if script.key and self.path != "/metrics" and self.headers.get("Authorization") != f"Bearer {script.key}":
            status, body = 401, b'{"error":"Unauthorized"}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    #: A hung answer ends with its test.
    block_on_close = False


@contextmanager
def serving(script: Script, port: int = 0) -> Iterator[int]:
    """The server on a port, until the end of the block."""
    server = _Server(("127.0.0.1", port), _Handler)
    server.script = script  # type: ignore[attr-defined]
    # Not the half second that is usual: its end is waited for.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        script.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
