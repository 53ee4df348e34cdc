"""Read the blocks of a whole text in the tags of planning agents, and name what is wrong with them.

The format is that of Agent Foundation Models (arXiv 2508.13167) and GAP (arXiv 2510.25320).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.datagen.texts.spans import OBSERVATION, tag_fault, tag_spans
from treadle.environments.planning.dialect import DIALECTS, tools_of

CALLS = tuple(dict.fromkeys(name for dialect in DIALECTS for name in tools_of(dialect)))
"""Tags that call a tool, in any dialect."""
THOUGHTS = ("think", "plan", "reflection", "suggested_answer", "double_check")
ANSWER = "answer"
TEXT_FAULTS = {
    "nested": "a tag stands inside another one",
    "unbalanced": "a tag is opened or closed without its counterpart",
    "odd_marker": "the marker of an observation is spelled in another way, so it would not be masked",
    "no_answer": "the last block is not an answer",
    "call_without_observation": "a call has no observation behind it",
}
"""Description of each fault by its code."""

_MARKER = re.compile(rf"<(/?)({'|'.join(dict.fromkeys((*THOUGHTS, *CALLS, ANSWER)))})>")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a text.

    Attributes:
        name: Word of its tag; `text` for text outside of tags that is not white space.
        body: Text between its markers.
        start: Where it starts, in characters.
        end: Where it ends.
    """

    name: str
    body: str
    start: int
    end: int


TEXT = "text"
"""Name of a block of text outside of tags."""


def read_blocks(text: str, word: str = OBSERVATION) -> tuple[list[Block], str]:
    """Return the blocks of a text and the code of the first fault of its markers, empty if there is none.

    `word` is the tag of observations; text inside them is not read. If there is a fault, only blocks before it are
    returned. Takes linear time.
    """
    if fault := tag_fault(text, word):
        return [], fault
    blocks: list[Block] = []
    position = 0
    for start, end in tag_spans(text, word):
        fault = _read_part(text, position, start, blocks)
        if fault:
            return blocks, fault
        whole = text[start:end]
        body = whole[len(word) + 2 : whole.rindex(f"</{word}>")]
        blocks.append(Block(word, body, start, end))
        position = end
    return blocks, _read_part(text, position, len(text), blocks)


def _read_part(text: str, start: int, end: int, blocks: list[Block]) -> str:
    """Append the blocks between two observations; return the code of a fault."""
    opened: re.Match[str] | None = None
    position = start
    for match in _MARKER.finditer(text, start, end):
        if not match[1]:
            if opened is not None:
                return "nested"
            _append_text(text, position, match.start(), blocks)
            opened = match
            continue
        if opened is None or opened[2] != match[2]:
            return "unbalanced" if opened is None else "nested"
        blocks.append(Block(match[2], text[opened.end() : match.start()], opened.start(), match.end()))
        opened, position = None, match.end()
    if opened is not None:
        return "unbalanced"
    _append_text(text, position, end, blocks)
    return ""


def _append_text(text: str, start: int, end: int, blocks: list[Block]) -> None:
    if text[start:end].strip():
        blocks.append(Block(TEXT, text[start:end], start, end))


def order_fault(blocks: Sequence[Block], word: str = OBSERVATION) -> str:
    """Return the code of the first fault in the order of blocks; empty if there is none.

    Calls that directly follow each other are one batch, whose observations follow the last one.
    """
    named = [block for block in blocks if block.name != TEXT]
    for place, block in enumerate(named):
        if block.name not in CALLS:
            continue
        after = named[place + 1].name if place + 1 < len(named) else ""
        if after != word and after not in CALLS:
            return "call_without_observation"
    return "" if named and named[-1].name == ANSWER else "no_answer"
