"""Fill in which index the search services of a run have, so that its results are tied to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.core.runs.run import Run, run_exists
from treadle.environments.mixture import environments_of
from treadle.retriever.client_config import ServiceClientSettings
from treadle.tasks.config import TreadleConfig, environments_in_use


def with_service_fingerprint(
    config: TreadleConfig, root: str | Path, run_id: str, *, ask: bool = True
) -> TreadleConfig:
    """Return the configuration with the fingerprints of the index of each environment's search services.

    Only environments of configured sources count. Unchanged without services.

    A service that reports no fingerprint is tried with one search, so that a wrong address fails before anything is
    paid for. A fingerprint that is already set is kept: the stage checks it before its first search. If services are
    down, or `ask` is false, the fingerprint of the existing run is used. Raises SearchUnavailable for a new run,
    ToolError and ConfigError.
    """
    found = {}
    for name, environment in environments_in_use(config).items():
        search = environment.search_tool
        service = search.service if search is not None else None
        if search is None or service is None or service.fingerprint is not None:
            continue
        fingerprint = _fingerprint(service, search.top_n, root, run_id, name, ask)
        if fingerprint is not None:
            told = search.model_copy(update={"service": service.model_copy(update={"fingerprint": fingerprint})})
            found[name] = environment.with_search(told)
    if not found:
        return config
    default = found.pop(DEFAULT_ENVIRONMENT, config.environment)
    return config.model_copy(update={"environment": default, "environments": {**config.environments, **found}})


def _fingerprint(
    service: ServiceClientSettings, top_n: int, root: str | Path, run_id: str, name: str, ask: bool
) -> str | None:
    known: str | None = None
    if run_exists(root, run_id):
        stored = environments_of(Run.open(root, run_id).readable_config()).get(name) or {}
        known = (stored.get("search", {}).get("service") or {}).get("fingerprint")
    if not ask:
        return known
    from treadle.retriever.client import SearchUnavailable, ask_fingerprint

    try:
        return asyncio.run(ask_fingerprint(service, top_n))
    except SearchUnavailable:
        if known is None:
            raise
        return known
