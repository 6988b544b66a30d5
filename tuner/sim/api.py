"""The HTTP endpoints of SGLang 0.5.17 that the tuner and its clients use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.sim import chat, native
from tuner.sim.cache import pack
from tuner.sim.journal import say
from tuner.sim.limits import Refusal
from tuner.sim.metrics_page import render
from tuner.sim.requests import Request, RequestKind
from tuner.sim.service import Service, Status
from tuner.sim.stats import HttpKey
from tuner.sim.tokens import pieces, token_ids

_ADMIN = frozenset({"/flush_cache", "/abort_request"})
_OPEN = ("/health", "/metrics")
#: Tokens an answer may have when nobody says how many.
_CHAT_TOKENS = 4096


class Guard:
    """Checks keys and counts requests, as SGLang's middlewares do."""

    def __init__(self, app: ASGIApp, service: Service, known: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._known = known

    def _denied(self, scope: Scope) -> bool:
        service, path = self._service, scope["path"]
        if path.startswith(_OPEN):
            return False
        wanted = service.api_key
        if path in _ADMIN:
            wanted = service.admin_key or service.api_key
        if wanted is None:
            return False
        given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        return bool(given != f"Bearer {wanted}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stats = self._service.stats
        key = HttpKey(scope["path"], scope["method"])
        counted = scope["path"] in self._known

        async def counting(message: Message) -> None:
            if counted and message["type"] == "http.response.start":
                stats.http_responses[key, message["status"]] += 1
            await send(message)

        if counted:
            stats.http_requests[key] += 1
            stats.http_active[key] += 1
        try:
            if self._denied(scope):
                await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, counting)
            else:
                await self._app(scope, receive, counting)
        finally:
            if counted:
                stats.http_active[key] -= 1


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class Endpoints:
    """One method per route."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # --- looking ---------------------------------------------------------------------------------------------------

    async def health(self, _: HttpRequest) -> Response:
        """503 while starting or draining; then a token is generated, which takes a second."""
        return Response(status_code=await self._service.health())

    async def model_info(self, _: HttpRequest) -> Response:
        """What model this is."""
        return JSONResponse(self._service.model_info())

    async def server_info(self, _: HttpRequest) -> Response:
        """Flags, pools and times."""
        return JSONResponse(self._service.server_info())

    async def models(self, _: HttpRequest) -> Response:
        """OpenAI's list of models."""
        service = self._service
        model = {
            "id": service.model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": service.model_name,
            "parent": None,
            "max_model_len": service.built.pools.plan.context_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def loads(self, _: HttpRequest) -> Response:
        """Requests and tokens in flight."""
        began = time.perf_counter()
        answer = self._service.loads()
        self._service.stats.loads_seconds.observe(time.perf_counter() - began)
        return JSONResponse(answer)

    async def load(self, _: HttpRequest) -> Response:
        """The old form of /v1/loads."""
        load = self._service.loads()["loads"][0]
        old = {
            "dp_rank": 0,
            "num_reqs": load["num_running_reqs"] + load["num_waiting_reqs"],
            "num_waiting_reqs": load["num_waiting_reqs"],
            "num_tokens": load["num_used_tokens"],
            "num_pending_tokens": load["num_waiting_uncached_tokens"],
            "ts_tic": time.monotonic(),
        }
        return JSONResponse([old])

    async def metrics(self, _: HttpRequest) -> Response:
        """The Prometheus page."""
        text = render(self._service.stats, self._service.page_facts())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    # --- steering --------------------------------------------------------------------------------------------------

    async def flush_cache(self, _: HttpRequest) -> Response:
        """Empties the prefix cache; refused while requests run."""
        scheduler = self._service.scheduler
        if scheduler.in_flight or not scheduler.cache.flush():
            return PlainTextResponse(
                "Cache not flushed because there are pending requests. Check backend logs for more details.\n", 400
            )
        scheduler.refresh()
        return PlainTextResponse(
            "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, "
            "the operation will not be performed.)\n"
        )

    async def abort_request(self, http: HttpRequest) -> Response:
        """Ends one request, or all."""
        try:
            body = msgspec.json.decode(await http.body() or b"{}", type=dict[str, Any])
        except msgspec.MsgspecError as error:
            return _bad(str(error))
        for request in self._service.scheduler.in_flight:
            if body.get("abort_all") or request.rid.startswith(str(body.get("rid") or "\0")):
                self._service.engine.abort(request, "Aborted by request.")
        return Response(status_code=200)

    # --- generating ------------------------------------------------------------------------------------------------

    async def generate(self, http: HttpRequest) -> Response:
        """SGLang's own endpoint."""
        service = self._service
        try:
            body = native.read_generate(await http.body())
            count = native.new_tokens(body)
            ids = native.prompt_ids(body, service.scheduler.vocabulary)
            service.scheduler.check_length(len(ids), count)
        except chat.BadRequest as error:
            return _bad(str(error))
        except Refusal as refusal:
            say(f"[http_server] Error: {refusal}")
            return _bad(str(refusal), refusal.status)
        kind = RequestKind.WARMUP if service.status is Status.STARTING else RequestKind.CLIENT
        prompt = pack(ids)
        request = Request(
            ids,
            count,
            lambda cached: native.planned(prompt, count, service.faults, cached),
            streaming=body.stream,
            kind=kind,
            rid=body.rid,
        )
        speculative = service.built.setup.speculative
        if not body.stream:
            await self._finish(http, request)
            if request.finish_reason == "abort":
                return _bad(request.abort_message or "Request aborted.", 503)
            return JSONResponse(native.answer(request, speculative=speculative))

        async def events() -> AsyncIterator[bytes]:
            async for _ in self._news(request):
                yield _event(native.answer(request, speculative=speculative))
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def chat_completions(self, http: HttpRequest) -> Response:
        """OpenAI's endpoint."""
        service = self._service
        built = service.built
        try:
            turn = chat.read_chat(await http.body(), built.parsers, built.default_template, service.faults)
            body = turn.body
            ids = token_ids(pieces(turn.prompt), service.scheduler.vocabulary)
            asked = body.max_completion_tokens or body.max_tokens
            room = max(1, built.pools.plan.context_len - len(ids) - 1)
            count = asked if asked is not None else min(_CHAT_TOKENS, room)
            service.scheduler.check_length(len(ids), count)
        except chat.BadRequest as error:
            return _openai_error(str(error))
        except Refusal as refusal:
            say(f"[http_server] Error: {refusal}")
            return _openai_error(str(refusal), refusal.status)
        request = Request(
            ids, count, lambda cached: turn.compose(cached, service.faults, count), streaming=body.stream, rid=body.rid
        )
        model = body.model or service.model_name
        report = bool(built.values.get("enable_cache_report"))
        if not body.stream:
            await self._finish(http, request)
            if request.finish_reason == "abort":
                return _openai_error(request.abort_message or "Request aborted.", 503)
            return JSONResponse(chat.completion(request, turn, model, report))
        stream = chat.ChatStream(request, model)

        async def events() -> AsyncIterator[bytes]:
            opened = False
            async for _ in self._news(request):
                if not opened:
                    opened = True
                    yield _event(stream.first())
                for chunk in stream.news():
                    yield _event(chunk)
            yield _event(stream.last())
            if (body.stream_options or {}).get("include_usage"):
                yield _event(stream.usage_chunk(report))
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _news(self, request: Request) -> AsyncIterator[None]:
        """Yields each time a request has new tokens; ends with it, and ends it when the client goes."""
        self._service.engine.submit(request)
        try:
            seen = 0
            while not request.finished or len(request.output) > seen:
                request.changed.clear()
                if len(request.output) > seen or request.finished:
                    seen = len(request.output)
                    yield
                    continue
                await request.changed.wait()
        finally:
            if not request.finished:
                self._service.engine.abort(request)

    async def _finish(self, http: HttpRequest, request: Request) -> None:
        """Waits for a request; a client that goes away ends it."""

        async def gone() -> None:
            while (await http.receive())["type"] != "http.disconnect":
                continue
            self._service.engine.abort(request)

        watcher = asyncio.create_task(gone())
        try:
            async for _ in self._news(request):
                continue
        finally:
            watcher.cancel()


def _bad(message: str, status: int = 400) -> Response:
    return JSONResponse({"error": {"message": message}}, status)


def _openai_error(message: str, status: int = 400) -> Response:
    kind = "BadRequestError" if status == 400 else "ServiceUnavailableError"
    return JSONResponse({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status)


def _deprecated(old: str, new: str, handler: Callable[[HttpRequest], Awaitable[Response]]) -> Route:
    async def answer(request: HttpRequest) -> Response:
        say(f"Endpoint '{old}' is deprecated and will be removed in a future version. Please use '{new}' instead.")
        return await handler(request)

    return Route(old, answer)


def _not_found(_: HttpRequest, __: Exception) -> Response:
    return JSONResponse({"detail": "Not Found"}, 404)


def build_app(service: Service, at_startup: Callable[[], None]) -> ASGIApp:
    """The application; ``at_startup`` runs between uvicorn's "Waiting for" and "Application startup complete."."""
    do = Endpoints(service)
    routes = [
        Route("/health", do.health),
        Route("/health_generate", do.health),
        Route("/model_info", do.model_info),
        _deprecated("/get_model_info", "/model_info", do.model_info),
        Route("/server_info", do.server_info),
        _deprecated("/get_server_info", "/server_info", do.server_info),
        Route("/v1/models", do.models),
        Route("/v1/loads", do.loads),
        _deprecated("/get_load", "/v1/loads", do.load),
        Route("/generate", do.generate, methods=["POST", "PUT"]),
        Route("/v1/chat/completions", do.chat_completions, methods=["POST"]),
        Route("/flush_cache", do.flush_cache, methods=["GET", "POST"]),
        Route("/abort_request", do.abort_request, methods=["POST"]),
    ]
    if service.metrics_on:
        routes.append(Route("/metrics", do.metrics))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        at_startup()
        working = asyncio.create_task(service.engine.run())
        yield
        working.cancel()

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: _not_found})
    return Guard(app, service, frozenset(route.path for route in routes))
