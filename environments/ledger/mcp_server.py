"""Serve the calls of the ledger as tools of an MCP server over stdio.

`python -m treadle.environments.ledger.mcp_server --seed N` holds the book of one task. A client that plays several
episodes starts a process for each, as `per_episode = true` does for `type = "mcp"`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from treadle.agent.tools.schema import ToolSchema
from treadle.environments.ledger.assignment import SUBMIT, Assignment
from treadle.environments.ledger.book import CALLS, Book, CallError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import TextContent

SCORE = "treadle/score"
"""Key in `_meta` of the result of `submit` with the score of the task, from 0 to 1; models do not see it."""

_SUBMIT = ToolSchema(
    SUBMIT,
    "Hand the task in. This ends it.",
    {
        "type": "object",
        "properties": {"answer": {"type": "integer"}},
        "required": ["answer"],
        "additionalProperties": False,
    },
)


class Desk:
    """The book of one task, and whether the task was handed in."""

    def __init__(self, seed: int) -> None:
        self.assignment = Assignment.make(seed)
        self._book = Book.make(seed)
        self._is_done = False

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
        """Return the result of a call, and the score once the task is handed in. Raises CallError."""
        if self._is_done:
            raise CallError("the task was handed in")
        if name != SUBMIT:
            return self._book.call(name, arguments), None
        if error := _SUBMIT.argument_error(arguments):
            raise CallError(f"{SUBMIT}: {error}")
        self._is_done = True
        return {"submitted": True}, self.assignment.score(self._book, arguments["answer"])


def make_server(seed: int) -> Server[Any]:
    """Return a server of the task with this seed; its instructions are the text of the task."""
    from mcp import types
    from mcp.server.lowlevel import Server

    desk = Desk(seed)
    schemas = [*(entry.schema for entry in CALLS.values()), _SUBMIT]

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=one.name, description=one.description, input_schema=dict(one.parameters))
                for one in schemas
            ]
        )

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            result, score = desk.call(params.name, params.arguments or {})
        except CallError as error:
            return types.CallToolResult(content=[_text({"error": str(error)})], is_error=True)
        meta = None if score is None else {SCORE: score}
        return types.CallToolResult(content=[_text(result)], meta=meta)

    return Server(
        "ledger",
        version="1",
        instructions=desk.assignment.text,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _text(content: Mapping[str, Any]) -> TextContent:
    from mcp.types import TextContent

    return TextContent(text=orjson.dumps(content).decode())


async def _serve(seed: int) -> None:
    from mcp.server.stdio import stdio_server

    server = make_server(seed)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> int:
    """Serve until the client closes standard input."""
    parser = argparse.ArgumentParser(prog="python -m treadle.environments.ledger.mcp_server", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the task, as in the payload of a task of `ledger`")
    seed: int = parser.parse_args().seed
    try:
        asyncio.run(_serve(seed))
    except ImportError as error:
        sys.stderr.write(f"the server needs the package {error.name}: pip install 'treadle[tools]'\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
