"""An app that watches a server over plain HTTP holds neither OpenSSL nor anyio; an https address brings OpenSSL."""

import os
import socket
import subprocess
import sys
import threading

LOADED = "print([name for name in ('_ssl', '_hashlib', 'anyio', 'pynvml') if name in sys.modules])"
APP = f"import sys, tuner.cli.screen, tuner.ui.app; {LOADED}"
LOOK = f"""
import sys
from tuner.probes.http import ServerClient
print(ServerClient(sys.argv[1], timeout=5).health())
{LOADED}
"""
LATER = """
import tuner.probes, asyncio, hashlib, hmac, ssl, anyio, httpx
print(ssl.SSLContext.__name__, hashlib.sha256(b"x").hexdigest()[:8], hmac.new(b"k", b"x", "sha256").hexdigest()[:8])
print(anyio.run.__name__, type(httpx.create_ssl_context()).__name__)
"""


def told(words: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", words, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout.splitlines()


def test_the_app_is_imported_without_what_plain_http_never_uses() -> None:
    assert told(APP) == ["[]"]


def test_a_look_over_plain_http_needs_no_openssl() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        assert told(LOOK, f"http://127.0.0.1:{listener.getsockname()[1]}") == ["200", "[]"]


def test_an_https_address_is_spoken_to_with_openssl() -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                heard.append(peer.recv(65536))

        threading.Thread(target=serve, daemon=True).start()
        assert told(LOOK, f"https://127.0.0.1:{listener.getsockname()[1]}") == ["None", "['_ssl']"]
    assert heard[0][:2] == b"\x16\x03", "no TLS hello"


def test_what_was_left_out_is_whole_for_whoever_imports_it_later() -> None:
    assert told(LATER) == ["SSLContext 2d711642 c38edc88", "run SSLContext"]
