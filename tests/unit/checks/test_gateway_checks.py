from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from checks_simulator import free_port, simulator

from tuner.checks.gateway import Gateway, GatewayError, check_gateway
from tuner.checks.model import Verdict

KEY = "sk-gateway-secret-0123456789"


class Cloud(BaseHTTPRequestHandler):
    """A gateway of its own mind: refuses keys of SGLang, and thinks whatever it is told."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Cloud.asked.append((self.path, body))
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self.reply(401, {"error": {"message": f"bad key {self.headers.get('Authorization')}"}})
        elif body["model"] == "nobody":
            self.reply(404, {"error": {"message": f"no model nobody for key {KEY}"}})
        elif "chat_template_kwargs" in body:
            self.reply(400, {"error": {"message": "Unknown parameter: chat_template_kwargs"}})
        else:
            self.reply(200, {"choices": [{"finish_reason": "stop", "message": self.message(body)}], "usage": {}})

    def message(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("tools"):
            call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"北京"}'}}
            return {"content": None, "tool_calls": [call]}
        answer = "408" if "17 * 24" in body["messages"][0]["content"] else "492"
        return {"content": answer, "reasoning_content": "Let me see."}

    def reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def cloud() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cloud)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Cloud.asked = []
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/compatible/v4"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_gateway_before_our_own_server_passes_the_three_checks_by_model_name() -> None:
    with simulator("--api-key", KEY, "--enable-metrics") as client:
        gateway = Gateway(base_url=f"{client.url}/v1", key_variable="GATEWAY_KEY")
        checked = check_gateway(gateway, ["local", "cloud"], {"GATEWAY_KEY": KEY})
    assert [model.model for model in checked] == ["local", "cloud"]
    assert all(model.passed for model in checked), checked
    assert [check.name for check in checked[0].checks] == ["thinking", "non-thinking", "tool call"]


def test_a_gateway_that_takes_no_switch_is_asked_without_it_and_not_blamed_for_thinking() -> None:
    with cloud() as url:
        (model,) = check_gateway(Gateway(base_url=url, key_variable="K"), ["big"], {"K": KEY})
    thinking, calm, tool = model.checks
    assert (thinking.verdict, tool.verdict) == (Verdict.PASS, Verdict.PASS)
    assert calm.verdict is Verdict.CANNOT_TELL
    assert "takes no switch for thinking" in calm.reason
    assert {path for path, _ in Cloud.asked} == {"/compatible/v4/chat/completions"}
    assert {body["model"] for _, body in Cloud.asked} == {"big"}


def test_a_key_that_the_gateway_sends_back_reaches_no_result() -> None:
    with cloud() as url:
        models = check_gateway(Gateway(base_url=url, key_variable="K"), ["nobody"], {"K": KEY})
        locked = check_gateway(Gateway(base_url=url, key_variable="K"), ["big"], {"K": KEY + "x"})
    assert all(check.verdict is Verdict.FAIL for model in models + locked for check in model.checks)
    assert "no model nobody" in models[0].checks[0].reason
    assert "API key" in locked[0].checks[0].reason
    assert KEY not in repr(models) + repr(locked)


@pytest.mark.parametrize("environ", [{}, {"K": ""}, {"K": "  "}])
def test_a_key_that_is_not_set_is_named_before_anything_is_sent(environ: dict[str, str]) -> None:
    with pytest.raises(GatewayError, match="read from K, which is not set"):
        check_gateway(Gateway(base_url="http://127.0.0.1:9/v1", key_variable="K"), ["m"], environ)


def test_a_gateway_that_is_not_there_or_no_address_gives_a_sentence() -> None:
    with pytest.raises(GatewayError, match="must start with http"):
        check_gateway(Gateway(base_url="gateway.example.org"), ["m"], {})
    (model,) = check_gateway(Gateway(base_url=f"http://127.0.0.1:{free_port()}/v1"), ["m"], {})
    assert "Nothing answers" in model.checks[0].reason


def test_a_gateway_can_be_broken_off() -> None:
    cancel = threading.Event()
    cancel.set()
    (model,) = check_gateway(Gateway(base_url="http://127.0.0.1:9/v1"), ["m"], {}, cancel=cancel)
    assert {check.reason for check in model.checks} == {"It was broken off."}
