"""Make the transports by which the MCP client reaches a server: HTTP, or a process in the sandbox."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from treadle.agent.sandbox.guardian import Guardian
from treadle.agent.sandbox.leftovers import end_leftovers
from treadle.agent.sandbox.servers import ServerLauncher, ServerSettings
from treadle.agent.sandbox.usage import UsageWatch
from treadle.agent.tools.mcp.connection import Transport
from treadle.agent.tools.mcp.http import HttpTransport
from treadle.agent.tools.mcp.settings import McpServerSettings
from treadle.agent.tools.mcp.stdio import StdioTransport
from treadle.core.errors import SandboxError, ToolError

_log = logging.getLogger(__name__)


async def open_transports(entry: str, settings: McpServerSettings, stack: AsyncExitStack) -> Callable[[], Transport]:
    """Return a function that makes the transport of a new connection; `stack` closes what all transports share.

    Raises ToolError if the server cannot be started, ConfigError if its token is not set.
    """
    if settings.url is not None:
        HttpTransport(settings)  # A missing token is refused at once.
        return lambda: HttpTransport(settings)
    command = ServerSettings(
        settings.started_command(),
        settings.read,
        _environment(entry, settings.env),
        settings.network,
        settings.memory_mb,
        settings.sandbox != "none",
        '; for a server, the key is `sandbox = "none"`',
    )
    try:
        launcher = await asyncio.to_thread(ServerLauncher, command)
    except SandboxError as error:
        raise ToolError(f"environment.tools.{entry}: {error}") from error
    if settings.sandbox == "none":
        _log.warning('environment.tools.%s: sandbox = "none": the server runs with your own rights', entry)
    else:
        await asyncio.to_thread(end_leftovers)
    guardian, usage = Guardian(), UsageWatch()
    stack.push_async_callback(asyncio.to_thread, guardian.close)
    stack.push_async_callback(asyncio.to_thread, usage.close)
    return lambda: StdioTransport(guardian, launcher, usage)


def _environment(entry: str, listed: Sequence[str]) -> dict[str, str]:
    """Return the environment of a server. Raises ToolError if a variable is not set."""
    found = {}
    for one in listed:
        name, has_value, value = one.partition("=")
        if not has_value and name not in os.environ:
            raise ToolError(f"environment.tools.{entry}: env: environment variable {name} is not set")
        found[name] = value if has_value else os.environ[name]
    return found
