"""Ask search services for the fingerprint of their index, which a run is locked to."""

from __future__ import annotations

import asyncio
from pathlib import Path

from treadle.core.runs.run import Run, run_exists
from treadle.retriever.client_config import ServiceClientSettings
from treadle.tasks.config import TreadleConfig


def with_service_fingerprint(
    config: TreadleConfig, root: str | Path, run_id: str, *, ask: bool = True
) -> TreadleConfig:
    """Return the configuration with the fingerprint of its search services' index; unchanged without services.

    A service that reports no fingerprint is tried with one search, so that a wrong address fails before anything is
    paid for. A fingerprint that is already set is kept: the stage checks it before its first search. If services are
    down, or `ask` is false, the fingerprint of the existing run is used. Raises SearchUnavailable for a new run,
    ToolError and ConfigError.
    """
    search = config.environment.search_tool
    service = search.service if search is not None else None
    if search is None or service is None or service.fingerprint is not None:
        return config
    fingerprint = _fingerprint(service, search.top_n, root, run_id, ask)
    if fingerprint is None:
        return config
    told = search.model_copy(update={"service": service.model_copy(update={"fingerprint": fingerprint})})
    return config.model_copy(update={"environment": config.environment.with_search(told)})


def _fingerprint(service: ServiceClientSettings, top_n: int, root: str | Path, run_id: str, ask: bool) -> str | None:
    known = _stored_fingerprint(root, run_id)
    if not ask:
        return known
    from treadle.retriever.client import SearchUnavailable, ask_fingerprint

    try:
        return asyncio.run(ask_fingerprint(service, top_n))
    except SearchUnavailable:
        if known is None:
            raise
        return known


def _stored_fingerprint(root: str | Path, run_id: str) -> str | None:
    if not run_exists(root, run_id):
        return None
    search = Run.open(root, run_id).readable_config().get("environment", {}).get("search", {})
    found = (search.get("service") or {}).get("fingerprint")
    return str(found) if found is not None else None
