"""Call the tools `look` and `spread` of an MCP server in the sandbox as a user; print their results as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from support.sandbox import mcp_bare

from treadle.agent.tools.outcome import CallContext
from treadle.agent.tools.settings import ToolResources
from treadle.environments.tools.registry import TOOLS


async def look() -> list[str]:
    """Return what the server sees, and how far it can spread."""
    entry = {"type": "mcp", "command": [sys.executable, mcp_bare.__file__], "read": [mcp_bare.__file__]}
    async with TOOLS.parse(entry).source("desk", ToolResources()) as source:
        task: Any = None
        tools = await source.episode(task, 0)
        context = CallContext("?", (), 0)
        names = ("desk_look", "desk_spread")
        return [(await tools.call(name, {}, deadline=1e12, context=context)).text for name in names]


if __name__ == "__main__":
    uid = json.loads(sys.argv[1]).get("uid")
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    print(json.dumps({"uid": os.getuid(), "said": asyncio.run(look())}))
