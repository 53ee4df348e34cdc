"""Run the stage `rollouts` with tools of an MCP server: `python -m support.rollouts.mcp_run ROOT URL TOOL`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from support.rollouts.rollouts_bench import Bench

from treadle.core.runs.run import Run

CHAT = {"api": "chat", "tokenizer": None}


def environment(tool: dict[str, Any]) -> dict[str, Any]:
    """Return an environment whose only tools are those of one server."""
    return {"dialect": "functions", "tools": {"desk": tool}}


async def play(bench: Bench, url: str, tool: dict[str, Any], **options: Any) -> Any:
    """Run the stage; return its record."""
    given = {"max_concurrent": 2, **options}
    return await bench.make(url, model=CHAT, environment=environment(tool), options=given)


if __name__ == "__main__":
    root, url, tool = sys.argv[1:]
    asyncio.run(play(Bench.of(Run.open(Path(root), "r")), url, json.loads(tool)))
