"""The server's endpoints, with a real socket on the other side."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tuner.metrics.model import Reach
from tuner.probes.http import ServerClient

MEASURED = Path(__file__).parents[2] / "data" / "measured"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Peer:
    """A server whose answers a test gives; ``seen`` holds what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.seen: list[dict[str, Any]] = []
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                peer.seen.append({"path": self.path, "headers": dict(self.headers), "body": body})
                peer.answers.get(self.path, status(404, b'{"detail":"Not Found"}'))(self)

            do_GET = do_POST = _serve

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


def status(code: int, body: bytes = b"", kind: str = "application/json") -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def stream(*events: object, then: Callable[[BaseHTTPRequestHandler], None] = lambda _: None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream; charset=utf-8")
        handler.end_headers()
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            handler.wfile.write(f"data: {text}\n\n".encode())
            handler.wfile.flush()
        then(handler)

    return answer


def delta(**fields: Any) -> dict[str, Any]:
    finish = fields.pop("finish_reason", None)
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.server.shutdown()
    peer.server.server_close()


@pytest.fixture
def client(peer: Peer) -> Iterator[ServerClient]:
    client = ServerClient(peer.url, api_key="sk-mine", timeout=5)
    yield client
    client.close()


def recorded(name: str, path: str) -> bytes:
    recording = json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))
    return str(recording["endpoints"][path]["body"]).encode()


def test_the_answers_of_a_real_server_come_through(peer: Peer, client: ServerClient) -> None:
    for path in ("/v1/loads", "/server_info", "/metrics", "/model_info", "/v1/models"):
        peer.answers[path] = status(200, recorded("27b-48g-r15-full", path))
    peer.answers["/health"] = status(200)
    loads, info, metrics = client.loads(), client.server_info(), client.metrics()
    assert isinstance(loads, dict)
    assert loads["loads"][0]["max_total_num_tokens"] == 262294
    assert isinstance(info, dict)
    assert info["internal_states"][0]["max_mamba_cache_size"] == 57
    assert isinstance(metrics, str)
    assert "sglang:max_total_num_tokens" in metrics
    assert isinstance(client.model_info(), dict)
    assert isinstance(client.models(), dict)
    assert client.health() == 200
    assert {request["headers"]["Authorization"] for request in peer.seen} == {"Bearer sk-mine"}


def test_keys_that_the_server_shows_in_clear_are_gone(peer: Peer, client: ServerClient) -> None:
    shown = {"api_key": "sk-abcdef", "internal_states": [{"admin_api_key": "geheim"}], "max_total_num_tokens": 5}
    peer.answers["/server_info"] = status(200, json.dumps(shown).encode())
    info = client.server_info()
    assert isinstance(info, dict)
    assert "sk-abcdef" not in json.dumps(info)
    assert "geheim" not in json.dumps(info)
    assert info["max_total_num_tokens"] == 5


@pytest.mark.parametrize(
    ("answer", "reach"),
    [
        (status(404), Reach.OFF),
        (status(401, b'{"error":"Unauthorized"}'), Reach.LOCKED),
        (status(403), Reach.LOCKED),
        (status(503), Reach.UNREACHABLE),
        (status(302), Reach.NONSENSE),
        (status(200, b"<html>hello</html>", "text/html"), Reach.NONSENSE),
        (status(200, b"[1, 2]"), Reach.NONSENSE),
        (status(200, b'{"cut'), Reach.NONSENSE),
        (status(200, b"\xff\xfe"), Reach.NONSENSE),
    ],
)
def test_what_a_look_can_meet(peer: Peer, client: ServerClient, answer: Answer, reach: Reach) -> None:
    peer.answers["/v1/loads"] = answer
    assert client.loads() is reach


def test_metrics_that_are_off_or_a_web_page(peer: Peer, client: ServerClient) -> None:
    assert client.metrics() is Reach.OFF
    peer.answers["/metrics"] = status(200, b"<!doctype html>", "text/html")
    assert client.metrics() is Reach.NONSENSE


def test_a_port_where_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    client = ServerClient(url, timeout=2)
    assert client.loads() is Reach.UNREACHABLE
    assert client.health() is None
    answer = client.generate({"text": "x"})
    assert (answer.status, answer.ok) == (None, False)
    assert answer.error == f"Nothing answers at {url}."
    client.close()


def test_a_peer_that_says_nothing_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        client = ServerClient(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.05, generation_timeout=0.05)
        assert client.metrics() is Reach.UNREACHABLE
        assert "No answer within" in client.generate({"text": "x"}).error
        client.close()


def test_a_peer_that_is_no_web_server() -> None:
    with socket.socket() as odd:
        odd.bind(("127.0.0.1", 0))
        odd.listen()

        def babble() -> None:
            for _ in range(2):
                connection, _address = odd.accept()
                with connection:
                    connection.recv(1024)
                    connection.sendall(b"SSH-2.0-OpenSSH\r\n\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        client = ServerClient(f"http://127.0.0.1:{odd.getsockname()[1]}", timeout=5)
        assert client.loads() is Reach.UNREACHABLE
        assert client.generate({"text": "x"}).error
        client.close()
        thread.join()


def test_proxies_of_the_environment_are_never_used(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    peer.answers["/v1/loads"] = status(200, b"{}")
    peer.answers["/generate"] = status(200, b'{"text": "ok", "meta_info": {}}')
    client = ServerClient(peer.url)
    assert client.loads() == {}
    assert client.generate({"text": "x", "stream": False}).text == "ok"
    client.close()


def test_a_streamed_generation_gives_times_text_and_cached_tokens(peer: Peer, client: ServerClient) -> None:
    recording = json.loads((MEASURED / "27b-48g-r15-full.json").read_text(encoding="utf-8"))["prefix"][1]
    first, last = (recording[end].removeprefix("data: ").strip() for end in ("first", "last"))
    peer.answers["/generate"] = stream(first, last, "[DONE]")
    tokens: list[str] = []
    answer = client.generate({"text": "x"}, on_token=tokens.append)
    assert answer.ok, answer
    assert answer.cached_tokens == 8000
    assert answer.finish_reason == "length"
    assert answer.usage == {"prompt_tokens": 8003, "completion_tokens": 8}
    assert answer.text == json.loads(last)["text"] == "".join(tokens)
    assert answer.ttft_s is not None
    assert 0 < answer.ttft_s <= answer.total_s
    assert len(answer.token_times) == 2
    assert peer.seen[-1]["body"]["stream"] is True


def test_a_generation_that_streams_only_the_new_pieces_is_put_together(peer: Peer, client: ServerClient) -> None:
    def piece(text: str, ids: list[int], total: int) -> dict[str, Any]:
        return {"text": text, "output_ids": ids, "meta_info": {"completion_tokens": total}}

    peer.answers["/generate"] = stream(piece("ha", [1], 1), piece("ha", [1], 2), piece("ha!", [1, 2], 4), "[DONE]")
    answer = client.generate({"text": "x"})
    assert answer.text == "hahaha!"
    assert len(answer.token_times) == 3


def test_a_chat_in_one_piece(peer: Peer, client: ServerClient) -> None:
    recording = json.loads((MEASURED / "27b-48g-r15-full.json").read_text(encoding="utf-8"))["three"]["tool"]
    peer.answers["/v1/chat/completions"] = status(200, recording["body"].encode())
    answer = client.chat({"messages": []})
    assert answer.ok
    assert answer.text == ""
    assert answer.reasoning.startswith("\n\n<|endoftext|>")
    assert answer.finish_reason == "length"
    assert answer.usage["completion_tokens"] == 64
    assert answer.cached_tokens is None
    assert answer.tool_calls == ()
    assert answer.ttft_s is None


def test_a_streamed_chat_is_put_together_from_its_pieces(peer: Peer, client: ServerClient) -> None:
    def call(index: int, **function: str) -> dict[str, Any]:
        return {"index": index, "id": f"c{index}" if "name" in function else None, "function": function}

    peer.answers["/v1/chat/completions"] = stream(
        delta(role="assistant", content=""),
        delta(reasoning_content="想"),
        delta(reasoning_content="一想"),
        delta(content="好"),
        delta(tool_calls=[call(0, name="get_weather", arguments="")]),
        delta(tool_calls=[call(0, arguments='{"city":')]),
        delta(tool_calls=[call(0, arguments=' "北京"}'), call(1, name="now", arguments="{}")]),
        delta(finish_reason="tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}},
        "[DONE]",
    )
    deltas: list[tuple[str, str]] = []
    answer = client.chat({"messages": []}, stream=True, on_delta=lambda kind, text: deltas.append((kind, text)))
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("想一想", "好", "tool_calls")
    names = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in answer.tool_calls]
    assert names == [("c0", "get_weather", '{"city": "北京"}'), ("c1", "now", "{}")]
    assert answer.cached_tokens == 4
    assert answer.ttft_s is not None
    assert deltas[:3] == [("reasoning", "想"), ("reasoning", "一想"), ("content", "好")]
    assert peer.seen[-1]["body"]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(400, b'{"object":"error","message":"The input (300002 tokens) is longer than 262144"}'), "300002"),
        (status(400, b'{"error":{"message":"\\u001b[31mbad\\u001b[0m"}}'), "answered 400: bad"),
        (status(401, b'{"error":"Unauthorized"}'), "API key"),
        (status(500, b"boom"), "without a reason"),
        (status(200, b"<html>", "text/html"), "another program"),
        (status(200, b"not json"), "another program"),
    ],
)
def test_a_refusal_is_one_sentence(peer: Peer, client: ServerClient, answer: Answer, words: str) -> None:
    peer.answers["/v1/chat/completions"] = answer
    got = client.chat({"messages": []}, stream=False)
    assert not got.ok
    assert words in got.error
    assert "\x1b" not in got.error


def test_a_stream_that_turns_into_an_error_keeps_what_came(peer: Peer, client: ServerClient) -> None:
    peer.answers["/v1/chat/completions"] = stream(delta(content="half"), {"error": {"message": "out of memory"}})
    answer = client.chat({"messages": []}, stream=True)
    assert answer.text == "half"
    assert answer.error == "The server broke off its answer: out of memory"


def test_a_server_that_dies_in_the_middle_is_told(peer: Peer, client: ServerClient) -> None:
    def die(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("content-length", "100000")
        handler.end_headers()
        handler.wfile.write(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)

    peer.answers["/v1/chat/completions"] = die
    answer = client.chat({"messages": []}, stream=True)
    assert answer.text == "x"
    assert answer.error == "The server closed the connection in the middle of its answer."


@pytest.mark.parametrize("streamed", [True, False])
def test_a_silent_generation_can_be_cancelled(peer: Peer, client: ServerClient, streamed: bool) -> None:
    cancel, closed = threading.Event(), threading.Event()

    def never(handler: BaseHTTPRequestHandler) -> None:
        cancel.set()
        handler.connection.settimeout(20)
        # A client that leaves with something unread resets the connection.
        with suppress(ConnectionResetError):
            assert handler.connection.recv(1) == b""
        closed.set()

    peer.answers["/v1/chat/completions"] = stream(delta(content="x"), then=never) if streamed else never
    answer = client.chat({"messages": []}, stream=streamed, cancel=cancel)
    assert answer.error == "The request was cancelled."
    assert closed.wait(20), "the server keeps generating for nobody"


def test_a_key_of_wide_characters_is_sent_as_it_is(peer: Peer) -> None:
    client = ServerClient(peer.url, api_key="密钥")
    assert client.loads() is Reach.OFF
    assert peer.seen[0]["headers"]["Authorization"].encode("latin-1").decode() == "Bearer 密钥"
    client.close()


def test_a_key_with_a_line_break_is_an_error_and_no_traceback(peer: Peer) -> None:
    client = ServerClient(peer.url, api_key="a\nb")
    assert client.loads() is Reach.UNREACHABLE
    assert client.chat({"messages": []}).error
    client.close()
