"""Answer requests in the format of AgentEvolver's experience service; docs/behaviour/experience.md describes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi_offline import FastAPIOffline

from treadle.agent.metering import TokenBudget
from treadle.agent.model_sessions import ModelSessions
from treadle.agent.role_settings import RoleSettings
from treadle.core.errors import TreadleError
from treadle.core.untrusted.origin_guard import OriginGuard
from treadle.retriever.service.http import body_of, json_response, read_request
from treadle.retriever.service.listening import TokenGuard
from treadle.rl.experience.author import Author
from treadle.rl.experience.pool import ExperiencePool, shown_text
from treadle.rl.experience.prompts import PlayedRollout
from treadle.rl.experience.record import write_records
from treadle.rl.experience.roles import open_author
from treadle.rl.experience.service.config import ExperienceServiceConfig
from treadle.rl.experience.service.requests import (
    RetrieveTaskMemory,
    SummaryTaskMemory,
    WorkspaceQuery,
    query_of,
)
from treadle.rl.experience.service.workspaces import Workspaces


def make_app(config: ExperienceServiceConfig, roles: tuple[RoleSettings, RoleSettings] | None) -> FastAPI:
    """Create the application; without `roles` (summariser and validator) it only retrieves experience.
    Raises ConfigError if a token is required and missing, and DataError for a pool that cannot be read.
    """
    options, token = config.experience, config.service.token()
    service = _Service(config, Workspaces(config, roles or ()))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with ModelSessions(TokenBudget(options.max_total_tokens, options.max_cost)) as sessions:
            if roles is not None:
                try:
                    service.author = await open_author(sessions, roles, options, config.seed)
                except TreadleError as error:
                    app.state.failure = error  # uvicorn would only log it
                    raise
            yield

    app = FastAPIOffline(
        title="Treadle experience", summary="Experience from trajectories.", lifespan=lifespan, redoc_url=None
    )
    app.state.failure = None
    app.add_middleware(TokenGuard, token=token, open_path="/health")
    if token is None:
        # Without a token, any local caller has access, so pages in the user's browser must be kept out.
        app.add_middleware(OriginGuard, name="experience service")
    _add_routes(app, service)
    return app


def _add_routes(app: FastAPI, service: _Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Report that the service answers requests."""
        return json_response({"status": "ready", "summarises": service.author is not None})

    @app.post("/retrieve_task_memory", openapi_extra=body_of(RetrieveTaskMemory))
    async def retrieve_task_memory(request: Request) -> Response:
        """Return experience for a task as text; empty if nothing fits."""
        return json_response(await service.retrieve(request))

    @app.post("/summary_task_memory", openapi_extra=body_of(SummaryTaskMemory))
    async def summary_task_memory(request: Request) -> Response:
        """Make experience from trajectories, and return the records that were added to the workspace."""
        return json_response(await service.summarise(request))

    @app.get("/records")
    async def records(workspace_id: WorkspaceQuery = None) -> Response:
        """Return all records of a workspace as JSON lines, as `experience.pool` reads them."""
        return Response(service.lines(workspace_id), media_type="application/jsonl")


class _Service:
    """State that all requests share, with a method for each kind of request."""

    def __init__(self, config: ExperienceServiceConfig, workspaces: Workspaces) -> None:
        self.config = config
        self.author: Author | None = None
        self._workspaces = workspaces
        self._default = config.experience.workspace

    def _pool(self, workspace: str | None) -> ExperiencePool:
        return self._workspaces.pool(workspace or self._default)

    async def retrieve(self, request: Request) -> dict[str, Any]:
        asked = await read_request(self.config.service, request, RetrieveTaskMemory)
        top_k = min(asked.top_k, self.config.service.max_top_k)
        pool = self._pool(asked.workspace_id)
        try:
            found = await asyncio.to_thread(pool.find, query_of(asked.query), top_k)
        except TreadleError as error:
            raise HTTPException(503, f"nothing was searched: {error}") from None
        return {"answer": shown_text(found)}

    async def summarise(self, request: Request) -> dict[str, Any]:
        asked = await read_request(self.config.service, request, SummaryTaskMemory)
        if self.author is None:
            raise HTTPException(503, "no model summarises; set experience.summariser.model in the configuration")
        played = [
            PlayedRollout([message.model_dump() for message in one.messages], one.score) for one in asked.trajectories
        ]
        try:
            added = await self._workspaces.add(asked.workspace_id or self._default, played, self.author)
        except TreadleError as error:
            raise HTTPException(503, f"the trajectories were not summarised: {error}") from None
        return {"answer": shown_text(added), "metadata": {"memory_list": [one.as_json() for one in added]}}

    def lines(self, workspace: str | None) -> bytes:
        """Return the records of a workspace as JSON lines."""
        return write_records(self._pool(workspace).records)
