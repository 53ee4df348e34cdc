"""Hold what is known about a group of rollouts, from which problems and their likely causes follow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ENDED = ("answered", "finished")
"""Statuses of rollouts that ended with an answer, or whose environment ended the task."""
FAILED = "failed"
"""Status of rollouts that infrastructure ended; they tell nothing about the model."""

_NATIVE_CALL = r"<tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>|<function=|<\|tool_call|\"arguments\"\s*:|<\|channel\|>"
_OTHER_TEMPLATE = (
    r"<\|im_(?:start|end)\|>|<\|eot_id\|>|<\|(?:start|end)_header_id\|>|\[/?INST\]|<(?:start|end)_of_turn>|"
    r"<\|(?:assistant|user|system|end|endoftext)\|>|<\uff5c"
)
_MARKS = {
    "boxed": re.compile(r"\\boxed\s*\{"),
    "answer_tag": re.compile(r"</?answer>"),
    "other_tags": re.compile(
        r"<(?!(?-i:answer>))(?:answer|final_answer|final|solution|response|tool|code)>", re.IGNORECASE
    ),
    "native_call": re.compile(_NATIVE_CALL),
    "code_fence": re.compile(r"```"),
    "other_template": re.compile(_OTHER_TEMPLATE),
}
"""Mark (name of a feature of a text) -> pattern that finds it in the text of a model."""
_OPENED = {"answer_opened": ("<answer>", "</answer>"), "open_thought": ("<think>", "</think>")}
"""Mark -> opening and closing tag; a text has the mark if its last opening tag is not closed.

A regular expression would need quadratic time on hostile text.
"""


def marks_of(text: str) -> frozenset[str]:
    """Return the marks of the text that a model wrote in one rollout.

    Besides the marks of `_MARKS` and `_OPENED`: `empty` for no text, `only_thought` for text that ends with a thought.
    """
    if not text.strip():
        return frozenset({"empty"})
    marks = {"only_thought"} if text.rstrip().endswith("</think>") else set[str]()
    marks |= {name for name, (opening, closing) in _OPENED.items() if text.rfind(opening) > text.rfind(closing)}
    return frozenset(marks | {name for name, pattern in _MARKS.items() if pattern.search(text)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Counts over a group of rollouts, and what their model was asked for.

    `statuses` count all rollouts; the other numbers leave out rollouts that infrastructure ended.
    """

    statuses: Mapping[str, int]
    num_truncated: int = 0
    num_calls: int = 0
    """Requested calls."""
    num_executed: int = 0
    num_failed_calls: int = 0
    tools: Sequence[str] = ()
    """Tools that the model was offered."""
    unknown_tools: Sequence[str] = ()
    """Names of tools that were called and not offered, the most frequent first."""
    num_read: int = 0
    """Rollouts whose texts were read."""
    marks: Counter[str] = field(default_factory=Counter)
    """Mark -> number of texts that have it, among those that were read."""
    dialect: Literal["tags", "functions", ""] = ""
    """How calls and answers are written; empty if the environment has a dialect of its own."""
    is_chatml: bool = False
    """Whether prompts are ChatML because no tokenizer is configured."""
    max_tokens: int | None = None
    temperature: float | None = None
    failed_tools: Mapping[str, int] = field(default_factory=dict)
    """Tools that ran at least `FEW` times and always failed -> number of their calls."""
    common_error: str = ""
    """Result text that at least three quarters of the failed calls have, on one line; empty if there is none, or if
    texts were not read."""
    num_groups: int = 0
    """Number of questions with several rollouts."""
    num_equal_groups: int = 0
    """Number of questions with several rollouts, all with the same status and the same numbers of calls and tokens.

    0 if the texts of rollouts were read, and differ for at least one question.
    """

    @property
    def num(self) -> int:
        """Number of rollouts that infrastructure did not end."""
        return sum(self.statuses.values()) - self.statuses.get(FAILED, 0)

    @property
    def num_ended(self) -> int:
        """Number of rollouts with a status in `ENDED`."""
        return sum(self.statuses.get(status, 0) for status in ENDED)

    def mostly(self, *statuses: str) -> bool:
        """Return whether at least half of the rollouts, without those `FAILED` or in `ENDED`, have one of `statuses`.

        Return False if there are no such rollouts.
        """
        open_ones = self.num - self.num_ended
        return open_ones > 0 and 2 * sum(self.statuses.get(name, 0) for name in statuses) >= open_ones

    def often(self, mark: str) -> bool:
        """Return whether at least a third of the texts that were read have a mark."""
        return self.num_read > 0 and 3 * self.marks[mark] >= self.num_read
