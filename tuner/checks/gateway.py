"""A gateway: any OpenAI-compatible base URL, the same three checks by model name."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tuner.checks.answers import ChatSeen, chat_seen
from tuner.checks.content import ChatContext
from tuner.checks.judge import judge_chat
from tuner.checks.leash import leash
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.thinking import NON_THINKING, THINKING, non_thinking_request, thinking_request
from tuner.checks.tool_call import TOOL_CALL, tool_call_request
from tuner.probes.answers import ChatAnswer
from tuner.probes.assemble import ChatAssembly
from tuner.probes.http import ServerClient

GATEWAY_SET = (THINKING, NON_THINKING, TOOL_CALL)

_BUDGET_S = 300.0
_TIMEOUT_S = 120.0
#: Models behind a gateway think as long as they please.
_MAX_TOKENS = 1_024
#: A key of SGLang's and vLLM's own. Others refuse what they do not know.
_THINKING_SWITCH = "chat_template_kwargs"
#: Stands for whatever parser runs behind the gateway.
_THEIRS = "of the gateway"
#: Statuses with which a request is refused for what is in it.
_NOT_UNDERSTOOD = frozenset({400, 404, 422})

_REQUESTS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    THINKING: thinking_request,
    NON_THINKING: non_thinking_request,
    TOOL_CALL: tool_call_request,
}


class GatewayError(Exception):
    """A gateway that cannot be asked; the message is one sentence for the operator."""


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """Where the gateway is. ``base_url`` ends where ``/chat/completions`` is put ("https://host/v1").

    ``key_variable`` names the environment variable that holds the key; None: it wants none.
    """

    base_url: str
    key_variable: str | None = None
    timeout_s: float = _TIMEOUT_S

    def key(self, environ: Mapping[str, str]) -> str | None:
        """The key, read where it is used and kept nowhere. Raises GatewayError when the variable is not set."""
        if self.key_variable is None:
            return None
        key = environ.get(self.key_variable, "").strip()
        if not key:
            raise GatewayError(f"The key of the gateway is read from {self.key_variable}, which is not set.")
        if not key.isascii() or not key.isprintable():
            raise GatewayError(f"{self.key_variable} holds characters that no key has.")
        return key


class GatewayClient(ServerClient):
    """Chat completions behind a base URL."""

    def __init__(self, gateway: Gateway, key: str | None) -> None:
        if not gateway.base_url.startswith(("http://", "https://")):
            raise GatewayError(f"The base URL of the gateway must start with http:// or https://: {gateway.base_url}")
        super().__init__(gateway.base_url, api_key=key, generation_timeout=gateway.timeout_s)

    def chat(
        self,
        body: dict[str, Any],
        stream: bool = False,
        on_delta: Callable[[str, str], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> ChatAnswer:
        """One chat completion at ``BASE/chat/completions``."""
        assembly = ChatAssembly(on_delta)
        end = self._post("/chat/completions", {**body, "stream": stream}, assembly.event, cancel)
        return assembly.answer(end.status, end.seconds, end.error, streamed=stream)


class ModelChecked(msgspec.Struct, frozen=True, kw_only=True):
    """The three checks of one model."""

    model: str
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether all passed."""
        return bool(self.checks) and all(check.verdict is Verdict.PASS for check in self.checks)


def check_gateway(
    gateway: Gateway,
    models: Sequence[str],
    environ: Mapping[str, str],
    *,
    on_started: Callable[[str, int, int], None] = lambda name, number, of: None,
    on_ended: Callable[[CheckResult], None] = lambda result: None,
    cancel: threading.Event | None = None,
    budget_s: float = _BUDGET_S,
) -> list[ModelChecked]:
    """The three checks for each of ``models``; results hold no key. Raises GatewayError for what cannot be asked."""
    key = gateway.key(environ)
    client = GatewayClient(gateway, key)
    checked: list[ModelChecked] = []
    number, of = 0, len(models) * len(GATEWAY_SET)
    try:
        with leash(cancel or threading.Event(), budget_s) as held:
            for model in models:
                results = []
                for name in GATEWAY_SET:
                    number += 1
                    on_started(f"{model}: {name}", number, of)
                    if held.stop.is_set():
                        result = CheckResult(name=name, verdict=Verdict.CANNOT_TELL, reason=held.why)
                    else:
                        result = without(key, _checked(client, model, name, held.stop))
                    results.append(result)
                    on_ended(msgspec.structs.replace(result, name=f"{model}: {name}"))
                checked.append(ModelChecked(model=model, checks=tuple(results)))
    finally:
        client.close()
    return checked


def without(key: str | None, result: CheckResult) -> CheckResult:
    """A result in which nothing of the key is left, should a gateway have sent it back. Pure."""
    if not key:
        return result
    return msgspec.structs.replace(
        result,
        reason=result.reason.replace(key, "***"),
        sent=result.sent.replace(key, "***"),
        came=result.came.replace(key, "***"),
    )


def judge_through_gateway(name: str, seen: ChatSeen, context: ChatContext, *, switched: bool) -> CheckResult:
    """The verdict on an answer through a gateway; ``switched``: it took the switch for thinking. Pure.

    Whether a parser runs behind the gateway is not known, and where thinking cannot be turned off, having thought is
    no fault.
    """
    result = judge_chat(name, seen, context)
    if result.verdict is not Verdict.FAIL or switched or name != NON_THINKING:
        return result
    if seen.reasoning.strip() and seen.text.strip():
        calm = judge_chat(name, msgspec.structs.replace(seen, reasoning=""), context)
        reason = f"This gateway takes no switch for thinking, and the model thought. {calm.reason}"
        verdict = Verdict.CANNOT_TELL if calm.verdict is Verdict.PASS else calm.verdict
        return msgspec.structs.replace(result, verdict=verdict, reason=reason)
    return result


def _checked(client: GatewayClient, model: str, name: str, stop: threading.Event) -> CheckResult:
    body = {"model": model, **_REQUESTS[name](secrets.token_hex(4), _MAX_TOKENS)}
    answer = client.chat(body, cancel=stop)
    switched = _THINKING_SWITCH in body
    if answer.status in _NOT_UNDERSTOOD and switched:
        body.pop(_THINKING_SWITCH)
        second = client.chat(body, cancel=stop)
        # A model that is not there is refused both times, with its own reason.
        answer, switched = (second, False) if second.ok else (answer, True)
    seen = chat_seen(answer, _MAX_TOKENS)
    # A parser is taken to run, for a call that stays text reaches no client of the gateway. Thoughts may come apart or
    # not at all.
    context = ChatContext(
        reasoning_parser=_THEIRS if seen.reasoning.strip() else None, tool_call_parser=_THEIRS, max_tokens=_MAX_TOKENS
    )
    result = judge_through_gateway(name, seen, context, switched=switched)
    return msgspec.structs.replace(result, sent=str(body["messages"][0]["content"]))
