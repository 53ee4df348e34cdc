"""Find the program in the answer of a finished dialogue or rollout."""

from __future__ import annotations

import re
import textwrap

from treadle.core.answers.extraction import ANSWER, SYSTEM_KINDS
from treadle.environments.colbench.dialect import FINAL
from treadle.environments.planning.tools.fences import PYTHON, find_fences
from treadle.environments.stored_rollout import StoredRollout

BLOCKED = (
    "import os", "from os", "import sys", "from sys", "sudo", "transformers", "exit(", "quit(", "argparse",
)  # fmt: skip
"""Texts that make an answer worthless in the profile `legacy`, wherever they occur."""
_TAG = re.compile(r"\A\s*<answer>|</answer>\s*\Z")
_CODE_LINE = re.compile(r"(?:async\s+def|def|class|import|from|@)\b|@|[A-Za-z_]\w*\s*[=(\[.:]|[)\]}#]|if\b|for\b|try\b")
_FIRST_LINE = re.compile(
    r"^(?:async\s+def|def|class|import|from)\s|^@\w|^try:[ \t\r]*$"
    r"|^[A-Za-z_]\w*(?:[ \t]*,[ \t]*[A-Za-z_]\w*)*[ \t]*=(?!=)|^[A-Z_][A-Z0-9_]*[ \t]*:[^=\n]*=(?!=)",
    re.MULTILINE,
)
"""Line that begins a program; constants may precede the function that uses them."""


def answer_of(rollout: StoredRollout) -> str | None:
    """Return the text of a rollout's answer; None without one.

    It is the last answer that the agent gave. If its turns were used up, it is what its last turn shows.
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


def find_program(answer: str, function: str) -> str:
    """Return the program in an answer: fenced or bare, with text around it or without.

    Of several Python blocks the last one that defines `function` counts, else all of them together.
    """
    fences = [fence for fence in find_fences(answer) if fence.language in PYTHON or not fence.language]
    if not fences:
        return _bare_program(answer)
    defines = re.compile(rf"^\s*(?:async\s+)?def\s+{re.escape(function)}\b", re.MULTILINE)
    texts = [_unindented(fence.text) for fence in fences]
    defining = [text for text in texts if function and defines.search(text)]
    return defining[-1] if defining else "\n".join(texts)


def _bare_program(answer: str) -> str:
    """Return the lines from the first one that begins a program to the last one that belongs to it."""
    # The first line may follow the marker in the same line, with a space that is no indentation.
    is_own_line = answer.lstrip(" \t").startswith(("\r", "\n"))
    answer = _unindented(answer) if is_own_line else answer.lstrip(" \t")
    first = _FIRST_LINE.search(answer)
    if first is None:
        return answer
    lines = answer[first.start() :].split("\n")
    while len(lines) > 1 and not _belongs(lines[-1]):
        lines.pop()
    return "\n".join(lines)


def _unindented(text: str) -> str:
    """Return a text without the indentation of its first line, if all lines have it."""
    return textwrap.dedent(text) if text.strip("\r\n")[:1] in (" ", "\t") else text


def _belongs(line: str) -> bool:
    return bool(line.strip()) and (line[0] in " \t" or _CODE_LINE.match(line) is not None)


def find_legacy_program(answer: str) -> str | None:
    """Return what the published program takes for the program; None if the answer has a blocked text."""
    if any(text in answer for text in BLOCKED):
        return None
    for fence in ("```python", "```"):
        if fence in answer:
            return answer.split(fence)[1].split("```")[0]
    return answer
