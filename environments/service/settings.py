"""Define the settings of the environment service."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from treadle.core.config import Section
from treadle.core.errors import ConfigError
from treadle.environments.registry import AnyEnvironment
from treadle.retriever.service.config import ListenSettings


class EnvironmentServiceSettings(ListenSettings):
    """Address, capacity and limits of the environment service."""

    port: int = Field(default=8080, ge=0, le=65_535)
    """Port to listen on; 0 picks a free one."""
    max_instances: int = Field(default=4_096, ge=1)
    """Most live instances; one more is refused with status 429."""
    max_processes: int = Field(default=256, ge=1)
    """Most processes of instances, for types that need one each; one more is refused with status 429."""
    call_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that a call may take, unless `params.timeout_s` sets another limit; a longer call breaks its instance."""
    max_call_timeout_s: float = Field(default=3_600.0, gt=0)
    """Largest time limit of a call in seconds that `params.timeout_s` can set."""
    idle_timeout_s: float = Field(default=3_600.0, gt=0)
    """Seconds without a call after which an instance is released."""
    sweep_interval_s: float = Field(default=300.0, gt=0)
    """Seconds between two searches for idle instances."""
    close_timeout_s: float = Field(default=5.0, ge=0)
    """Seconds that an instance gets to close by itself; then it is killed."""
    drain_s: float = Field(default=10.0, ge=0)
    """Seconds that calls in flight get to end when the service is stopped; then all instances are released."""
    kept_reply_bytes: int = Field(default=32_768, ge=0)
    """Most bytes of replies that an instance keeps for repeated requests, besides the last reply."""
    max_body_bytes: int = Field(default=8_000_000, ge=1)
    """Maximum size of a request in bytes."""


def served_names(types: Iterable[str]) -> dict[str, str]:
    """Return name -> type; callers send the names as `env_type`, so names do not show folders of this machine.

    Raises ConfigError if two have the same name.
    """
    found: dict[str, str] = {}
    for one in types:
        name = one.rstrip("/").rpartition("/")[2]
        one = _class_in(Path(one)) or one
        if found.setdefault(name, one) != one:
            raise ConfigError(f"{found[name]} and {one} are both served as {name}; name them under [environments]")
    return found


def _class_in(folder: Path) -> str | None:
    """Return the class of a folder in AgentEvolver's layout, `name/name_env.py:NameEnv`; None for another layout."""
    file = folder / f"{folder.name}_env.py"
    return f"{file}:{folder.name.capitalize()}Env" if file.is_file() else None


class EnvironmentServiceConfig(Section):
    """The configuration file of `treadle environment serve`."""

    service: EnvironmentServiceSettings = EnvironmentServiceSettings()
    """Address and limits of the service."""
    environments: dict[str, AnyEnvironment] = {}
    """Environments by the name that callers send as `env_type`."""
