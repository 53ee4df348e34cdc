"""Define the settings of the retrieval service."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from treadle.core.config import Section
from treadle.core.errors import ConfigError
from treadle.core.untrusted.origin_guard import is_loopback_name


class ListenSettings(Section):
    """Address of a service, who may call it, and the size of requests."""

    host: str = "127.0.0.1"
    """Address to listen on; any but a loopback address needs `token_env`."""
    port: int = Field(default=0, ge=0, le=65_535)
    """Port to listen on; 0 picks a free one."""
    token_env: str | None = None
    """Environment variable with the token that callers send as `Authorization: Bearer ...`."""
    max_body_bytes: int = Field(default=2_000_000, ge=1)
    """Maximum size of a request in bytes."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Time in seconds in which the body of a request must arrive; then status 408."""

    def token(self) -> str | None:
        """Return the bearer token; raise ConfigError if one is required and missing."""
        token = os.environ.get(self.token_env, "") if self.token_env else ""
        if self.token_env and not token:
            raise ConfigError(f"the environment variable {self.token_env} is empty; put the service's token there")
        if not token and not is_loopback_name(self.host):
            raise ConfigError(
                f"other machines can reach {self.host}; name the environment variable of a token with --token-env, "
                "or listen on 127.0.0.1"
            )
        return token or None


class ServiceSettings(ListenSettings):
    """Address, capacity and limits of one service."""

    api: Literal["flashrag", "afm"] = "flashrag"
    """Whose requests `/search` takes: FlashRAG's (`query`, documents of the index), or those of Agent Foundation Models
    (`q`, hits of the web or of the index). The other routes are the same."""
    port: int = Field(default=1243, ge=0, le=65_535)
    """Port to listen on; 0 picks a free one."""
    num_workers: int = Field(default=2, ge=1)
    """Number of threads that search at once; they share one index."""
    max_batch: int = Field(default=64, ge=1)
    """Maximum number of queries that one worker searches together."""
    max_waiting: int = Field(default=1_024, ge=1)
    """Maximum number of queries waiting for a worker; more are refused with status 429."""
    max_top_n: int = Field(default=100, ge=1)
    """Maximum number of documents per query."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Timeout of one request in seconds, waiting included; then status 504."""
    cache_mib: float = Field(default=64.0, ge=0)
    """Memory for results of earlier queries in MiB; 0 disables the cache."""
    shutdown_s: int = Field(default=30, ge=0)
    """Seconds that requests in flight are given when the service is stopped."""
