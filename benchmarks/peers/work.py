"""Define the work that every peer does, and the model's responses: plain data, importable from any environment.

An item is one question. Its prompt contains `(item <number>/<calls>)`, which tells the server the item and its number
of model calls: three with two tool calls in between, or one. A request therefore has the same key for every peer, in
the first run and after a resume.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MODEL = "stub"
TOOLS = "tools"
"""Work of three model calls with a search and a program in between."""
ROWS = "rows"
"""Work of one model call."""
NUM_CALLS = {TOOLS: 3, ROWS: 1}
QUERY = "tower of Vessoria, year of completion"
PROGRAM = "height = 213\nprint(height * 2 + 1874)"
TOOL_RESULT = "The tower of Vessoria was finished in 1874 by Oren Maal; it is 213 m high. " * 5
"""Result of both tools, returned at once: tools are not what is measured."""
THOUGHTS = (
    "I should look up when the tower of Vessoria was finished. " * 4,
    "The document names the year and the height; now I compute. " * 4,
    "The program printed the number that was asked for. " * 4,
)
ANSWER = "The number is \\boxed{2300}."
SYSTEM = "Answer the question. Use the tools where they help, and close with the number in \\boxed{}. " * 8


def prompt(kind: str, item: int) -> str:
    """Return the question of one item."""
    return (
        "How many metres is twice the height of the tower of Vessoria, plus the year of its completion? "
        f"(item {item:07d}/{NUM_CALLS[kind]})"
    )


def report(items: list[int]) -> None:
    """Print the items of the finished output, duplicates included, as the peer's last line."""
    print(json.dumps({"items": items}), flush=True)


def arguments() -> tuple[str, str, int, int, Path, bool]:
    """Parse a peer's arguments: kind, URL, number of items, requests in flight, its folder, whether to resume."""
    kind, url, items, in_flight, folder, resume = sys.argv[1:]
    return kind, url, int(items), int(in_flight), Path(folder), resume == "resume"
