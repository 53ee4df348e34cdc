"""A model pool over scripted servers, and how tests ask it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

from support.servers.scripted_server import RecordedRequest, ScriptedServer

from treadle.core.llm.config import EndpointSettings, ModelSettings, Sampling
from treadle.core.llm.endpoint import Endpoint
from treadle.core.llm.heartbeat import Heartbeat
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion, CompletionRequest

SAMPLING = Sampling(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1, max_tokens=64)
FAST = {"backoff_base_s": 0.0, "probe_base_s": 0.001, "probe_max_s": 0.01, "outage_wait_s": 60.0}


def settings(*servers: ScriptedServer | str, **overrides: object) -> ModelSettings:
    """Return settings of a model with these servers, or URLs, as its endpoints; nothing in them waits for long."""
    urls = [item if isinstance(item, str) else item.url for item in servers]
    endpoints = tuple(EndpointSettings(url=url) for url in urls)
    return ModelSettings.model_validate({"model": "scripted", "endpoints": endpoints, **FAST, **overrides})


def request(text: str = "q", stop: tuple[str, ...] = ("</search>",), seed: int = 1) -> CompletionRequest:
    return CompletionRequest(list(text.encode()), max_tokens=32, sampling=SAMPLING, stop=stop, seed=seed)


async def ask(pool: ModelPool, text: str = "q", session: str = "s", within_s: float = 20.0) -> Completion:
    return await pool.complete(request(text), session=session, deadline=asyncio.get_running_loop().time() + within_s)


def recorder() -> tuple[list[float], Callable[[float], Awaitable[None]]]:
    """Return a stand-in for asyncio.sleep that records its arguments and returns immediately."""
    asked: list[float] = []

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        await asyncio.sleep(0)

    return asked, sleep


def endpoint_at(url: str, max_in_flight: int) -> Endpoint:
    """Return an endpoint outside of any pool, which is never asked whether it is alive."""

    async def ask() -> None: ...

    return Endpoint(EndpointSettings(url=url), max_in_flight, Heartbeat(ask))


def endless(recorded: RecordedRequest) -> str:
    """Return the script of a server that answers every request."""
    return "ok"


async def ask_sessions(pool: ModelPool, sessions: list[str]) -> dict[str, set[str]]:
    """Three calls per session, all at once; session -> endpoints that answered."""
    answered = defaultdict(set)

    async def one(session: str) -> None:
        answered[session].add((await ask(pool, session=session)).endpoint)

    await asyncio.gather(*(one(session) for session in sessions for _ in range(3)))
    return answered


async def warmed(pool: ModelPool) -> None:
    """Send enough requests to measure the usual duration."""
    for number in range(16):
        await ask(pool, str(number), session=str(number))
