"""Describe the shipped tools to models."""

from __future__ import annotations

from treadle.agent.tools.schema import ToolSchema

SCHEMAS = {
    "python": ToolSchema(
        "python",
        "Run a complete Python program and return what it prints. Nothing is kept between calls.",
        {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The program; print what you want to see."}},
            "required": ["code"],
        },
    ),
    "search": ToolSchema(
        "search",
        "Search documents and return the best matches.",
        {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "One query in plain words."}},
            "required": ["query"],
        },
    ),
}
"""Schemas of the tools whose only argument is a text."""


def schema_of(name: str) -> ToolSchema:
    """Return the schema of a tool whose only argument is a text."""
    return SCHEMAS.get(name) or ToolSchema(
        name, "", {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    )
