"""Check what the web search of a run needs."""

from __future__ import annotations

import os
import socket
import time
from urllib.parse import urlsplit

from treadle.core.errors import ArtifactError, ConfigError
from treadle.core.store.roots import open_storage
from treadle.tasks.config import TreadleConfig
from treadle.web.config import WebSettings

_CONNECT_S = 10.0
"""Timeout for connecting to a search provider."""


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
