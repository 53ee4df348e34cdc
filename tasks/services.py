"""Asking search services which index they hold: what a run is begun with, it is locked to."""

from __future__ import annotations

import asyncio
from pathlib import Path

from treadle.core.runs import Run, run_exists
from treadle.retriever.client_config import ServiceClientSettings
from treadle.tasks.config import TreadleConfig


def with_index_of_services(config: TreadleConfig, root: str | Path, run_id: str, *, ask: bool = True) -> TreadleConfig:
    """The configuration with the fingerprint of the index that its search services hold; unchanged without services.

    A fingerprint that is set stays: the stage checks it before its first search. Where services are down, or are not
    to be asked, what an existing run was begun with is taken. Raises SearchUnavailable for a new run, and ConfigError.
    """
    service = config.environment.search.service
    if service is None or service.fingerprint is not None or not config.environment.call_limit("search"):
        return config
    fingerprint = _fingerprint(service, root, run_id, ask)
    if fingerprint is None:
        return config
    search = config.environment.search.model_copy(
        update={"service": service.model_copy(update={"fingerprint": fingerprint})}
    )
    return config.model_copy(update={"environment": config.environment.model_copy(update={"search": search})})


def _fingerprint(service: ServiceClientSettings, root: str | Path, run_id: str, ask: bool) -> str | None:
    known = _begun_with(root, run_id)
    if not ask:
        return known
    from treadle.retriever.client import SearchUnavailable, ask_fingerprint

    try:
        return asyncio.run(ask_fingerprint(service))
    except SearchUnavailable:
        if known is None:
            raise
        return known


def _begun_with(root: str | Path, run_id: str) -> str | None:
    if not run_exists(root, run_id):
        return None
    search = Run.open(root, run_id).config().get("environment", {}).get("search", {})
    found = (search.get("service") or {}).get("fingerprint")
    return str(found) if found is not None else None
