"""Serve the tutor over HTTP: OpenAI-compatible routes, streaming, delays, faults, request log."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from treadle.core.chat import ChatTokenizer
from treadle.core.errors import StorageError
from treadle.core.untrusted.origin_guard import find_refusal, is_loopback_name
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.tutor.completion import ReplyWriter, RequestError, TutorReply, request_digest
from treadle.demo.tutor.faults import RateLimit, choose_fault, error_response, fail
from treadle.demo.tutor.seeded_draws import Draws
from treadle.demo.tutor.settings import DESCRIPTION, MODELS, TutorSettings

_MAX_BODY_BYTES = 64 * 2**20
_KEEPALIVE_S = 3600.0
_SESSION_HEADERS = ("X-Session-Id", "X-Request-Id")


class RequestLog:
    """Counter of requests by content that writes one JSON line on arrival and one on the answer, unbuffered.

    So the file survives if the client or the server is killed.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("ab", buffering=0)
            except OSError as error:
                raise StorageError(f"the request log {path} cannot be written: {error}") from error
        self._arrivals: Counter[bytes] = Counter()
        self._statuses: Counter[str] = Counter()
        self._serial = 0
        self._in_flight = 0
        self._max_in_flight = 0

    def arrive(self, digest: str, **facts: Any) -> tuple[int, int]:
        """Record a request before it is handled; return its serial number and its attempt, both from 0."""
        serial, self._serial = self._serial, self._serial + 1
        key = bytes.fromhex(digest)
        attempt = self._arrivals[key]
        self._arrivals[key] += 1
        self._in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self._in_flight)
        self._write({"event": "arrived", "serial": serial, "digest": digest, "attempt": attempt, **facts})
        return serial, attempt

    def answer(self, serial: int, digest: str, status: str) -> None:
        """Record how a request ended: an HTTP status, `reset`, `hang`, `malformed`, or `cancelled` by the client."""
        self._in_flight -= 1
        self._statuses[status] += 1
        self._write({"event": "answered", "serial": serial, "digest": digest, "status": status})

    def counts(self) -> dict[str, Any]:
        """Return totals since the start; `repeated` counts arrivals of content that had arrived before."""
        return {
            "requests": self._serial,
            "distinct": len(self._arrivals),
            "repeated": self._serial - len(self._arrivals),
            "in_flight": self._in_flight,
            "max_in_flight": self._max_in_flight,
            "statuses": dict(sorted(self._statuses.items())),
        }

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(orjson.dumps({"time": time.time(), **line}, option=orjson.OPT_APPEND_NEWLINE))


class TutorServer:
    """A tutor on a port: `async with TutorServer(settings) as tutor: tutor.url`."""

    def __init__(self, settings: TutorSettings, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._settings = settings
        self._host = host
        self._port = port
        self._tokenizer = _load_tokenizer(settings.tokenizer)
        self._writer = ReplyWriter(settings, self._tokenizer)
        self._log = RequestLog(settings.request_log)
        self._limit = RateLimit(settings.rate_limit_per_s, time.monotonic)
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Base URL, ending in /v1; the port is known once the server has started."""
        return f"http://{self._host}:{self._port}/v1"

    @property
    def counts(self) -> dict[str, Any]:
        """Request counts so far, as returned by GET /log/counts."""
        return self._log.counts()

    async def __aenter__(self) -> TutorServer:
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._guard])
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name}", self._model)
        app.router.add_get("/health", self._health)
        app.router.add_get("/log/counts", self._counts)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=_KEEPALIVE_S, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, backlog=2048).start()
        self._port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()
        self._log.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = find_refusal(
            "tutor",
            request.method,
            request.raw_headers,
            has_query=bool(request.query_string),
            any_host=not is_loopback_name(self._host),
        )
        if refusal is not None:
            return error_response(*refusal, "ForbiddenError")
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            return error_response(error.status, f"no route {request.method} {request.path}", "NotFoundError")

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._card(name) for name in MODELS]})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in MODELS:
            return error_response(404, f"The model `{name}` does not exist.", "NotFoundError")
        return web.json_response(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "treadle",
            "description": DESCRIPTION,
            "max_model_len": self._settings.max_model_len,
        }

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _counts(self, request: web.Request) -> web.Response:
        return web.json_response(self._log.counts())

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            return error_response(400, "the body is not a JSON object", "BadRequestError")
        digest = request_digest(body)
        session = next(
            (request.headers[name] for name in _SESSION_HEADERS if name in request.headers), body.get("user")
        )
        serial, attempt = self._log.arrive(digest, model=body.get("model"), seed=body.get("seed"), session=session)
        status = "cancelled"
        try:
            status, response = await self._respond(request, body, digest, attempt)
        finally:
            self._log.answer(serial, digest, status)
        return response

    async def _respond(
        self, request: web.Request, body: dict[str, Any], digest: str, attempt: int
    ) -> tuple[str, web.StreamResponse]:
        wait_s = self._limit.take()
        if wait_s is not None:
            return "429", error_response(429, "over the tutor's rate limit", "RateLimitError", wait_s)
        fault = choose_fault(self._settings.faults, self._settings.fault_seed, digest, attempt)
        if fault is not None:
            return fault, await fail(request, fault, self._closing)
        if self._settings.latency_s or self._settings.jitter_s:
            jitter = Draws("latency", digest).share("jitter") * self._settings.jitter_s
            await asyncio.sleep(self._settings.latency_s + jitter)
        chat = request.path.endswith("/chat/completions")
        try:
            reply = self._writer.write(body, chat=chat)
        except RequestError as refused:
            return str(refused.status), error_response(refused.status, str(refused), refused.kind)
        if body.get("stream"):
            return "200", await self._stream(request, body, reply, digest, chat=chat)
        payload = _payload(body, reply, digest, chat=chat)
        if body.get("return_token_ids") and not chat:
            prompt = body["prompt"]
            given = prompt if isinstance(prompt, list) else self._tokenizer.encode(prompt)
            payload["choices"][0]["prompt_token_ids"] = given
        return "200", web.Response(body=orjson.dumps(payload), content_type="application/json")

    async def _stream(
        self, request: web.Request, body: dict[str, Any], reply: TutorReply, digest: str, *, chat: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        head = _head(body, digest, "chat.completion.chunk" if chat else "text_completion")
        pieces = list(self._pieces(reply))
        for place, (text, ids) in enumerate(pieces):
            last = place == len(pieces) - 1
            choice = _choice(body, text, ids, chat=chat, key="delta")
            choice["finish_reason"] = reply.finish_reason if last else None
            choice["stop_reason"] = reply.stop_reason if last else None
            await response.write(b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n")
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {**head, "choices": [], "usage": _usage(reply)}
            await response.write(b"data: " + orjson.dumps(usage) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _pieces(self, reply: TutorReply) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield an answer in chunks of a few tokens whose texts join to its text."""
        sent, start = 0, 0
        for end in range(4, len(reply.ids), 4):
            text = self._tokenizer.decode(reply.ids[:end])
            if text.endswith("\ufffd") or not reply.text.startswith(text):
                continue  # inside a character
            yield text[sent:], reply.ids[start:end]
            sent, start = len(text), end
        yield reply.text[sent:], reply.ids[start:]


def _load_tokenizer(folder: Path | None) -> ChatTokenizer:
    if folder is not None:
        return ChatTokenizer.load(folder)
    with tempfile.TemporaryDirectory(prefix="treadle-tutor-") as temporary:
        return ChatTokenizer.load(write_byte_tokenizer(Path(temporary)))


def _head(body: dict[str, Any], digest: str, kind: str) -> dict[str, Any]:
    # `created` is always 0, so that equal requests get equal bytes.
    return {"id": f"tutor-{digest[:16]}", "object": kind, "created": 0, "model": body.get("model", MODELS[0])}


def _choice(body: dict[str, Any], text: str, ids: tuple[int, ...], *, chat: bool, key: str) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "logprobs": None}
    if chat:
        choice[key] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    if body.get("return_token_ids"):
        choice["token_ids"] = ids
    return choice


def _usage(reply: TutorReply) -> dict[str, int]:
    num_new = len(reply.ids)
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": num_new,
        "total_tokens": reply.prompt_tokens + num_new,
    }


def _payload(body: dict[str, Any], reply: TutorReply, digest: str, *, chat: bool) -> dict[str, Any]:
    choice = _choice(body, reply.text, reply.ids, chat=chat, key="message")
    choice |= {"finish_reason": reply.finish_reason, "stop_reason": reply.stop_reason}
    head = _head(body, digest, "chat.completion" if chat else "text_completion")
    return {**head, "choices": [choice], "usage": _usage(reply)}
