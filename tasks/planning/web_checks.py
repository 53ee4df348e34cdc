"""Check what the web search of a run needs."""

from __future__ import annotations

import os
import socket
import time
from urllib.parse import urlsplit

from treadle.core.errors import ArtifactError, ConfigError
from treadle.core.store.roots import open_storage
from treadle.environments.mixture import table_of
from treadle.tasks.config import TreadleConfig, environments_in_use
from treadle.web.config import ProviderSettings, WebSettings

_CONNECT_S = 10.0
"""Timeout for connecting to a search provider."""


def check_web(config: TreadleConfig) -> None:
    """Check the prerequisites of web search for each environment in use that searches the web.

    Raises ConfigError naming the missing API key variable of the search provider, ArtifactError if there is no search
    record to replay from.
    """
    from treadle.web.key_ring import KeyRing
    from treadle.web.record.folder import record_manifest

    for web in _searched_webs(config).values():
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


def _searched_webs(config: TreadleConfig) -> dict[str, WebSettings]:
    """Return the web search settings of the sources' environments that search the web, by environment name."""
    found = {}
    for name, environment in environments_in_use(config).items():
        search = environment.search_tool
        if search is not None and search.web is not None and environment.searches_web:
            found[name] = search.web
    return found


def check_provider(config: TreadleConfig) -> None:
    """Raise SearchUnavailable if a custom search provider refuses connections, because every search would fail.

    It is not checked if there is a search record to answer from: then the provider may not be needed.
    """
    for name, web in _searched_webs(config).items():
        if web.mode != "replay" and web.active_record is None and web.provider is not None:
            _connect(web.provider, table_of(name))


def _connect(provider: ProviderSettings, table: str) -> None:
    from treadle.retriever.client import SearchUnavailable

    if provider.url is None:
        return
    parts = urlsplit(provider.url)
    try:
        place = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        socket.create_connection(place, timeout=_CONNECT_S).close()
    except OSError as error:
        raise SearchUnavailable(
            f"the search provider {provider.type} accepts no connection at {provider.url}: {error}; "
            f"start it, or correct `{table}.search.web.provider.url`"
        ) from error
