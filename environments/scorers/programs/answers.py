"""Find the program in the answer of a finished dialogue or rollout."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from treadle.core.answers.extraction import ANSWER, SYSTEM_KINDS
from treadle.environments.colbench.dialect import FINAL
from treadle.environments.planning.tools.fences import PYTHON
from treadle.environments.stored_rollout import StoredRollout

BLOCKED = (
    "import os", "from os", "import sys", "from sys", "sudo", "transformers", "exit(", "quit(", "argparse",
)  # fmt: skip
"""An answer that contains one of these texts anywhere has no program in the profile `legacy`."""
_TAG = re.compile(r"\A\s*<answer>|</answer>\s*\Z")
_INLINE = re.compile(r"```([^`\n]+)```")
_FIRST_LINE = re.compile(r"(?:async\s+def|def|class|import|from)\s|@\w")
"""Beginning of a program that follows a fence in the same line."""


@dataclass(frozen=True, slots=True)
class AnswerText:
    """Text with the program of an answer; `is_bare` is true if it may also have prose that no fence separates."""

    text: str
    is_bare: bool


@dataclass(frozen=True, slots=True)
class _Fence:
    """Fence in a line: what precedes it, the backticks or tildes, and what follows."""

    indent: str
    before: str
    mark: str
    info: str

    @classmethod
    def of(cls, line: str) -> _Fence | None:
        """Return the fence in a line; None if the line has no fence, or closes it again in the same line."""
        text = line.lstrip(" \t")
        at = 0 if text.startswith("~~~") else text.find("```")
        if at < 0:
            return None
        after = text[at:].lstrip(text[at])
        if text[at] in after:
            return None
        mark = text[at : len(text) - len(after)]
        return cls(line[: len(line) - len(text)], text[:at], mark, after.strip())

    def is_closed_by(self, other: _Fence) -> bool:
        """Return whether another fence, at the beginning of its line, ends the block that this one begins."""
        return not other.before and other.mark.startswith(self.mark) and len(other.indent) <= len(self.indent) + 3

    @property
    def language(self) -> str:
        """First word behind the fence, in lower case; empty if the program begins there."""
        word = self.info.strip("{}. ").partition(" ")[0].lower()
        return "" if self.first_line and word not in PYTHON else word

    @property
    def first_line(self) -> str:
        """Line of the program that follows the fence; empty without one."""
        word, _, rest = self.info.partition(" ")
        text = rest.lstrip() if word.lower() in PYTHON else self.info
        return text if _FIRST_LINE.match(text) else ""


@dataclass(slots=True)
class _Block:
    """Fenced block while it is read."""

    fence: _Fence
    lines: list[str]
    is_closed: bool = False

    @property
    def text(self) -> str:
        """Text of the block, without the indentation of its fence and of its first line."""
        width = self.fence.indent
        return _unindented("\n".join([line.removeprefix(width) for line in self.lines])) + "\n"


def answer_of(rollout: StoredRollout) -> str | None:
    """Return the text of a rollout's answer; None without one.

    It is the last answer that the agent gave. If the agent used up its turns without one, it is the visible text
    of its last turn.
    """
    answers = [part.text for part in rollout.segments if part.kind == ANSWER]
    if answers:
        return _TAG.sub("", answers[-1]).removeprefix(FINAL).partition(FINAL)[0]
    if rollout.status != "max_turns":
        return None
    turn: list[str] = []
    for part in rollout.segments:
        if part.kind in SYSTEM_KINDS:
            turn = [] if part.kind == "user" else turn
        elif part.kind == "text":
            turn.append(part.text)
    return "".join(turn)


def find_program(answer: str, function: str) -> AnswerText:
    """Return the text with the program of an answer: a fenced block, or the whole answer if it has no such block.

    Of several Python blocks the last one that defines `function` counts. If none does, the text between the blocks
    counts if it defines the function, else all blocks together. Fences are of backticks or tildes, with a language or
    without, in a line of their own or not, and one of a pair may be missing. `bare_programs.program_in` finds the
    program in a text that is bare.
    """
    name = re.escape(function)
    begins = rf"^[ \t]*(?:(?:async[ \t]+)?def[ \t]+{name}\b|class[ \t]+{name}\b|{name}[ \t]*(?::[^=\n]*)?=(?!=))"
    defines = re.compile(begins if function else r"(?!)", re.MULTILINE)
    answer = answer.replace("\r\n", "\n").replace("\r", "\n")
    blocks, outside = _split(answer, defines)
    python = [one for one in blocks if not one.fence.language or one.fence.language in PYTHON]
    texts = [AnswerText(one.text, is_bare=not one.is_closed) for one in python]
    inline = [AnswerText(_inline_program(text), is_bare=False) for text in _INLINE.findall(answer)]
    for found in (texts, inline):
        if defining := [one for one in found if defines.search(one.text)]:
            return defining[-1]
    joined = "\n".join(one.text for one in texts)
    if defines.search(outside) or not joined.strip():
        return AnswerText(outside, is_bare=True)
    return AnswerText(joined, is_bare=False)


def _split(answer: str, defines: re.Pattern[str]) -> tuple[list[_Block], str]:
    """Return the fenced blocks, and the text outside of them."""
    lines = answer.split("\n")
    fences = [_Fence.of(line) for line in lines]
    places = [place for place, fence in enumerate(fences) if fence is not None and not fence.before]
    blocks: list[_Block] = []
    outside: list[str] = []
    block: _Block | None = None
    for place, (line, fence) in enumerate(zip(lines, fences, strict=True)):
        if fence is None:
            (outside if block is None else block.lines).append(line)
        elif block is None:
            outside.append(fence.indent + fence.before)
            block = _opened(fence)
        elif block.fence.is_closed_by(fence):
            block.is_closed = True
            blocks.append(block)
            is_opening = fence.language in PYTHON or fence.first_line
            block = _opened(fence) if is_opening else None
            outside.append("" if is_opening else fence.info)
        elif fence.before and not fence.info and not _is_closing(lines, places, place):
            # The fence is at the end of the last line of the program.
            block.lines.append(fence.indent + fence.before)
            block.is_closed = True
            blocks.append(block)
            block = None
        else:
            block.lines.append(line)
    if block is not None and defines.search("\n".join(outside)) and not defines.search(block.text):
        # The fence did not open a block, but closed one that had no opening fence.
        outside += block.lines
    elif block is not None:
        blocks.append(block)
    return blocks, "\n".join(outside)


def _opened(fence: _Fence) -> _Block:
    return _Block(fence, [fence.indent + fence.first_line] if fence.first_line else [])


def _is_closing(lines: list[str], places: list[int], place: int) -> bool:
    """Return whether the next line that begins with a fence is nothing but a fence."""
    after = bisect_right(places, place)
    return after < len(places) and not lines[places[after]].strip(" \t`~")


def _inline_program(text: str) -> str:
    """Return a program of one line, without the language before it."""
    word, _, rest = text.strip().partition(" ")
    return rest.strip() if word.lower() in PYTHON else text.strip()


def _unindented(text: str) -> str:
    """Return a text without the indentation of its first line, if all lines have it."""
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    width = first[: len(first) - len(first.lstrip(" \t"))]
    if not all(line.startswith(width) for line in lines if line.strip()):
        return text
    return "\n".join([line.removeprefix(width) for line in lines])


def find_legacy_program(answer: str) -> str | None:
    """Return what the published scorer takes for an answer's program; None if the answer has a blocked text."""
    if any(text in answer for text in BLOCKED):
        return None
    for fence in ("```python", "```"):
        if fence in answer:
            return answer.split(fence)[1].split("```")[0]
    return answer
