"""Settings of web search."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from treadle.core.config import Operational, Section
from treadle.core.store.roots import is_object_store

WEB_VERSION = 1
"""Version in the environment's digest; increment it if the same entries are rendered differently for an agent."""

AGENT_WINDOW_CHARS = 1_000
"""Default of `window_chars`: characters on either side of a sentence (arXiv 2601.06860)."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class ProviderSettings(Section):
    """Search provider."""

    type: Literal["serper", "brave", "bright_data", "searxng"]
    """Serper (Google), Brave, Bright Data (Bing or Google, see `engine`), or a self-hosted SearXNG."""
    url: Operational[str | None] = None
    """Base URL; none means the provider's own address. SearXNG needs one."""
    api_key_envs: Operational[tuple[str, ...]] = ()
    """Names of environment variables that hold API keys. Keys are used in turn; a rate-limited key pauses."""
    engine: Literal["bing", "google"] = "bing"
    """Search engine that Bright Data queries."""
    zone: Operational[str | None] = None
    """Bright Data zone of the keys."""
    max_queries_per_s: Operational[Seconds] = 30.0
    """Most searches started per second."""
    retry_limit: Operational[Annotated[int, Field(ge=0)]] = 3
    """Retries per key after a retryable error."""
    request_timeout_s: Operational[Seconds] = 60.0
    """Timeout of one attempt in seconds."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if "@" in value or "?" in value or "#" in value:
            raise ValueError("a provider's URL carries no credentials, query or fragment; name keys in api_key_envs")
        from treadle.web.types import Unfetchable
        from treadle.web.urls import checked_url

        try:
            checked_url(value)
        except Unfetchable as error:
            raise ValueError(f"{value!r} is not an http(s) URL such as http://localhost:8888: {error.detail}") from None
        if not value.isascii():
            raise ValueError(f"{value!r} is not an http(s) URL in ASCII; write such a host as xn--...")
        return value.strip().rstrip("/")

    @field_validator("api_key_envs")
    @classmethod
    def _check_api_key_envs(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_VARIABLE.fullmatch(name) for name in names):
            raise ValueError(
                "api_key_envs lists names of environment variables, in capitals, such as SERPER_API_KEY; "
                "put the keys into those variables, never into a configuration"
            )
        if len(set(names)) < len(names):
            raise ValueError("api_key_envs lists a variable twice; list each once")
        return names

    @property
    def name(self) -> str:
        """Name of the provider in entries; a different name means different results."""
        return f"bright_data/{self.engine}" if self.type == "bright_data" else self.type

    @model_validator(mode="after")
    def _check_needs(self) -> Self:
        if self.type == "searxng" and self.url is None:
            raise ValueError("a provider of type searxng needs its url, such as http://localhost:8888")
        if self.type != "searxng" and not self.api_key_envs:
            raise ValueError(f"a provider of type {self.type} needs api_key_envs, the variables that hold its keys")
        if self.type == "bright_data" and self.zone is None:
            raise ValueError("a provider of type bright_data needs the zone that its keys are for")
        return self


class FetchSettings(Section):
    """Limits of page fetches."""

    max_fetches: Operational[Count] = 256
    """Most pages that are being fetched, or wait to be read, at once."""
    max_per_host: Operational[Count] = 8
    """Most of these pages from one host."""
    max_per_query: Operational[Count] = 10
    """Most of these pages for one search."""
    connect_timeout_s: Operational[Seconds] = 10.0
    """Connection timeout in seconds."""
    attempts: Operational[Annotated[int, Field(ge=1, le=5)]] = 2
    """Attempts per page if the server refuses the connection, breaks it off, or reports that it is busy."""
    reader_processes: Operational[Annotated[int, Field(ge=1, le=64)]] = 2
    """Sandboxed processes that extract text from pages."""
    user_agent: Operational[str | None] = None
    """Value of the User-Agent header; None sends `treadle/` and the version."""
    allowed_networks: Operational[tuple[str, ...]] = ()
    """Networks such as `10.1.0.0/16` that may be connected to in addition to public addresses, at any port."""

    @field_validator("allowed_networks")
    @classmethod
    def _check_networks(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            network = ipaddress.ip_network(value)
            if "%" in value:
                raise ValueError(
                    f"{value} has a zone (the part after %), which a URL cannot have; give the network without it"
                )
            if isinstance(network, ipaddress.IPv4Network):
                is_wide = network.prefixlen < 8
            elif network.overlaps(_MAPPED):
                raise ValueError(f"{value} holds IPv4-mapped addresses; give it as an IPv4 network")
            else:
                is_wide = network.prefixlen < 16 and not network.subnet_of(_UNIQUE_LOCAL)
            if is_wide:
                raise ValueError(
                    f"{value} would allow much of the public internet, at any port; list the networks that you mean, "
                    "at most an IPv4 /8 or an IPv6 /16 each"
                )
        return values

    @field_validator("user_agent")
    @classmethod
    def _check_user_agent(cls, value: str | None) -> str | None:
        if value is not None and (not value.isprintable() or not value.isascii()):
            raise ValueError("user_agent is one line of printable ASCII")
        return value


_AGE_KEYS = ("max_age_days", "failure_max_age_hours")
_REQUEST_KEYS = ("provider", "page_timeout_s", "max_page_bytes")
"""Keys that only matter if the web is requested, so not in a replay."""


class WebSettings(Section):
    """Web search with recorded results."""

    mode: Literal["record", "refresh", "replay"] = "record"
    """Which requests are sent to the web. `record`: those that no record has; `refresh`: all, once per run; `replay`:
    nothing."""
    recorded_in: Operational[Path | None] = None
    """Folder of a `web_record` artifact from which searches and pages are reused; required for a replay. In mode
    `record`, searches by another provider are requested again. Stored as an absolute path."""
    record_digest: str | None = None
    """Digest of that artifact; filled in when the run starts."""
    max_age_days: float | None = Field(default=None, gt=0)
    """Entries of that record older than this are requested again, in mode `record`; none means no age limit."""
    failure_max_age_hours: float = Field(default=24.0, ge=0)
    """The same for pages that could not be fetched."""
    provider: ProviderSettings | None = None
    """Search provider. Only a replay works without one."""
    top_n: int = Field(default=5, ge=1, le=20)
    """Hits used per search."""
    pages: bool = True
    """Whether the hits' pages are fetched; otherwise the agent is shown the snippets."""
    snippet_chars: Count = 1_000
    """Most characters of a snippet."""
    snippet_match: float = Field(default=0.2, ge=0, lt=1)
    """Least word F1 (exclusive) between a sentence and the snippet for a passage to be cut out around that sentence."""
    window_chars: Count | None = None
    """Characters kept on either side of that sentence; none means 3,000 for a summarizer and 1,000 for the agent
    itself."""
    page_chars: int = Field(default=20_000, ge=1, le=50_000)
    """Most characters of a page that are used."""
    pdf_words: int = Field(default=600, ge=1, le=5_000)
    """Most words of a PDF that are used."""
    max_chars: Count = 20_000
    """Most characters of a result, for the agent or the summarizer."""
    page_timeout_s: Seconds = 20.0
    """Timeout of one page in seconds, redirects and body included."""
    max_page_bytes: int = Field(default=10 * 1024 * 1024, ge=1)
    """Largest page in bytes; applies to the body as sent and to the decompressed body."""
    fetch: FetchSettings = FetchSettings()
    """Limits of page fetches."""
    cache_mb: Operational[Count] = 64
    """Size of the in-memory cache of entries, in MiB."""

    @field_validator("recorded_in")
    @classmethod
    def _resolve_path(cls, value: Path | None) -> Path | None:
        # A run is inspected and resumed from other folders, with the configuration that it stores.
        return value if value is None or is_object_store(value) else value.expanduser().absolute()

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "replay" and self.recorded_in is None:
            raise ValueError('mode = "replay" needs recorded_in, the folder of a web_record artifact')
        if self.mode != "replay" and self.provider is None:
            raise ValueError(f'mode = "{self.mode}" needs a provider; only mode = "replay" sends no request')
        return self

    @property
    def active_record(self) -> Path | None:
        """Record from which entries are reused; None without one, and in a refresh."""
        return self.recorded_in if self.mode != "refresh" else None

    def effective(self) -> Self:
        """See `Section.effective`: a replay ignores the provider and entry ages, a refresh ignores the record."""
        names = {"replay": (*_AGE_KEYS, *_REQUEST_KEYS), "refresh": ("record_digest", *_AGE_KEYS), "record": ()}[
            self.mode
        ]
        fields = type(self).model_fields
        return self.model_copy(update={name: fields[name].get_default() for name in names})

    def without_source(self) -> Self:
        """Return the settings reduced to what an agent can observe: how searches and pages are shown.

        Mode, provider and record are dropped. They are in fingerprints, since they decide the content that a run sees,
        but runs that differ only in them have the same environment.
        """
        return self.model_copy(update={"mode": "replay", "record_digest": None}).effective()
