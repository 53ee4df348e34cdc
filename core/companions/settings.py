"""Define the entries of `[[companions]]`: programs that run while a run does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from treadle.core.config import Section
from treadle.core.untrusted.secrets import is_secret_name

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=.*)?", re.DOTALL)


class CompanionSettings(Section):
    """A program that is started before the stages of a run and stopped after them."""

    name: str
    """Name in messages and commands: lower-case letters, digits, `-` and `_`."""
    command: tuple[str, ...] = Field(min_length=1)
    """Program and its arguments: a list, or one line with quotes as in a shell. No shell runs it."""
    folder: Path | None = None
    """Folder that it runs in, relative to that of `treadle`; none means the same."""
    ready_url: str | None = None
    """Address that answers 2xx once it is ready, such as `http://127.0.0.1:8080/healthz`."""
    ready_text: str | None = Field(default=None, min_length=1)
    """Text that it prints when it is ready. With `ready_url` as well, both must hold."""
    reuse: bool = True
    """Use a program of others that is ready at `ready_url` already, and leave it running; otherwise the run is refused.
    What `treadle companions start` keeps running is used in any case."""
    env: tuple[str, ...] = ()
    """`NAME` passes a variable of Treadle's environment, `NAME=value` sets one that is no key or password. Variables
    whose names do not look like those are passed in any case."""
    start_timeout_s: float = Field(default=1800.0, gt=0)
    """Longest time until it is ready, in seconds."""
    stop_timeout_s: float = Field(default=10.0, ge=0)
    """Time between SIGTERM and SIGKILL when it is stopped, in seconds."""

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return shlex.split(value) if isinstance(value, str) else value

    @field_validator("command")
    @classmethod
    def _check_command(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value[0] or any("\0" in word for word in value):
            raise ValueError("a command begins with the name of a program, and has no zero bytes")
        return value

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("a name has 1 to 40 lower-case letters, digits, - and _, and starts with a letter")
        return value

    @field_validator("ready_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if "@" in value or not value.isprintable():
            raise ValueError("a readiness address has no credentials")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(f"{value!r} is not an http(s) URL such as http://127.0.0.1:8080/healthz")
        return value

    @field_validator("env")
    @classmethod
    def _check_env(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            if not _VARIABLE.fullmatch(entry) or "\0" in entry:
                raise ValueError(f"{entry.partition('=')[0]!r} is neither NAME nor NAME=value")
            name, separator, _ = entry.partition("=")
            if separator and is_secret_name(name):
                raise ValueError(f"{name} is stored with the run; set it in the environment, and pass it as {name!r}")
        return value

    @model_validator(mode="after")
    def _check_readiness(self) -> Self:
        if self.ready_url is None and self.ready_text is None:
            raise ValueError(f"companion {self.name} has neither ready_url nor ready_text; set one of them")
        return self

    @property
    def title(self) -> str:
        """Name of the companion in messages."""
        return f"companion {self.name}"


def check_names(companions: tuple[CompanionSettings, ...]) -> tuple[CompanionSettings, ...]:
    """Return the companions; raise ValueError if two have one name."""
    names = [one.name for one in companions]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two companions are named {twice[0]!r}; rename one")
    return companions
