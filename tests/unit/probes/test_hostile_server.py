"""A server, or something else on its port, that means harm: every look and generation ends, in time and memory."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tuner.metrics.model import Reach
from tuner.probes import assemble, http
from tuner.probes.http import ServerClient
from tuner.session.attached import AddressError, Attached

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nConnection: close\r\n"
JSON = HEAD % b"application/json"
EVENTS = HEAD % b"text/event-stream"


@contextmanager
def listening(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """A port that answers each connection with ``answer``, whatever it asks."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.02)

    def run() -> None:
        while not over.is_set():
            with suppress(OSError):
                peer, _ = listener.accept()
                peer.settimeout(5)
                with peer:
                    answer(peer, over)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        over.set()
        thread.join()
        listener.close()


@contextmanager
def serving(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A port that answers each request with ``answer``; yields its URL and the heads of the requests."""
    over = threading.Event()
    seen: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.02)

    def one(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            seen.append(whole_request(peer))
            answer(peer, over)

    def run() -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                peer, _ = listener.accept()
                peer.settimeout(5)
                threading.Thread(target=one, args=(peer,), daemon=True).start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        over.set()
        thread.join()
        listener.close()


def whole_request(peer: socket.socket) -> bytes:
    """Head and body of a request. A socket closed with bytes unread is reset, and the answer on its way lost."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += peer.recv(65536) or b"\r\n\r\n"
    head, _, body = request.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length and (more := peer.recv(65536)):
        body += more
    return head


def says(*pieces: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def answer(peer: socket.socket, over: threading.Event) -> None:
        for piece in pieces:
            peer.sendall(piece)

    return answer


def trickles(head: bytes, drop: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def answer(peer: socket.socket, over: threading.Event) -> None:
        peer.sendall(head)
        while not over.wait(0.02):
            peer.sendall(drop)

    return answer


def floods(head: bytes, piece: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def answer(peer: socket.socket, over: threading.Event) -> None:
        peer.sendall(head)
        while not over.is_set():
            peer.sendall(piece)

    return answer


def deep(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_a_compressed_answer_is_neither_asked_for_nor_unpacked() -> None:
    bomb = gzip.compress(gzip.compress(b"\0" * (1 << 24)))
    head = JSON + b"Content-Encoding: gzip, gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    with serving(says(head, bomb)) as (url, seen):
        client = ServerClient(url, timeout=5)
        assert client.server_info() is Reach.NONSENSE
        assert "not what SGLang sends" in client.chat({}).error
        assert "not what SGLang sends" in client.chat({}, stream=True).error
    assert all(b"accept-encoding: identity" in head.lower() for head in seen)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", JSON + b"\r\n"])
def test_a_look_at_a_server_that_trickles_its_answer_ends_in_time(head: bytes) -> None:
    with serving(trickles(head, b" ")) as (url, _):
        client = ServerClient(url, timeout=0.3)
        assert client.loads() is Reach.UNREACHABLE
        assert client.metrics() is Reach.UNREACHABLE
        assert client.health() is None or head.startswith(JSON)


def test_the_body_of_a_health_answer_is_not_read() -> None:
    with serving(floods(JSON + b"\r\n", b"x" * 65536)) as (url, _):
        assert ServerClient(url, timeout=5).health() == 200


@pytest.mark.parametrize("levels", [200, 10_000])
def test_answers_nested_without_end_are_nonsense_and_no_traceback(levels: int) -> None:
    body = deep(levels)
    with serving(says(JSON + b"\r\n", body)) as (url, _):
        client = ServerClient(url, timeout=5)
        assert isinstance(client.server_info(), dict | Reach)
        assert client.server_info() is Reach.NONSENSE or levels < 1000
        assert isinstance(client.chat({}).error, str)
    with serving(says(EVENTS + b"\r\n", b"data: " + body + b"\n\n", b"data: [DONE]\n\n")) as (url, _):
        answer = ServerClient(url).chat({}, stream=True)
        assert not answer.error or levels > 1000
    with serving(says(b"HTTP/1.1 400 Bad\r\nConnection: close\r\n\r\n", body)) as (url, _):
        assert ServerClient(url).chat({}).error == "The server answered 400 without a reason."


def test_a_refusal_cut_off_before_its_reason_still_says_the_status() -> None:
    with serving(says(b"HTTP/1.1 400 Bad\r\nContent-Length: 500\r\n\r\n", b'{"message": "the inp')) as (url, _):
        assert ServerClient(url).chat({}).error == "The server answered 400 and hung up before it said why."


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: y\n" * 8192, b": ping\n\n" * 8192])
def test_an_event_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(http, "_MAX_BYTES", 1 << 20)
    with serving(floods(EVENTS + b"\r\n", piece)) as (url, _):
        assert "not what SGLang sends" in ServerClient(url).chat({}, stream=True).error


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x" * 1000},
        {"reasoning_content": "x" * 1000},
        {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 1000}}]},
        {"tool_calls": [{} for _ in range(1000)]},
    ],
)
def test_an_answer_that_never_ends_is_given_up_and_what_came_is_kept(
    monkeypatch: pytest.MonkeyPatch, delta: dict[str, object]
) -> None:
    monkeypatch.setattr(assemble, "LONGEST", 100_000)
    event = b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"
    with serving(floods(EVENTS + b"\r\n", event)) as (url, _):
        answer = ServerClient(url).chat({}, stream=True)
    assert "not what SGLang sends" in answer.error
    assert answer.text or answer.reasoning or answer.tool_calls


def test_a_redirect_to_another_host_is_not_followed() -> None:
    with serving(says(JSON + b"\r\n", b"{}")) as (other, asked):
        moved = b"HTTP/1.1 302 Found\r\nLocation: %s/v1/loads\r\nContent-Length: 0\r\n\r\n" % other.encode()
        with serving(says(moved)) as (url, _):
            client = ServerClient(url, api_key="sk-mine", timeout=5)
            assert client.loads() is Reach.NONSENSE
            assert client.chat({}).error == "The server answered 302 without a reason."
    assert not asked


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(says(JSON + b"\r\n", b'{"loads": []}')) as (url, _), serving(says(b"")) as (proxy, asked):
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        client = ServerClient(url, timeout=5)
        assert client.loads() == {"loads": []}
        assert client.health() == 200
        assert not client.chat({}).error
    assert not asked


def test_counts_that_no_file_can_hold_are_left_out() -> None:
    usage = {"completion_tokens": 10**30, "prompt_tokens": 5, "odd": float("nan")}
    body = json.dumps({"choices": [{"message": {"content": "x"}}], "usage": usage}).encode()
    with serving(says(JSON + b"\r\n", body)) as (url, _):
        assert ServerClient(url).chat({}).usage == {"prompt_tokens": 5}


def test_server_info_holds_nothing_that_a_terminal_or_file_cannot_take() -> None:
    info = {
        "version": "\x1b]0;title\x070.5.17\x1b[31m\u202e",
        "x\x1b[2J": ["\x9b31mred", 10**30, -(10**30), True, 1.5],
        "launch_command": "python -m sglang.launch_server --api-key hunter2hunter2 --model-path x",
        "nested": [{"admin_api_key": "hunter2hunter2", "env": {"HF_TOKEN": "hunter2hunter2"}}],
        "long": "y" * 1_000_000,
    }
    with serving(says(JSON + b"\r\n", json.dumps(info).encode())) as (url, _):
        seen = ServerClient(url, timeout=5).server_info()
    assert isinstance(seen, dict)
    assert seen["version"] == "0.5.17"
    assert seen["x"][0] == "red"
    assert seen["x"][-2:] == [True, 1.5]
    assert all(number is None or abs(number) <= 1e30 for number in seen["x"][1:3])
    assert len(seen["long"]) < 100_000
    assert "hunter2" not in repr(seen)
    assert not any(mark in repr(seen) for mark in ("\\x1b", "\\x9b", "\\u202e"))


def test_a_server_that_never_takes_the_request_can_be_left() -> None:
    cancel = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            peer, _ = listener.accept()
            with peer:
                # The request fills what the system keeps for a reader that does not read.
                cancel.set()
                peer.settimeout(30)
                while peer.recv(1, socket.MSG_PEEK) and not gone.wait(0.02):
                    pass

        gone = threading.Event()
        threading.Thread(target=accept, daemon=True).start()
        client = ServerClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        answer = client.generate({"text": "x" * (64 << 20), "stream": True}, cancel=cancel)
        gone.set()
    assert answer.error == "The request was cancelled."


def test_a_look_at_a_server_that_takes_no_request_ends_in_time() -> None:
    # Nobody accepts: the request lies in the system's own memory.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = ServerClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.3)
        assert client.loads() is Reach.UNREACHABLE
        assert client.health() is None


def test_an_answer_that_is_no_stream_of_events_is_told_as_that() -> None:
    with serving(says(JSON + b"\r\n", b"{}")) as (url, _):
        assert "not what SGLang sends" in ServerClient(url).generate({}).error


def test_a_host_that_cannot_be_a_name_is_not_blamed_on_the_server() -> None:
    assert ServerClient("http://a..b:3").generate({}).error.startswith("The request to http://a..b:3 failed: ")


def test_no_error_shows_the_key() -> None:
    with serving(says(JSON + b"\r\n", b"{}")) as (url, _):
        client = ServerClient(url, api_key="hunter2\nhunter2")
        said = client.generate({}).error
        assert client.loads() is Reach.UNREACHABLE
    assert said.startswith("The request cannot be sent: the API key holds")
    assert "hunter2" not in said


def test_a_key_that_is_no_utf8_is_sent_as_the_bytes_it_is() -> None:
    with serving(says(JSON + b"\r\n", b"{}")) as (url, asked):
        assert ServerClient(url, api_key="k\udce4", timeout=5).loads() == {}
    assert b"Bearer k\xe4\r\n" in asked[0] + b"\r\n"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate that nobody else signed."""
    folder = tmp_path_factory.mktemp("certificate")
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def test_a_certificate_that_is_not_trusted_is_told_as_that(certified: ssl.SSLContext) -> None:
    def answer(peer: socket.socket, over: threading.Event) -> None:
        with certified.wrap_socket(peer, server_side=True) as secure:
            secure.recv(65536)

    with listening(answer) as port:
        url = f"https://127.0.0.1:{port}"
        client = ServerClient(url, timeout=5)
        words = f"The certificate of {url} is not trusted ("
        assert client.loads() is Reach.UNREACHABLE
        assert client.problem.startswith(words)
        assert client.problem.endswith(".") and "_ssl.c" not in client.problem
        assert client.generate({}).error == client.problem
        server = Attached(url, {})
        with pytest.raises(AddressError) as error:
            server.recipe()
        assert str(error.value) == client.problem
        _, readings, _ = server.look()
        assert readings.notice == client.problem
        server.close()


def test_what_speaks_no_tls_is_told_as_that() -> None:
    def answer(peer: socket.socket, over: threading.Event) -> None:
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listening(answer) as port:
        said = ServerClient(f"https://127.0.0.1:{port}").generate({}).error
    assert said == f"No secure connection to https://127.0.0.1:{port} comes about: it may be one for http://."
