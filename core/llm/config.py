"""Settings of model access: sampling, models and endpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, field_validator, model_validator

from treadle.core.config import Operational, Section
from treadle.core.engines.config import ServerSettings
from treadle.core.llm.extras import check_extra_body, check_headers, check_template_keys

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")


class Sampling(Section):
    """Sampling parameters. Every value is sent with every request, so that server defaults do not apply.

    With `api = "chat"`, values that change nothing are left out if the service may not know the key.
    """

    temperature: float = Field(default=1.0, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    top_p: float = Field(default=0.95, gt=0.0, le=1.0)
    """Share of the probability mass to sample from; 1 means all."""
    top_k: int = Field(default=-1, ge=-1)
    """Number of most likely tokens to sample from; -1 means all."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Minimum probability of a token, relative to the most likely one."""
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    """Divisor for the scores of tokens that already occur in the prompt or answer; 1 means no penalty."""
    max_tokens: int = Field(default=4096, ge=1)
    """Maximum number of new tokens per request."""


class EndpointSettings(Section):
    """OpenAI-compatible server."""

    url: str
    """Base URL up to and including the version, such as `http://localhost:8000/v1`."""
    api_key_env: str | None = None
    """Name, in capitals, of the environment variable that holds the API key; without it no key is sent."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        # First, and without repeating the value: it may hold a secret.
        if "@" in value or "?" in value or "#" in value:
            raise ValueError("an endpoint URL has no credentials, query or fragment; use api_key_env for the key")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or not value.isprintable():
            raise ValueError(f"{value!r} is not an http(s) URL such as http://localhost:8000/v1")
        if parts.port == 0:
            raise ValueError(f"{value!r} names port 0")
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _check_api_key_env(cls, value: str | None) -> str | None:
        if value is not None:
            _check_variable(value)
        return value


def _check_variable(name: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(
            "this is the name of an environment variable, in capitals, such as OPENAI_API_KEY; "
            "the key itself belongs in that variable, never into a configuration"
        )


class ModelSettings(Section):
    """A model and the endpoints that serve it: `[models.<name>]`."""

    model: str = Field(min_length=1)
    """The model's name in requests."""
    revision: str = ""
    """Identifies the weights if the model's name does not; after a change, earlier results are not reused."""
    api: Literal["completions", "chat"] = "completions"
    """Route of the requests: `completions` (vLLM and similar servers), or `chat` for services that offer nothing else.
    A `chat` model can have every role except that of a policy whose own rollouts it is trained on."""
    tokenizer: Operational[Path | None] = None
    """Folder with the model's tokenizer and chat template; without it, prompts are sent as text. Results depend on its
    digest, not its path."""
    endpoints: Operational[tuple[EndpointSettings, ...]] = ()
    """Servers of this model; the requests of one rollout stay on one of them while it is healthy."""
    server: ServerSettings | None = None
    """Server to start when a stage needs the model, and to stop afterwards; leave `endpoints` empty then."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Context window in tokens; must not exceed the server's. Without it, the smallest window that a server reports."""
    extra_body: dict[str, JsonValue] = {}
    """Additional JSON keys of every request, such as `{ reasoning_effort = "low" }` or, with `api = "chat"`,
    `{ chat_template_kwargs = { enable_thinking = false } }`. Keys that Treadle sets itself are refused."""
    headers: Operational[dict[str, str]] = {}
    """Additional headers of every request, such as `{ X-Org = "lab" }`; no secrets."""
    headers_env: Operational[dict[str, str]] = {}
    """Names of environment variables, in capitals, with the values of further headers, such as
    `{ Api-Key = "AZURE_KEY" }`."""
    token_ids: Literal["auto", "required", "off"] = "auto"
    """Token ids in requests and answers: `auto` uses them if the server can, `required` refuses one that cannot."""
    max_in_flight: Operational[int] = Field(default=256, ge=1)
    """Maximum number of requests in flight per endpoint; at most 64 at first, and never more than the server proves to
    handle."""
    connect_timeout_s: Operational[float] = Field(default=10.0, gt=0)
    """Maximum seconds to open a connection."""
    request_timeout_s: Operational[float] = Field(default=600.0, gt=0)
    """Maximum seconds for one attempt of a request; then it is retried."""
    hedge_floor_s: Operational[float | None] = Field(default=2.0, gt=0)
    """Seconds after which a request may be late. A request that takes longer than this, and than 1.5 times the 95th
    percentile of recent answers, is also sent to another endpoint, and the first answer counts; none means never."""
    retry_limit: Operational[int] = Field(default=6, ge=0)
    """Maximum number of retries of a request after failures of the server or the connection, plus one per additional
    endpoint."""
    rate_limit_retries: Operational[int] = Field(default=60, ge=0)
    """Maximum number of retries of a request after the server asked to slow down (429, or 503 with Retry-After)."""
    backoff_base_s: Operational[float] = Field(default=0.5, ge=0)
    """Seconds before the first retry; each further retry doubles the pause, and jitter shortens it by up to half."""
    backoff_max_s: Operational[float] = Field(default=30.0, ge=0)
    """Longest pause between retries in seconds, unless the server asks for a longer one."""
    outage_wait_s: Operational[float] = Field(default=120.0, ge=0)
    """Seconds that a request waits while all endpoints are down, or its own is silent; then its work is pending, and a
    later pass or a resumed run retries it."""
    probe_base_s: Operational[float] = Field(default=1.0, gt=0)
    """Seconds between the first checks of an endpoint that is down, or that does not respond while it holds requests;
    the pause doubles up to `probe_max_s`. An endpoint is silent if it leaves a check unanswered for three times this,
    or longer if checks usually take long."""
    probe_max_s: Operational[float] = Field(default=5.0, gt=0)
    """Longest pause between those checks in seconds."""
    max_response_bytes: Operational[int] = Field(default=64 << 20, ge=1024)
    """Largest accepted answer in bytes; a larger one counts as malformed."""
    prompt_price_per_million: Operational[float | None] = Field(default=None, ge=0.0)
    """Price of a million prompt tokens, in the currency of all prices of this configuration; none means unknown."""
    completion_price_per_million: Operational[float | None] = Field(default=None, ge=0.0)
    """Price of a million sampled tokens, in the same currency; none means unknown."""

    @field_validator("extra_body")
    @classmethod
    def _check_extra_body(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        check_extra_body(value)
        return value

    @field_validator("headers_env")
    @classmethod
    def _check_headers_env(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value.values():
            _check_variable(name)
        return value

    @model_validator(mode="after")
    def _check_additions(self) -> Self:
        """Check the additional keys and headers against the other settings."""
        check_headers(self.headers, self.headers_env)
        if self.api == "completions":
            check_template_keys(self.extra_body)
        has_authorization = any(name.lower() == "authorization" for name in self.headers_env)
        if has_authorization and any(endpoint.api_key_env for endpoint in self.endpoints):
            raise ValueError("headers_env sets Authorization, and so does the api_key_env of an endpoint; keep one")
        return self

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """Names of the environment variables that hold keys of this model."""
        keys = [endpoint.api_key_env for endpoint in self.endpoints if endpoint.api_key_env]
        return (*keys, *self.headers_env.values())

    @model_validator(mode="after")
    def _has_ids_where_they_are_required(self) -> Self:
        if self.api == "chat" and self.token_ids == "required":
            raise ValueError('token_ids = "required" needs api = "completions": the chat route has no token ids')
        return self

    @property
    def continues_text(self) -> bool:
        """True if the model can continue an answer that a request begins; a chat service only reads it as a message."""
        return self.api == "completions"

    @property
    def is_priced(self) -> bool:
        """True if both prices are known."""
        return self.prompt_price_per_million is not None and self.completion_price_per_million is not None

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Return the cost of these numbers of tokens; a kind of token whose price is unknown costs 0."""
        prices = (self.prompt_price_per_million or 0.0, self.completion_price_per_million or 0.0)
        return (prompt_tokens * prices[0] + completion_tokens * prices[1]) / 1e6
