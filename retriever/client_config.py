"""Settings of the client of retrieval services."""

from __future__ import annotations

from pydantic import Field

from treadle.core.config import Operational, Section
from treadle.core.llm.config import EndpointSettings


class ServiceClientSettings(Section):
    """Retrieval services that all hold the same index."""

    endpoints: Operational[tuple[EndpointSettings, ...]] = Field(min_length=1)
    """Addresses such as `http://localhost:1243`; each search goes to the one with the fewest searches in flight."""
    fingerprint: str | None = None
    """Index that they must hold; filled in when the run starts, with `unknown` where they do not tell."""
    connect_timeout_s: Operational[float] = Field(default=5.0, gt=0)
    """Most time for opening a connection."""
    request_timeout_s: Operational[float] = Field(default=20.0, gt=0)
    """Most time for one attempt of one search; then another one is made, elsewhere where that is possible."""
    retry_limit: Operational[int] = Field(default=5, ge=0)
    """Most retries of one search; one more for each further address."""
    start_wait_s: Operational[float] = Field(default=120.0, ge=0)
    """How long services are waited for that are still loading their index."""
    max_response_bytes: Operational[int] = Field(default=32 << 20, ge=1024)
    """Largest accepted answer."""
