"""Settings of environments that a service holds."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from treadle.agent.dialects.base import Dialect
from treadle.agent.dialects.free import FreeDialect
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.core.config import Operational
from treadle.core.llm.config import EndpointSettings
from treadle.environments.settings import EnvironmentSettings

_TURNS = 30
"""Default of `max_turns`: the limit of AgentEvolver's rollouts."""


class ServiceSettings(EnvironmentSettings):
    """An environment that a service holds: AgentEvolver's, or that of `treadle environment serve`."""

    type: str = "service"
    """Type of the environment."""
    url: Operational[str] = "http://127.0.0.1:8080"
    """Address of the service, without credentials."""
    env_type: str | None = None
    """Name of the environment at the service; none means the one that it serves."""
    api_key_env: Operational[str | None] = None
    """Name of the environment variable with the key that is sent as `Authorization: Bearer`."""
    splits: dict[Literal["train", "heldout"], str] = {}
    """Names of the splits at the service, such as `{ heldout = "dev" }`, if they differ from ours."""
    params: dict[str, Any] = {}
    """Parameters of the environment, sent with each call."""
    tool_calls: Literal["text", "native"] = "text"
    """`text`: the service reads calls in the text of the model's turn; `native`: it gets them as `tool_calls`, and
    names its tools in `info.tools`."""
    sparse: bool = True
    """Whether the score is 0 or 1; otherwise it may be a fraction."""
    resume: Literal["reenact", "restart"] = "reenact"
    """How an interrupted rollout resumes. `reenact`: its turns are sent again to a new instance, and the replies are
    compared; `restart`: it begins again."""
    max_message_chars: int | None = Field(default=None, ge=1)
    """Longest message of the environment in characters, cut in its middle; none means no limit."""
    timeout_s: Operational[float] = Field(default=300.0, gt=0)
    """Seconds for one answer."""
    retry_limit: Operational[int] = Field(default=5, ge=0)
    """Retries of a call that the service will not carry out twice; after these the rollout stays pending."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most generation calls per rollout; none means 30."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if "@" in value or "#" in value or "?" in value:
            raise ValueError("the address of a service has no credentials, query or fragment")
        return EndpointSettings(url=value).url

    @field_validator("api_key_env")
    @classmethod
    def _check_variable(cls, value: str | None) -> str | None:
        return EndpointSettings(url="http://localhost", api_key_env=value).api_key_env

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        if self.tools:
            raise ValueError("a service provides its own tools; remove environment.tools")
        return self

    @property
    def turn_dialect(self) -> Dialect:
        """See `EnvironmentSettings`."""
        return FunctionsDialect() if self.tool_calls == "native" else FreeDialect()

    def turn_limit(self, additional: int = 0) -> int:
        """See `EnvironmentSettings`."""
        return _TURNS if self.max_turns is None else self.max_turns
