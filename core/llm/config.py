"""Settings of model access: how to sample, which model, which endpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from treadle.core.config import Operational, Section
from treadle.core.engines.config import ServerSettings

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")


class Sampling(Section):
    """How completions are drawn. Every value is sent in every request, so no server default decides."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    top_p: float = Field(default=0.95, gt=0.0, le=1.0)
    """Share of probability mass that is sampled from."""
    top_k: int = Field(default=-1, ge=-1)
    """Number of most likely tokens that are sampled from; -1 means all."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Least probability of a token, relative to the likeliest one."""
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    """Divides the scores of tokens that already occur in prompt or answer; 1 means none."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most new tokens of one request."""


class EndpointSettings(Section):
    """One OpenAI-compatible server."""

    url: str
    """Base URL up to and including the version, such as `http://localhost:8000/v1`."""
    api_key_env: str | None = None
    """Name, in capitals, of the environment variable that holds the key; nothing is sent where it is not given."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        # Before all else, and without repeating it: what is refused here may be a secret.
        if "@" in value or "?" in value or "#" in value:
            raise ValueError("an endpoint URL carries no credentials, query or fragment; name the key in api_key_env")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or not value.isprintable():
            raise ValueError(f"{value!r} is not an http(s) URL such as http://localhost:8000/v1")
        if parts.port == 0:
            raise ValueError(f"{value!r} names port 0")
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _check_api_key_env(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE.fullmatch(value):
            raise ValueError(
                "this is the name of an environment variable, in capitals, such as OPENAI_API_KEY; "
                "the key itself belongs into that variable, never into a configuration"
            )
        return value


class ModelSettings(Section):
    """One model and the endpoints that serve it: `[models.<name>]`."""

    model: str = Field(min_length=1)
    """The model's name in requests."""
    revision: str = ""
    """Which weights stand behind the name, where the name does not say it; changing it makes results new ones."""
    api: Literal["completions", "chat"] = "completions"
    """How it is asked: `completions` of a prompt (vLLM and the like), or `chat` for services that have nothing else;
    these can be the agent of `rollouts` (so of `eval`), judge and summarizer."""
    tokenizer: Operational[Path | None] = None
    """Folder with the model's tokenizer and chat template; none means text mode. Its digest, not its path, counts."""
    endpoints: Operational[tuple[EndpointSettings, ...]] = ()
    """Servers of this model; a question's requests stay on one of them while it is healthy."""
    server: ServerSettings | None = None
    """A server that is started when a stage needs the model, and stopped with it; then `endpoints` stays empty."""
    max_model_len: int | None = Field(default=None, ge=1)
    """The window in tokens; none means what the server says."""
    token_ids: Literal["auto", "required", "off"] = "auto"
    """Whether requests and answers carry token ids: `auto` asks the server, `required` refuses one that cannot."""
    max_in_flight: Operational[int] = Field(default=256, ge=1)
    """Most requests in flight per endpoint; at most 64 at first, and never more than the server is found to take."""
    connect_timeout_s: Operational[float] = Field(default=10.0, gt=0)
    """Most time for opening a connection."""
    request_timeout_s: Operational[float] = Field(default=600.0, gt=0)
    """Most time for one attempt of one request; then it is tried again."""
    hedge_floor_s: Operational[float | None] = Field(default=2.0, gt=0)
    """A request that waits longer than this, and 1.5 times what 95 % of recent answers took, is also sent to another
    endpoint, and the first answer counts; none means never."""
    retry_limit: Operational[int] = Field(default=6, ge=0)
    """Most retries of one request after failures of the server or the connection."""
    rate_limit_retries: Operational[int] = Field(default=60, ge=0)
    """Most retries of one request after the server asked to slow down (429, or 503 with Retry-After)."""
    backoff_base_s: Operational[float] = Field(default=0.5, ge=0)
    """Pause before the first retry; each further one doubles it, and jitter shortens it by up to a half."""
    backoff_max_s: Operational[float] = Field(default=30.0, ge=0)
    """Longest pause between retries, unless the server asks for a longer one."""
    outage_wait_s: Operational[float] = Field(default=120.0, ge=0)
    """How long a request waits for any endpoint while all are down; then its work is owed to a resumed run."""
    probe_base_s: Operational[float] = Field(default=1.0, gt=0)
    """First pause between checks whether an endpoint that was down is back; doubles up to `probe_max_s`."""
    probe_max_s: Operational[float] = Field(default=5.0, gt=0)
    """Longest pause between those checks."""
    max_response_bytes: Operational[int] = Field(default=64 << 20, ge=1024)
    """Largest accepted answer; a larger one counts as malformed."""
    prompt_price_per_million: Operational[float | None] = Field(default=None, ge=0.0)
    """What a million prompt tokens cost, in the currency of all prices of this configuration; none means unknown."""
    completion_price_per_million: Operational[float | None] = Field(default=None, ge=0.0)
    """What a million sampled tokens cost, in the same currency; none means unknown."""

    @model_validator(mode="after")
    def _has_ids_where_they_are_required(self) -> Self:
        if self.api == "chat" and self.token_ids == "required":
            raise ValueError('token_ids = "required" needs api = "completions": the chat route has no token ids')
        return self

    @property
    def is_priced(self) -> bool:
        """Whether both prices are known."""
        return self.prompt_price_per_million is not None and self.completion_price_per_million is not None

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """What so many tokens cost; 0 for a kind of token whose price is unknown."""
        prices = (self.prompt_price_per_million or 0.0, self.completion_price_per_million or 0.0)
        return (prompt_tokens * prices[0] + completion_tokens * prices[1]) / 1e6
