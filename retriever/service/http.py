"""Read requests of the service as models, and write its responses, refusals included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from fastapi import HTTPException, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from treadle.retriever.service.config import ListenSettings
    from treadle.retriever.service.metrics import Metrics

_CLIENT_CLOSED = 499
"""Status in the metrics for callers that disconnected, who never receive it."""

T_Request = TypeVar("T_Request", bound=BaseModel)


def require_json(request: Request) -> None:
    """Raise HTTPException unless the body is declared as JSON.

    Browsers send other types to other sites without a preflight request.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "send the body as JSON, with the header 'Content-Type: application/json'")


@dataclass(frozen=True, slots=True)
class OtherApi:
    """Body of another API that uses the same route: the field that identifies it, and the message for its sender."""

    field: str
    message: str


async def read_request(
    settings: ListenSettings,
    request: Request,
    model: type[T_Request],
    other: OtherApi | None = None,
    *,
    no_json: str = "",
) -> T_Request:
    """Return the body of a request as a model; raise HTTPException if it is invalid, with a hint if it fits `other`.

    The status is 422, or 400 with the text `no_json`, if that is given, for a body that is not JSON at all.
    """
    body = await read_json(settings, request)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if other is not None and _has_field(body, other.field):
            raise HTTPException(422, other.message) from None
        if no_json and error.errors(include_input=False)[0]["type"] == "json_invalid":
            raise HTTPException(400, no_json) from None
        raise HTTPException(422, error.errors(include_url=False, include_context=False, include_input=False)) from None


async def read_json(settings: ListenSettings, request: Request) -> bytes:
    """Return the body of a request that is declared as JSON; raise HTTPException if it does not arrive."""
    require_json(request)
    try:
        async with asyncio.timeout(settings.timeout_s):
            return await _read_body(request, settings.max_body_bytes)
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {settings.timeout_s:g} s") from None
    except ClientDisconnect:
        raise HTTPException(_CLIENT_CLOSED, "the client disconnected before its body was complete") from None


def _has_field(body: bytes, name: str) -> bool:
    try:
        sent = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(sent, dict) and name in sent


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request; raise HTTPException as soon as its length is known to exceed the limit."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise HTTPException(413, f"a request may have at most {max_bytes} bytes; this one has {announced}")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise HTTPException(413, f"a request may have at most {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


async def respond(metrics: Metrics, route: str, answer: Awaitable[Any]) -> Response:
    """Await the answer of a route and return it as a response, updating the metrics."""
    started = time.perf_counter()
    status, headers = 200, None
    try:
        content = await answer
    except HTTPException as refused:
        status, content, headers = refused.status_code, {"detail": refused.detail}, refused.headers
    metrics.requests.labels(route, status).inc()
    metrics.seconds.labels(route).observe(time.perf_counter() - started)
    return json_response(content, status, headers)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with JSON."""
    return Response(orjson.dumps(content), status, headers, "application/json")


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a request body; `read_request` parses bodies without FastAPI's copies."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
