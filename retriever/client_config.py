"""Define the settings of the client of retrieval services."""

from __future__ import annotations

from pydantic import Field

from treadle.core.config import Operational, Section
from treadle.core.llm.config import EndpointSettings


class ServiceClientSettings(Section):
    """Retrieval services that all hold the same index. Those that are not Treadle's are tested with a search first."""

    endpoints: Operational[tuple[EndpointSettings, ...]] = Field(min_length=1)
    """Addresses such as `http://localhost:1243`, or complete ones that end in `/search` or `/retrieve` (Search-R1).
    Each search goes to the endpoint with the fewest searches in flight."""
    fingerprint: str | None = None
    """Fingerprint of the index that they must hold; set when the run starts, to `unknown` if they do not report it."""
    connect_timeout_s: Operational[float] = Field(default=5.0, gt=0)
    """Timeout in seconds for opening a connection."""
    request_timeout_s: Operational[float] = Field(default=20.0, gt=0)
    """Timeout in seconds for one attempt at a search; the next attempt uses another endpoint if possible."""
    retry_limit: Operational[int] = Field(default=5, ge=0)
    """Maximum number of retries of one search; each further endpoint adds one."""
    start_wait_s: Operational[float] = Field(default=120.0, ge=0)
    """Maximum time in seconds to wait for services that are still loading their index."""
    max_response_bytes: Operational[int] = Field(default=32 << 20, ge=1024)
    """Maximum size of an answer in bytes; a larger one is an error."""
