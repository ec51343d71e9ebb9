"""The HTTP side of a simulated worker: the routes of vLLM's OpenAI server that a picker, an agent or a client uses."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from picker.prompts.template import CannotRender
from picker.prompts.tokenizer import ModelTokenizer
from picker.simulation import dialect
from picker.simulation.answers import CHAT, COMPLETION, Answer, Shape
from picker.simulation.dialect import ApiError, ChatRequest, CompletionRequest, GenerationRequest
from picker.simulation.faults import Fault, Faults
from picker.simulation.kv_publisher import BUFFER_STEPS, HWM, KvPublisher
from picker.simulation.metrics import CONTENT_TYPE, WorkerMetrics
from picker.simulation.realtime import Busy, RealTimeEngine

_T = TypeVar("_T")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Served:
    """What this server calls itself and what it serves. `vocabulary_size` bounds the token ids of prompts."""

    worker: str
    model: str
    root: str
    adapters: Sequence[str]
    max_model_len: int
    vocabulary_size: int


class Api:
    """The handlers."""

    def __init__(
        self,
        served: Served,
        tokenizer: ModelTokenizer,
        engine: RealTimeEngine,
        publisher: KvPublisher,
        metrics: WorkerMetrics,
        faults: Faults,
    ):
        self._served = served
        self._tokenizer = tokenizer
        self._engine = engine
        self._publisher = publisher
        self._metrics = metrics
        self._faults = faults

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/health", self.health),
                Route("/ping", self.health, methods=["GET", "POST"]),
                Route("/version", self.version),
                Route("/load", self.load),
                Route("/is_sleeping", self.is_sleeping),
                Route("/metrics", self.metrics),
                Route("/kv_event_sources", self.kv_event_sources),
                Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
                Route("/fault", self.fault, methods=["POST"]),
            ],
            exception_handlers={ApiError: _api_error, HTTPException: _http_error},
            middleware=[Middleware(_Front, worker=self._served.worker, faults=self._faults)],
        )

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = await _body(request, CompletionRequest)
        self._adapter(body.model)
        body.check(self._served.max_model_len)
        prompts = await asyncio.to_thread(self._encode_prompts, body.prompts())
        return await self._generate(request, body, prompts, COMPLETION)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = await _body(request, ChatRequest)
        self._adapter(body.model)
        body.check(self._served.max_model_len)
        prompt = await asyncio.to_thread(self._encode_chat, body.messages)
        return await self._generate(request, body, [prompt], CHAT)

    async def _generate(
        self, request: Request, body: GenerationRequest, prompts: list[list[int]], shape: Shape
    ) -> Response:
        limits = [self._answer_tokens(prompt, body) for prompt in prompts]
        try:
            if self._faults.overloaded:
                raise Busy
            outputs = self._engine.submit(prompts, limits, self._adapter(body.model), body.cache_salt)
        except Busy:
            raise dialect.busy() from None
        answer = Answer(
            shape,
            outputs,
            self._tokenizer.decode,
            request_id=request.headers.get("x-request-id") or uuid.uuid4().hex[:16],
            created=int(time.time()),
            model=body.model or self._served.model,
            prompt_tokens=sum(map(len, prompts)),
        )
        if body.stream:
            events = answer.events(include_usage=body.include_usage, usage_everywhere=body.usage_everywhere)
            return _EventStream(events, answer, self._engine)
        try:
            return JSONResponse(await _unless_disconnected(request, answer.whole()))
        finally:
            self._engine.abort(outputs)

    async def models(self, _: Request) -> Response:
        """GET /v1/models."""
        served = self._served
        base: dict[str, Any] = {
            "id": served.model,
            "root": served.root,
            "parent": None,
            "max_model_len": served.max_model_len,
        }
        adapters: list[dict[str, Any]] = [
            {"id": name, "root": name, "parent": served.model, "max_model_len": None} for name in served.adapters
        ]
        common = {"object": "model", "created": int(time.time()), "owned_by": "vllm"}
        return JSONResponse({"object": "list", "data": [card | common for card in [base, *adapters]]})

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        body = await _body(request, dialect.TokenizeRequest)
        self._adapter(body.model)
        if body.messages:
            tokens = await asyncio.to_thread(self._encode_chat, body.messages)
        else:
            [tokens] = await asyncio.to_thread(self._encode_prompts, [body.prompt or ""])
        answer = {"count": len(tokens), "max_model_len": self._served.max_model_len, "tokens": tokens}
        return JSONResponse(answer | {"token_strs": None})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        body = await _body(request, dialect.DetokenizeRequest)
        self._adapter(body.model)
        return JSONResponse({"prompt": await asyncio.to_thread(self._tokenizer.decode, body.tokens)})

    async def health(self, _: Request) -> Response:
        """GET /health and /ping: 200 whether or not anything moves, as vLLM's."""
        return Response()

    async def version(self, _: Request) -> Response:
        """GET /version."""
        return JSONResponse({"version": dialect.VERSION})

    async def load(self, _: Request) -> Response:
        """GET /load, as with `--enable-server-load-tracking`."""
        return JSONResponse({"server_load": self._engine.in_flight})

    async def is_sleeping(self, _: Request) -> Response:
        """GET /is_sleeping: never."""
        return JSONResponse({"is_sleeping": False})

    async def metrics(self, _: Request) -> Response:
        """GET /metrics."""
        return Response(self._metrics.page(), media_type=CONTENT_TYPE)

    async def kv_event_sources(self, _: Request) -> Response:
        """GET /kv_event_sources: where to subscribe."""
        publisher = self._publisher
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
            "buffer_steps": BUFFER_STEPS,
            "hwm": HWM,
            "topic": publisher.topic,
        }
        return JSONResponse({"0": source})

    async def reset_prefix_cache(self, _: Request) -> Response:
        """POST /reset_prefix_cache: 200 in any case, as vLLM's; without effect while requests run."""
        self._engine.reset_cache()
        return Response()

    async def fault(self, request: Request) -> Response:
        """POST /fault."""
        self._faults.apply(await _body(request, Fault))
        return Response()

    def _adapter(self, model: str | None) -> str | None:
        """The adapter that `model` names; None for the base model. Raises ApiError."""
        if not model or model == self._served.model:
            return None
        if model not in self._served.adapters:
            raise dialect.unknown_model(model, [self._served.model])
        return model

    def _answer_tokens(self, prompt: list[int], body: GenerationRequest) -> int:
        """How many tokens fit behind the prompt, at most those asked for. Raises ApiError."""
        limit = self._served.max_model_len
        if not prompt:
            raise dialect.invalid("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
        if len(prompt) >= limit:
            raise dialect.too_long(len(prompt), limit)
        return min(body.answer_tokens, limit - len(prompt))

    def _encode_prompts(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        encoded = []
        for prompt in prompts:
            if isinstance(prompt, str):
                prompt = self._tokenizer.encode(prompt, add_special_tokens=True)
            for token in prompt:
                if not 0 <= token < self._served.vocabulary_size:
                    raise dialect.out_of_vocabulary(token)
            encoded.append(prompt)
        return encoded

    def _encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        template = self._tokenizer.template
        if template is None:
            raise ApiError(400, "BadRequestError", "The model has no chat template.")
        try:
            text = template.render(messages, add_generation_prompt=True)
        except CannotRender as error:
            raise ApiError(400, "BadRequestError", f"The chat template does not take these messages: {error}") from None
        return self._tokenizer.encode(text, add_special_tokens=False)


class _EventStream(StreamingResponse):
    """Headers at once, events as tokens come. Whatever ends it, disconnection included, also ends it in the engine."""

    def __init__(self, events: AsyncIterator[bytes], answer: Answer, engine: RealTimeEngine):
        super().__init__(events, media_type="text/event-stream")
        self._answer = answer
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._engine.abort(self._answer.outputs)


class _Front:
    """Middleware: the worker's name on every answer, the request's id echoed, and the faults that break answers."""

    def __init__(self, app: ASGIApp, worker: str, faults: Faults):
        self._app = app
        self._worker = worker
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = Headers(scope=scope).get("x-request-id")

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-worker"] = self._worker
                if request_id:
                    headers["x-request-id"] = request_id
            elif self._faults.breaks and scope["path"].endswith("/completions"):
                await send({"type": message["type"], "body": message["body"][:20], "more_body": True})
                # The server closes the connection of an answer that ends so.
                raise ConnectionError("as POST /fault wants it")
            await send(message)

        down = self._faults.unavailable and scope["path"] != "/fault"
        await (_unavailable() if down else self._app)(scope, receive, send_named)


def _unavailable() -> Response:
    error = ApiError(503, "Service Unavailable", "The service is unavailable.")
    return JSONResponse(error.body(), error.status)


async def _body(request: Request, kind: type[_Struct]) -> _Struct:
    return dialect.parse(await request.body(), request.headers.get("content-type", ""), kind)


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, _T]) -> _T | None:
    """The result of `work`; None, and `work` is cancelled, if the client goes away first."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work)
        watching = group.create_task(_disconnected(request))
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        watching.cancel()
    return None if working.cancelled() else working.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)
