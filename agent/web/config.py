"""Settings of web search."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from treadle.core.config import Operational, Section
from treadle.core.storage import is_object_store

WEB_VERSION = 1
"""Raised when the same entries would read otherwise to an agent."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class ProviderSettings(Section):
    """Who is asked for search results."""

    type: Literal["serper", "brave", "bright_data", "searxng"]
    """Serper (Google), Brave, Bright Data (Bing or Google, see `engine`), or a SearXNG of your own."""
    url: Operational[str | None] = None
    """Where it is asked; none means the provider's own address, which SearXNG has not."""
    api_key_envs: Operational[tuple[str, ...]] = ()
    """Names of the environment variables that hold its keys. They take turns, and one that is over its rate rests."""
    engine: Literal["bing", "google"] = "bing"
    """What Bright Data asks."""
    zone: Operational[str | None] = None
    """The zone of Bright Data that the keys are for."""
    max_queries_per_s: Operational[Seconds] = 30.0
    """Most searches started per second."""
    retry_limit: Operational[Annotated[int, Field(ge=0)]] = 3
    """Further tries with each key after an error that may pass."""
    request_timeout_s: Operational[Seconds] = 60.0
    """Most time for one try."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if "@" in value or "?" in value or "#" in value:
            raise ValueError("a provider's URL carries no credentials, query or fragment; name keys in api_key_envs")
        from treadle.agent.web.types import Unfetchable
        from treadle.agent.web.urls import checked_url

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
                "these are names of environment variables, in capitals, such as SERPER_API_KEY; "
                "the keys themselves belong into those variables, never into a configuration"
            )
        if len(set(names)) < len(names):
            raise ValueError("a key that is named twice takes no more turns than one; name each once")
        return names

    @property
    def name(self) -> str:
        """What an entry says of who answered: another name means other results."""
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
    """How pages are fetched."""

    max_fetches: Operational[Count] = 256
    """Pages at once that are fetched, or wait to be read."""
    max_per_host: Operational[Count] = 8
    """Of them, from one host."""
    max_per_query: Operational[Count] = 10
    """Of them, for one search."""
    connect_timeout_s: Operational[Seconds] = 10.0
    """Most time for a connection."""
    attempts: Operational[Annotated[int, Field(ge=1, le=5)]] = 2
    """Tries of a page whose server refuses, breaks off, or says that it is busy."""
    reader_processes: Operational[Annotated[int, Field(ge=1, le=64)]] = 2
    """Confined processes that make text of pages."""
    user_agent: Operational[str] = "treadle (+https://pypi.org/project/treadle)"
    """What servers are told of who asks."""
    allowed_networks: Operational[tuple[str, ...]] = ()
    """Networks such as `10.1.0.0/16` whose addresses may be connected to, beside all that are public."""

    @field_validator("allowed_networks")
    @classmethod
    def _check_networks(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            network = ipaddress.ip_network(value)
            if "%" in value:
                raise ValueError(f"{value} has a zone, which no address of a page can have; name the network alone")
            if isinstance(network, ipaddress.IPv4Network):
                is_wide = network.prefixlen < 8
            elif network.overlaps(_MAPPED):
                raise ValueError(f"{value} holds addresses that are judged as IPv4; name it as an IPv4 network")
            else:
                is_wide = network.prefixlen < 16 and not network.subnet_of(_UNIQUE_LOCAL)
            if is_wide:
                raise ValueError(
                    f"{value} would allow much of the public net, at any port; name the networks that you mean, "
                    "at most an IPv4 /8 or an IPv6 /16 each"
                )
        return values

    @field_validator("user_agent")
    @classmethod
    def _check_user_agent(cls, value: str) -> str:
        if not value.isprintable() or not value.isascii():
            raise ValueError("user_agent is one line of printable ASCII")
        return value


_AGES = ("max_age_days", "failure_max_age_hours")
_ASKING = ("provider", "page_timeout_s", "max_page_bytes")
"""What only matters to who asks."""


class WebSettings(Section):
    """Search of the web, recorded."""

    mode: Literal["record", "refresh", "replay"] = "record"
    """What is asked anew: what no record has (`record`), everything once per run (`refresh`), or nothing (`replay`)."""
    recorded_in: Operational[Path | None] = None
    """Folder of a `web_record` artifact that searches and pages are taken from; a replay needs it. It is kept as a
    whole path."""
    record_digest: str | None = None
    """Its digest; filled in when the run starts."""
    max_age_days: float | None = Field(default=None, gt=0)
    """Older entries of that record are asked for again, in mode `record`. None: none is too old."""
    failure_max_age_hours: float = Field(default=24.0, ge=0)
    """The same for pages that could not be had."""
    provider: ProviderSettings | None = None
    """Who is asked. Only a replay needs nobody."""
    top_n: int = Field(default=5, ge=1, le=20)
    """Hits that are used."""
    pages: bool = True
    """Whether their pages are read; else the agent is shown the snippets."""
    snippet_chars: Count = 1_000
    """Longest snippet that is shown."""
    snippet_match: float = Field(default=0.2, ge=0, lt=1)
    """A passage is cut out around the sentence that is most like the snippet, if its F1 of words is above this."""
    window_chars: Count | None = None
    """Characters on either side of that sentence. None: 3,000 for a summarizer, 1,000 for the agent itself."""
    page_chars: int = Field(default=20_000, ge=1, le=50_000)
    """Characters of a page that are looked at."""
    pdf_words: int = Field(default=600, ge=1, le=5_000)
    """Words of a PDF that are looked at."""
    max_chars: Count = 20_000
    """Longest result: what the agent is shown, or the summarizer."""
    page_timeout_s: Seconds = 20.0
    """Most time for one page, redirects and body included."""
    max_page_bytes: int = Field(default=10 * 1024 * 1024, ge=1)
    """Largest page, as sent and again unpacked."""
    fetch: FetchSettings = FetchSettings()
    """How pages are fetched."""
    cache_mb: Operational[Count] = 64
    """Entries that are held in memory, in MiB."""

    @field_validator("recorded_in")
    @classmethod
    def _whole_path(cls, value: Path | None) -> Path | None:
        # A run is looked into and gone on with from other folders, by the configuration that it keeps.
        return value if value is None or is_object_store(value) else value.expanduser().absolute()

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "replay" and self.recorded_in is None:
            raise ValueError("a replay needs recorded_in, the folder of the web_record artifact to go by")
        if self.mode != "replay" and self.provider is None:
            raise ValueError(f'mode = "{self.mode}" needs a provider; only mode = "replay" asks nobody')
        return self

    @property
    def record_used(self) -> Path | None:
        """The record that entries are taken from; None where there is none, and in a refresh."""
        return self.recorded_in if self.mode != "refresh" else None

    def effective(self) -> Self:
        """See `Section.effective`: a replay asks nobody and takes entries of any age, a refresh takes none."""
        names = {"replay": (*_AGES, *_ASKING), "refresh": ("record_digest", *_AGES), "record": ()}[self.mode]
        fields = type(self).model_fields
        return self.model_copy(update={name: fields[name].get_default() for name in names})

    def as_met(self) -> Self:
        """Settings with what an agent can tell of them alone: how searches and pages are shown.

        Whether they are asked for or replayed, of whom and from which record, is not among that. It is in fingerprints,
        as it decides what a run gets to see, but rollouts of one and the other were made in the same environment.
        """
        return self.model_copy(update={"mode": "replay", "record_digest": None}).effective()
