"""Define the keys of an MCP server as an entry of `environment.tools`."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from treadle.agent.tools.schema import NAME_PATTERN
from treadle.agent.tools.settings import ToolSettings
from treadle.core.config import Operational, config_folders
from treadle.core.untrusted.input_files import file_sha256
from treadle.core.untrusted.secrets import is_secret_name

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset({"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"})
_STDIO_KEYS = ("network", "read", "env", "sandbox", "memory_mb")
_HTTP_KEYS = ("api_key_env", "allowed_networks")


class McpServerSettings(ToolSettings):
    """Keys of an MCP server whose tools an agent may call, under the names `NAME_tool`."""

    type: Literal["mcp"] = "mcp"
    command: tuple[str, ...] = ()
    """Program of a stdio server and its arguments. A relative path that `read` lists refers to that file."""
    url: Operational[str | None] = None
    """Endpoint of a streamable HTTP server, such as `https://tools.example.org/mcp`."""
    tools: tuple[str, ...] | None = None
    """Tools to offer, by their names at the server; none means all."""
    names: dict[str, str] = Field(default_factory=dict)
    """Name at the server -> name for the model, for names that the model cannot be given."""
    per_episode: bool = False
    """Whether each episode gets its own server process or session. Set it for servers that keep state; an interrupted
    rollout then begins again."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Time limit of a call in seconds."""
    max_output_chars: int = Field(default=10_000, ge=1)
    """Most characters of a result; its head and tail are kept."""
    network: bool = False
    """Whether a stdio server has the machine's network, local services included."""
    read: Operational[tuple[Path, ...]] = ()
    """Files and folders that a stdio server can read, in addition to the system's programs and the Python environment
    of its command. Relative paths are searched next to the configuration and stored as absolute ones."""
    env: tuple[str, ...] = ()
    """Environment of a stdio server: `NAME` passes a variable of Treadle's environment, `NAME=value` sets one."""
    sandbox: Literal["bubblewrap", "none"] = "bubblewrap"
    """Isolation of a stdio server. `none` runs it with your own rights, network and files."""
    memory_mb: int = Field(default=2048, ge=64)
    """What all processes of a stdio server and its scratch directory may hold together, in MiB."""
    api_key_env: Operational[str | None] = None
    """Environment variable with the token that an HTTP server gets as `Authorization: Bearer`."""
    allowed_networks: Operational[tuple[str, ...]] = ()
    """Networks such as `10.1.0.0/16` that the host name of an HTTP server may lead to in addition to public
    addresses. An address in the URL itself, or `localhost`, needs no entry."""
    start_timeout_s: Operational[float] = Field(default=60.0, gt=0)
    """Time given to a server to start and to list its tools, in seconds."""

    @model_validator(mode="before")
    @classmethod
    def _find_files(cls, data: Any) -> Any:
        """Make the paths of `read` absolute, and fill in the digest of the files that the command names."""
        if not isinstance(data, Mapping) or not isinstance(data.get("read", ()), (list, tuple)):
            return data
        read = [_absolute(path) for path in data.get("read", ())]
        digest = hashlib.sha256()
        command = data.get("command", ())
        files = [file_of(word, read) for word in command] if isinstance(command, (list, tuple)) else []
        named = [file for file in files if file is not None and file.is_file()]
        for file in named:
            digest.update(file_sha256(file).encode())
        found = {"code_sha256": digest.hexdigest()} if named else {}
        given = {name: value for name, value in data.items() if name != "code_sha256"}
        return {**given, "read": read, **found} if read else given

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        # First, and without repeating the value: it may hold a secret.
        if "@" in value or "?" in value or "#" in value:
            raise ValueError("an MCP server's URL has no credentials, query or fragment; use api_key_env for the token")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or not value.isprintable() or parts.port == 0:
            raise ValueError(f"{value!r} is not an http(s) URL such as https://tools.example.org/mcp")
        return value

    @field_validator("names")
    @classmethod
    def _check_names(cls, values: dict[str, str]) -> dict[str, str]:
        for name in values.values():
            if not NAME_PATTERN.fullmatch(name):
                raise ValueError(f"a tool cannot be named {name[:80]!r}: use 1 to 64 of A-Z a-z 0-9 _ . -")
        return values

    @field_validator("env")
    @classmethod
    def _check_env(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            name, has_value, _ = value.partition("=")
            if not _VARIABLE.fullmatch(name):
                raise ValueError("env lists names of environment variables, or NAME=value")
            if name in _RESERVED:
                raise ValueError(f"{name} is set by the sandbox; leave it out of env")
            if has_value and is_secret_name(name):
                raise ValueError(f"{name} looks like a secret, and a run keeps its configuration: write the name alone")
        return values

    @field_validator("api_key_env")
    @classmethod
    def _check_api_key_env(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
            raise ValueError(
                "this is the name of an environment variable, in capitals, such as TOOLS_TOKEN; the token itself "
                "belongs in that variable, never into a configuration"
            )
        return value

    @field_validator("allowed_networks")
    @classmethod
    def _check_networks(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            ipaddress.ip_network(value)
        return values

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError('type = "mcp" needs either command (stdio) or url (streamable HTTP)')
        if self.command and not all(self.command[:1]):
            raise ValueError("command begins with a program")
        for key in _HTTP_KEYS if self.command else _STDIO_KEYS:
            if getattr(self, key) != type(self).model_fields[key].get_default():
                raise ValueError(f"{key} is for servers with {'a url' if self.command else 'a command'} only")
        return self

    @model_validator(mode="after")
    def _check_files_are_readable(self) -> Self:
        folders = (Path.cwd(), *config_folders.get())
        for word in self.command[1:] if self.sandbox == "bubblewrap" else ():
            hidden = not Path(word).is_absolute() and file_of(word, self.read) is None
            if hidden and any((folder / word).is_file() for folder in folders):
                raise ValueError(
                    f"the server cannot see the file {word!r} of its command; set read = [{json.dumps(word)}]"
                )
        return self

    @property
    def keeps_state(self) -> bool:
        """See `ToolSettings`."""
        return self.per_episode

    @property
    def gives_outcome(self) -> bool:
        """See `ToolSettings`."""
        return False

    def started_command(self) -> tuple[str, ...]:
        """Return the command with absolute paths in place of those that `read` lists."""
        return tuple(str(file_of(word, self.read) or word) for word in self.command)


def file_of(word: Any, read: list[Path] | tuple[Path, ...]) -> Path | None:
    """Return the entry of `read` that a relative path in a command refers to: the first that ends with it."""
    parts = Path(str(word)).parts
    if not parts or Path(str(word)).is_absolute():
        return None
    return next((path for path in read if path.parts[-len(parts) :] == parts), None)


def _absolute(path: Any) -> Path:
    given = Path(str(path)).expanduser()
    candidates = [folder / given for folder in (Path.cwd(), *config_folders.get())]
    return next((one for one in candidates if one.exists()), candidates[0])
