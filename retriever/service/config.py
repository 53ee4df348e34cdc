"""Settings of the retrieval service."""

from __future__ import annotations

import ipaddress
import os

from pydantic import Field

from treadle.core.config import Section
from treadle.core.errors import ConfigError
from treadle.retriever.config import IndexSettings


class ServiceSettings(Section):
    """How one service listens and how much it takes."""

    host: str = "127.0.0.1"
    """Address to listen on; any but a loopback address needs `token_env`."""
    port: int = Field(default=1243, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    token_env: str | None = None
    """Environment variable with the token that callers send as `Authorization: Bearer ...`."""
    num_workers: int = Field(default=2, ge=1)
    """Threads that search at once; they share one index."""
    max_batch: int = Field(default=64, ge=1)
    """Most queries that one worker searches together."""
    max_waiting: int = Field(default=1_024, ge=1)
    """Queries that may wait for a worker; more are refused with status 429."""
    max_top_n: int = Field(default=100, ge=1)
    """Most documents per query."""
    max_body_bytes: int = Field(default=2_000_000, ge=1)
    """Largest request."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Longest time for one request, waiting included; then status 504."""
    cache_mib: float = Field(default=64.0, ge=0)
    """Memory for results of earlier queries; 0 keeps none."""
    shutdown_s: int = Field(default=30, ge=0)
    """Time that requests in flight are given when the service is stopped."""

    def token(self) -> str | None:
        """The bearer token; raises ConfigError where one is needed and missing."""
        token = os.environ.get(self.token_env, "") if self.token_env else ""
        if self.token_env and not token:
            raise ConfigError(f"the environment variable {self.token_env} is empty; put the service's token there")
        if not token and not _is_loopback(self.host):
            raise ConfigError(
                f"listening on {self.host} lets others in; name the environment variable of a token with --token-env, "
                "or listen on 127.0.0.1"
            )
        return token or None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RetrieverConfig(Section):
    """The file of `treadle retriever`: an index, and how it is served."""

    index: IndexSettings = IndexSettings()
    """What is searched, and how it is ranked."""
    service: ServiceSettings = ServiceSettings()
    """How it is served."""
