"""Call the tool `look` of an MCP server in the sandbox as one of the users; print its result as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from support.servers import mcp_desk

from treadle.agent.tools.outcome import CallContext
from treadle.agent.tools.settings import ToolResources
from treadle.environments.tools.registry import parse_tool


async def look() -> str:
    """Return what the server sees."""
    entry = {"type": "mcp", "command": [sys.executable, mcp_desk.__file__], "read": [mcp_desk.__file__]}
    async with parse_tool(entry).source("desk", ToolResources()) as source:
        task: Any = None
        tools = await source.episode(task, 0)
        return (await tools.call("desk_look", {}, deadline=1e12, context=CallContext("?", (), 0))).text


if __name__ == "__main__":
    uid = json.loads(sys.argv[1]).get("uid")
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    print(json.dumps({"uid": os.getuid(), "seen": asyncio.run(look())}))
