"""A case to judge, and a judge with a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.servers.scripted_server import Item, ScriptedServer

from treadle.agent.call_cache import NullCache
from treadle.agent.judges.cases import Case, Verdict, Verifier
from treadle.agent.role import RoleModel
from treadle.agent.role_settings import JudgeSampling
from treadle.core.llm.config import EndpointSettings, ModelSettings
from treadle.core.llm.pool import ModelPool

FAR = 1e12
CASE = Case("Who wrote it?", ("Ann Reed",), (), "math", "A. Reed", True, 5, "question-1", FAR)


@asynccontextmanager
async def asked(*script: Item, **overrides: object) -> AsyncIterator[tuple[RoleModel, ScriptedServer]]:
    """Yield a judge model behind real HTTP that answers from the script."""
    async with ScriptedServer(list(script)) as server:
        settings = {"model": "scripted", "endpoints": (EndpointSettings(url=server.url),), "backoff_base_s": 0.0}
        async with ModelPool("judge", ModelSettings.model_validate({**settings, **overrides})) as pool:
            yield RoleModel("judge", "judge", pool, JudgeSampling()), server


async def judged(judge: Verifier, case: Case) -> Verdict:
    async with judge:
        return await judge.verdict(case, NullCache())
