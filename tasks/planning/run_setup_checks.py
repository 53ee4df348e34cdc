"""Check the models, web search and API keys that a run needs before it is created."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from treadle.core.errors import ArtifactError, ConfigError, EndpointUnavailable
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.core.store.roots import open_storage
from treadle.core.untrusted.secrets import refuse_secrets
from treadle.datagen.pools.entry import pool_models
from treadle.datagen.sft_rows.entry import rolled_out_policy
from treadle.eval.entry import score_models
from treadle.rl.phases import sampling_model
from treadle.tasks.config import TreadleConfig, overridden
from treadle.tasks.planning.flow_plan import FlowPlan
from treadle.tasks.planning.order import flow_phases
from treadle.web.config import WebSettings

_CHECK_S = 30.0
"""Longest time a server may take to answer before a run is created. A slower one is checked again by the stage."""

_CONNECT_S = 10.0
"""Timeout for connecting to a search provider."""


def key_variables(config: TreadleConfig) -> set[str]:
    """Return the environment variables that the configuration reads API keys from."""
    endpoints = [endpoint for model in config.models.values() for endpoint in model.endpoints]
    search = config.environment.search_tool
    if search is not None:
        endpoints += [*search.encoder.endpoints, *(search.service.endpoints if search.service else ())]
    named = {endpoint.api_key_env for endpoint in endpoints if endpoint.api_key_env}
    if search is not None and search.web is not None and search.web.provider is not None:
        named.update(search.web.provider.api_key_envs)
    return named


def check_secrets(config: TreadleConfig, *data: Any) -> None:
    """Raise ConfigError if JSON-able data contains a secret from the environment."""
    refuse_secrets(_texts(list(data)), named=key_variables(config))


def _texts(tree: Any) -> Iterator[str]:
    """Yield all strings in JSON-able data, including keys."""
    if isinstance(tree, Mapping):
        tree = [*tree.keys(), *tree.values()]
    if isinstance(tree, list):
        for item in tree:
            yield from _texts(item)
    elif isinstance(tree, str):
        yield tree


def check_web(config: TreadleConfig) -> None:
    """Check the prerequisites of web search, if the configuration searches the web.

    Raises ConfigError naming the missing API key variable of the search provider, ArtifactError if there is no search
    record to replay from.
    """
    from treadle.web.key_ring import KeyRing
    from treadle.web.record.folder import record_manifest

    web = _searched_web(config)
    if web is None:
        return
    if web.provider is not None and web.mode != "replay":
        KeyRing(web.provider.api_key_envs, os.environ, clock=time.monotonic)
    if web.active_record is not None:
        record_manifest(open_storage(web.active_record))


def web_problem(config: TreadleConfig) -> str | None:
    """Return the message of `check_web` if a prerequisite of web search is missing."""
    try:
        check_web(config)
    except (ArtifactError, ConfigError) as problem:
        return str(problem)
    return None


def _searched_web(config: TreadleConfig) -> WebSettings | None:
    search = config.environment.search_tool
    return search.web if search is not None and config.environment.searches_web else None


def check_provider(config: TreadleConfig) -> None:
    """Raise SearchUnavailable if a custom search provider refuses connections, because every search would fail.

    It is not checked if there is a search record to answer from: then the provider may not be needed.
    """
    from treadle.retriever.client import SearchUnavailable

    web = _searched_web(config)
    if web is None or web.mode == "replay" or web.active_record is not None:
        return
    if web.provider is None or web.provider.url is None:
        return
    parts = urlsplit(web.provider.url)
    try:
        place = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        socket.create_connection(place, timeout=_CONNECT_S).close()
    except OSError as error:
        raise SearchUnavailable(
            f"the search provider {web.provider.type} accepts no connection at {web.provider.url}: {error}; "
            "start it, or correct `environment.search.web.provider.url`"
        ) from error


def check_roles(config: TreadleConfig) -> None:
    """Raise ConfigError if a model's API cannot support one of its roles, regardless of what its server reports."""
    from treadle.agent.model_sessions import check_api

    sampled = [("policy", sampling_model(FlowPlan(config)))] if flow_phases(config, 1) else []
    for role, name in (*sampled, *_played_roles(config)):
        check_api(role, name, config.models[name])


def _played_roles(config: TreadleConfig) -> list[tuple[str, str]]:
    """Return the unique pairs of `pools` role and model name over all iterations."""
    if "pools" not in config.flow.stages:
        return []
    plan, iterations = FlowPlan(config), range(1, config.flow.iterations + 1)
    played = (pool_models(plan, Address(number, "pools")).items() for number in iterations)
    return list(dict.fromkeys(pair for pairs in played for pair in pairs))


def check_models(config: TreadleConfig, known: Collection[str]) -> None:
    """Raise ConfigError if a server that answers does not serve its model as configured.

    Servers that do not answer are skipped, because they may start later. Models in `known` are not checked again.
    """
    import asyncio

    from treadle.agent.model_sessions import AGENT, check_sampling
    from treadle.core.llm.pool import ModelPool

    async def check(name: str, settings: ModelSettings) -> None:
        limits = {"retry_limit": 0, "request_timeout_s": min(settings.request_timeout_s, _CHECK_S)}
        async with ModelPool(name, settings.model_copy(update=limits)) as pool:
            with suppress(EndpointUnavailable):
                facts = await pool.check()
                if name in agents:
                    options = overridden(config, Address(1, "rollouts", name), config.rollouts)
                    check_sampling(AGENT, name, options.sampling, facts)

    plan = FlowPlan(config)
    rolled_out = rolled_out_policy(plan, 1)
    policies = tuple(dict.fromkeys((*plan.compared_models(), *((rolled_out,) if rolled_out else ()))))
    agents = policies if "rollouts" in config.flow.stages else ()
    measured = [Address(1, "scores", name) for name in policies] if "scores" in config.flow.stages else []
    used = [
        *policies,
        *(name for _, name in _played_roles(config)),
        *(judge for address in measured for judge in score_models(plan, address)),
    ]
    helper = config.environment.summarizer
    for name in dict.fromkeys((*used, *((helper,) if helper else ()))):
        if name not in known and (settings := config.models[name]).endpoints:
            asyncio.run(check(name, settings))


def has_keys(settings: ModelSettings) -> bool:
    """Return whether the environment has all API keys that the model's endpoints need."""
    named = (endpoint.api_key_env for endpoint in settings.endpoints)
    return all(os.environ.get(name) for name in named if name)
