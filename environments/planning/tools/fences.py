"""Find fenced blocks of Markdown in the text of a model."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"[^\n]*\n|[^\n]+")

PYTHON = frozenset({"py", "python", "python3"})
"""Languages of a block with a program."""
SHELL = frozenset({"sh", "bash"})
"""Languages of a block with a program's input."""


@dataclass(frozen=True, slots=True)
class Fence:
    """One fenced block.

    Attributes:
        language: First word behind the opening fence, in lower case; empty without one.
        text: Lines between the fences, each with its end.
        start: Where its opening fence starts.
        end: Where its closing fence ends; the end of the text if it is never closed.
        is_closed: Whether it has a closing fence.
    """

    language: str
    text: str
    start: int
    end: int
    is_closed: bool = True


def find_fences(text: str) -> list[Fence]:
    """Return all fenced blocks, by position.

    As in CommonMark, a block ends at a line of at least as many backticks and nothing else, or at the end of the text.
    """
    found: list[Fence] = []
    opened: tuple[int, str, int, int] | None = None  # ticks, language, where the block and its text start
    for match in _LINE.finditer(text):
        line, start = match[0].rstrip("\r\n"), match.start()
        ticks = _ticks(line)
        if opened is None:
            info = line.lstrip(" ")[ticks:]
            if ticks >= 3 and "`" not in info:
                opened = (ticks, next(iter(info.split(None, 1)), "").lower(), start, match.end())
        elif ticks >= opened[0] and not line.strip(" \t`"):
            found.append(Fence(opened[1], text[opened[3] : start], opened[2], start + len(line)))
            opened = None
    if opened is not None:
        found.append(Fence(opened[1], text[opened[3] :], opened[2], len(text), is_closed=False))
    return found


def has_python_fence(text: str) -> bool:
    """Return whether a program is written as dialects with the tool `code` ask for: in a closed Python block."""
    return any(fence.language in PYTHON and fence.is_closed for fence in find_fences(text))


def _ticks(line: str) -> int:
    """Return how many backticks a line starts with, behind at most three spaces."""
    text = line.lstrip(" ")
    return len(text) - len(text.lstrip("`")) if len(line) - len(text) <= 3 else 0
