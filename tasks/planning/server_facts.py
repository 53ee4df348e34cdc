"""Ask the servers of models which features they lack, one line per fact, without waiting long for any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.model_sessions import load_tokenizer
from treadle.core.config import load_config
from treadle.core.engines.doctor import Check
from treadle.core.errors import EndpointUnavailable, TreadleError
from treadle.core.llm.config import ModelSettings
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.server_notes import missing_ids, server_notes
from treadle.tasks.config import TreadleConfig, environments_in_use

ASK_S = 10.0
"""Longest time for the facts of all servers; they are asked at the same time."""
_NAME = "asked"
"""Placeholder for a model's name at the start of error messages, which `_short` removes."""
_START = "start the server, or correct its url"


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A model whose servers are asked; `title` names it, and `calls_tools` is true if requests will carry tools."""

    title: str
    settings: ModelSettings
    calls_tools: bool = False


def asked_models(config: TreadleConfig) -> list[AskedModel]:
    """Return the models of a configuration with servers of their own."""
    is_native = any(isinstance(one.turn_dialect, FunctionsDialect) for one in environments_in_use(config).values())
    return [
        AskedModel(f"models.{name}", settings, is_native and not settings.continues_text)
        for name, settings in config.models.items()
        if settings.endpoints
    ]


def endpoint_facts(url: str, model: str, api_key_env: str | None, limit_s: float = ASK_S) -> list[Check]:
    """Return the facts about a model at a URL, over each route; if one route works, the other's failures are warnings.

    Raises ConfigError for an invalid URL or name of an environment variable.
    """
    data = {"model": model, "endpoints": [{"url": url, "api_key_env": api_key_env}]}
    routes = [
        AskedModel(f"{model} over {api}", load_config(ModelSettings, data={**data, "api": api}))
        for api in ("completions", "chat")
    ]
    checks = server_facts(routes, limit_s)
    if all(any(check.name == route.title and check.status == "fail" for check in checks) for route in routes):
        return checks
    return [replace(check, status="warn", fix="") if check.status == "fail" else check for check in checks]


def server_facts(models: Sequence[AskedModel], limit_s: float = ASK_S) -> list[Check]:
    """Return the features that the servers of models lack, with the consequences; a fact's name is the model's title.

    A server that does not answer within `limit_s` seconds, or answers wrongly, is a failed check. Nothing is raised.
    """

    async def ask_all() -> list[list[Check]]:
        return await asyncio.gather(*(_facts(model, limit_s) for model in models))

    return [check for checks in asyncio.run(ask_all()) for check in checks]


async def _facts(model: AskedModel, limit_s: float) -> list[Check]:
    title, settings = model.title, model.settings
    urls = ", ".join(endpoint.url for endpoint in settings.endpoints)
    quick = {"retry_limit": 0, "rate_limit_retries": 0, "connect_timeout_s": min(settings.connect_timeout_s, limit_s)}
    try:
        vocabulary = load_tokenizer(settings.model, settings, "")
        async with asyncio.timeout(limit_s), ModelPool(_NAME, settings.model_copy(update=quick)) as pool:
            facts = await pool.check(vocabulary, calls_tools=model.calls_tools)
    except TimeoutError:
        return [Check(title, "fail", f"{urls} did not answer all questions within {limit_s:g} s", _START)]
    except EndpointUnavailable as error:
        return [Check(title, "fail", _short(error), _START)]
    except TreadleError as error:
        return [Check(title, "fail", _short(error), "correct the model's settings, or its server")]
    found = [Check(title, "ok", f"{urls} serves it")]
    if missing := missing_ids(settings, facts, has_tokenizer=settings.tokenizer is not None):
        found.append(Check(title, "ok" if settings.api == "chat" else "warn", missing))
    notes = server_notes(settings, facts)
    return [*found, *(Check(title, "warn" if note.is_loss else "ok", note.text) for note in notes)]


def _short(error: TreadleError) -> str:
    """Return an error as one line, without the name of the model in front."""
    return " ".join(str(error).split()).removeprefix(f"models.{_NAME}: ")
