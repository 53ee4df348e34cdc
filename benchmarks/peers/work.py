"""The work that every peer does, and what the model says to it: plain data, importable from any environment.

An item is one question. Its prompt carries `(item <number>/<calls>)`, from which the server reads which item it is and
how many model calls it takes: three with two tool calls between them, or one. So a request has the same key whoever
sends it, in the first run and after a resume.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MODEL = "stub"
TOOLS = "tools"
"""Work of three calls with a search and a program between them."""
ROWS = "rows"
"""Work of one call."""
NUM_CALLS = {TOOLS: 3, ROWS: 1}
QUERY = "tower of Vessoria, year of completion"
PROGRAM = "height = 213\nprint(height * 2 + 1874)"
TOOL_RESULT = "The tower of Vessoria was finished in 1874 by Oren Maal; it is 213 m high. " * 5
"""What both tools return, at once: the tools are not what is measured."""
THOUGHTS = (
    "I should look up when the tower of Vessoria was finished. " * 4,
    "The document names the year and the height; now I compute. " * 4,
    "The program printed the number that was asked for. " * 4,
)
ANSWER = "The number is \\boxed{2300}."
SYSTEM = "Answer the question. Use the tools where they help, and close with the number in \\boxed{}. " * 8


def prompt(kind: str, item: int) -> str:
    """The question of one item."""
    return (
        "How many metres is twice the height of the tower of Vessoria, plus the year of its completion? "
        f"(item {item:07d}/{NUM_CALLS[kind]})"
    )


def report(items: list[int]) -> None:
    """Tell the parent which items stand in the finished output, doubled ones twice: the last line of a peer."""
    print(json.dumps({"items": items}), flush=True)


def arguments() -> tuple[str, str, int, int, Path, bool]:
    """What a peer's script is given: kind, URL, number of items, requests in flight, its folder, whether to resume."""
    kind, url, items, in_flight, folder, resume = sys.argv[1:]
    return kind, url, int(items), int(in_flight), Path(folder), resume == "resume"
