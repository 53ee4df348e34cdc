"""Define the routes of the environment service; docs/behaviour/environment-service.md specifies them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from treadle.core.untrusted.origin_guard import OriginGuard
from treadle.environments.service import wire
from treadle.environments.service.errors import ServiceError
from treadle.environments.service.instances import Reply
from treadle.environments.service.service import EnvironmentService
from treadle.environments.service.wire import Envelope
from treadle.retriever.service.http import body_of, json_response, read_json
from treadle.retriever.service.listening import NO_TOKEN, TokenGuard

_log = logging.getLogger(__name__)

HEALTH_PATH = "/healthz"
_RETRY_AFTER_S = "1"

Handler = Callable[[Envelope], Awaitable[Reply]]


def make_app(service: EnvironmentService) -> FastAPI:
    """Create the application that serves an open service; while it runs, it also ends the service's idle instances.

    Raises ConfigError if a token is required and missing.
    """
    token = service.settings.token()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        reaping = asyncio.create_task(service.reap())
        try:
            yield
        finally:
            reaping.cancel()
            await asyncio.gather(reaping, return_exceptions=True)

    app = FastAPIOffline(
        title="Treadle environments",
        summary="Instances of environments, as AgentEvolver's clients use them.",
        lifespan=lifespan,
        redoc_url=None,
    )
    refusal = {"success": False, "error": {"code": "unauthorized", "message": NO_TOKEN, "retryable": False}}
    app.add_middleware(TokenGuard, token=token, open_path=HEALTH_PATH, refusal=refusal)
    if token is None:
        # Without a token, any local caller has access, so pages in the user's browser must be kept out.
        app.add_middleware(OriginGuard, name="environment service")
    app.add_exception_handler(HTTPException, _refused_route)
    _add_reading(app, service)
    _add_calls(app, service)
    return app


async def _refused_route(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path or method; the body has the form of all errors."""
    assert isinstance(error, HTTPException)
    refused = ServiceError("bad_request", f"{request.method} of this path: {error.detail}", status=error.status_code)
    return Response(orjson.dumps(refused.as_json()), refused.status, error.headers, "application/json")


def _add_reading(app: FastAPI, service: EnvironmentService) -> None:
    @app.get(HEALTH_PATH)
    async def health() -> Response:
        """Answer OK while calls are accepted."""
        if service.is_draining:
            return Response("stopping", 503, media_type="text/plain")
        return Response("OK", media_type="text/plain")

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return counters for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/instances")
    async def instances() -> Response:
        """Return facts about all live instances."""
        return json_response(service.listing())


def _add_calls(app: FastAPI, service: EnvironmentService) -> None:
    def add(path: str, handler: Handler, reply: type[BaseModel], told: str) -> None:
        async def route(request: Request) -> Response:
            return await _respond(service, path, request, handler)

        app.post(
            path,
            name=path[1:],
            description=told,
            response_model=reply,
            responses={
                status: {"model": wire.ErrorReply} for status in (400, 404, 409, 413, 415, 422, 429, 500, 503, 504)
            },
            openapi_extra=body_of(Envelope),
        )(route)

    def call(op: str) -> Handler:
        return lambda envelope: service.call(op, envelope)

    add("/get_env_profile", service.profile, wire.TaskIdsReply, "Return the ids of the tasks of `params.split`.")
    add("/create", service.create, wire.StateReply, "Create an instance for `task_id`; return its first state.")
    add("/step", call("step"), wire.StateReply, "Act: `messages` is the model's message. Return the next state.")
    add("/evaluate", call("evaluate"), wire.ScoreReply, "Return a score from 0 to 1; with `params.sparse` 0 or 1.")
    add("/get_info", call("get_info"), wire.InfoReply, "Return a description of the tools.")
    add("/release", service.release, wire.ReleaseReply, "End an instance.")


async def _respond(service: EnvironmentService, path: str, request: Request, handler: Handler) -> Response:
    try:
        if service.is_draining:
            raise ServiceError("shutting_down", "the service is stopping")
        reply = await handler(await _envelope(service, request))
    except ServiceError as refused:
        reply = Reply(refused.status, orjson.dumps(refused.as_json()))
    except Exception:  # noqa: BLE001 - the last resort: no traceback on the wire
        _log.exception("%s failed", path)
        broken = ServiceError("internal", "this is a bug in Treadle; the service's log has the error")
        reply = Reply(broken.status, orjson.dumps(broken.as_json()))
    service.metrics.requests.labels(path, reply.status).inc()
    headers = {"Retry-After": _RETRY_AFTER_S} if reply.status in (429, 503) else None
    return Response(reply.body, reply.status, headers, "application/json")


async def _envelope(service: EnvironmentService, request: Request) -> Envelope:
    """Return the parsed body of a request. Raises ServiceError if the body is not a valid envelope."""
    try:
        envelope = Envelope.model_validate_json(await read_json(service.settings, request))
        # Refuse content that cannot be sent to a worker process before the request has any effect.
        orjson.dumps([envelope.messages, envelope.params])
        return envelope
    except TypeError:
        raise ServiceError("bad_request", "a whole number has more than 64 bits", status=422) from None
    except HTTPException as refused:
        raise ServiceError("bad_request", str(refused.detail), status=refused.status_code) from None
    except ValidationError as error:
        first: dict[str, Any] = dict(error.errors(include_url=False, include_context=False, include_input=False)[0])
        if first["type"] == "json_invalid":
            raise ServiceError("bad_request", "the body is not JSON") from None
        place = ".".join(map(str, first["loc"])) or "the body"
        said = first["msg"].removeprefix("Value error, ")
        raise ServiceError("bad_request", f"{place}: {said}", status=422) from None
